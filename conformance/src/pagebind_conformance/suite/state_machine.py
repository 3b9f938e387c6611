"""A sub-pool and a request table under any sequence of operations, against a dictionary of who is bound where."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pagebind import ops

from pagebind_conformance import generate, oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.advance import advance
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.assign import assign
from pagebind_conformance.trial.call import GuardedPool, hold
from pagebind_conformance.trial.compact import compact
from pagebind_conformance.trial.extend import extend
from pagebind_conformance.trial.follow import Follower
from pagebind_conformance.trial.free import free
from pagebind_conformance.trial.release import release
from pagebind_conformance.trial.truncate import truncate

GROUP = "state machine"
LEVEL = "extended"

ROWS, CELLS = 4, 18
NUM_VIRTUAL, NUM_PHYSICAL = 40, 34
COUNTS = st.integers(0, 9)
SEEDS = st.integers(0, 2**32 - 1)


class Tables(RuleBasedStateMachine):
    """The model: which page each virtual id is bound to, by what calls gave out and took back, and what rows hold."""

    def __init__(self, subject: Subject, page_size: int, form: str, *, down: bool) -> None:
        super().__init__()
        self.subject, self.ps, self.form, self.down = subject, page_size, form, down
        sizes: dict[str, Any] = {"page_size": page_size, "form": form, "max_bs": ROWS}
        self.specs: dict[str, Any] = {
            "alloc": ops.AllocSpec(max_items=64),
            "free": ops.FreeSpec(max_items=64),
            "bind": ops.BindSpec(max_items=64),
            "unbind": ops.UnbindSpec(max_items=64),
            "extend": ops.ExtendSpec(
                **sizes, max_tokens=256, num_virtual=NUM_VIRTUAL, num_physical=NUM_PHYSICAL, multiplier=3
            ),
            "advance": ops.AdvanceSpec(**sizes, num_virtual=NUM_VIRTUAL, num_physical=NUM_PHYSICAL, multiplier=3),
            "truncate": ops.TruncateSpec(**sizes, max_pages=64),
            "release": ops.ReleaseSpec(**sizes, max_pages=64, shared=True),
            "assign": ops.AssignSpec(max_bs=ROWS, max_items=256),
            "compact": ops.CompactSpec(max_pages=64, page_bytes=16),
            "read_table": ops.ReadTableSpec(**sizes, max_width=64, num_physical=NUM_PHYSICAL, fill="sink"),
            "refresh_table": ops.RefreshTableSpec(
                **sizes, max_width=64, num_physical=NUM_PHYSICAL, multiplier=3, fill="prefix" if down else "sink"
            ),
        }
        self.bound: dict[int, int] = {}
        self.adrift: tuple[list[int], list[int]] = ([], [])  # ids and pages unbound by hand, on no stack
        self.lens = [0] * ROWS
        self.shared = [0] * ROWS  # tokens at the head of a row that another row owns
        self.changed: dict[int, int] = {}  # row -> token from which on the last step rewrote it

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        """Start empty, the ids in random order; one that grows down has a neighbour below it that holds some bytes."""
        self.pool: SubPool = generate.sub_pool(Random(seed), NUM_VIRTUAL, NUM_PHYSICAL, 0, 0)
        if self.down:
            total = 3 + 2 * NUM_PHYSICAL
            blocks = generate.empty_blocks((3, 2), total)
            blocks[0] = blocks[0]._replace(watermark=seed % 9)
            self.pool = generate.member(Random(seed), blocks, 1, total, NUM_VIRTUAL, 0)
        device = self.subject.device
        self.placed = GuardedPool(self.pool, torch.int32, device)
        cells = self.tokens() if self.form == "token" else self.tokens() // self.ps
        self.rows = Guarded([[-1] * cells for _ in range(ROWS)], torch.int32, device)
        self.follower = Follower(self.subject, self.specs["refresh_table"], ROWS, self.tokens() // self.ps)

    @rule(n=COUNTS)
    def take(self, n: int) -> None:
        """Allocate pages."""
        self.pool, ids, pages = alloc(self.subject, self.specs["alloc"], self.pool, n, self.placed)
        self.bound |= {v: p for v, p in zip(ids, pages, strict=True) if v}

    @rule(n=COUNTS, seed=SEEDS, junk=st.booleans())
    def give(self, n: int, seed: int, junk: bool) -> None:
        """Free some bound ids, with holes, repeats and faults among them."""
        rng = Random(seed)
        ids = rng.sample(sorted(self.bound), min(n, len(self.bound)))
        if junk:
            ids += [-1, 0, NUM_VIRTUAL, rng.randrange(1, NUM_VIRTUAL), *ids[:2]]
            rng.shuffle(ids)
        self.pool, freed = free(self.subject, self.specs["free"], self.pool, ids, self.placed)
        self.forget(freed)

    @rule(n=COUNTS, seed=SEEDS)
    def set_adrift(self, n: int, seed: int) -> None:
        """Unbind by hand: ids and pages are on no stack then."""
        ids = Random(seed).sample(sorted(self.bound), min(n, len(self.bound)))
        parts = self.placed.parts
        arguments = {
            "ids": Guarded(ids, torch.int32, self.subject.device),
            "v2p": parts["v2p"],
            "p2v": parts["p2v"],
            "freed": Guarded.poisoned((len(ids),), torch.int32, self.subject.device),
            "state": None,
        }
        v2p, p2v, freed, _ = oracle.unbind(ids, self.pool.v2p, self.pool.p2v)
        expected = {"v2p": v2p, "p2v": p2v, "freed": freed}
        hold(self.subject, ops.UNBIND, self.specs["unbind"], arguments, expected)
        self.pool = self.pool._replace(v2p=v2p, p2v=p2v)
        self.adrift[0].extend(ids)
        self.adrift[1].extend(freed)
        self.forget(freed)

    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        """Bind what is adrift, each id to some page: moved, as a compaction moves it."""
        virtual, physical = self.adrift
        Random(seed).shuffle(physical)
        parts = self.placed.parts
        arguments = {
            "virtual": Guarded(virtual, torch.int32, self.subject.device),
            "physical": Guarded(physical, torch.int32, self.subject.device),
            "v2p": parts["v2p"],
            "p2v": parts["p2v"],
            "state": None,
        }
        v2p, p2v, _ = oracle.bind(virtual, physical, self.pool.v2p, self.pool.p2v)
        expected = {"v2p": v2p, "p2v": p2v}
        hold(self.subject, ops.BIND, self.specs["bind"], arguments, expected)
        self.pool = self.pool._replace(v2p=v2p, p2v=p2v)
        self.bound |= dict(zip(virtual, physical, strict=True))
        self.adrift = ([], [])

    @rule(seed=SEEDS)
    def retreat(self, seed: int) -> None:
        """Compact, by no more than the holes, nor over a page that is adrift: no table tells where that is."""
        pool, adrift = self.pool, self.adrift[1]
        if self.down:
            most = min(pool.hole_top, min(adrift, default=NUM_PHYSICAL) - pool.seat - 1)
        else:
            most = min(pool.hole_top, pool.seat + pool.watermark - max(adrift, default=0))
        self.pool, sources, targets, _ = compact(
            self.subject, self.specs["compact"], pool, Random(seed).randint(0, most), placed=self.placed,
            side="low" if self.down else "high",
        )  # fmt: skip
        moved = dict(zip(sources, targets, strict=True))
        self.bound = {v: moved.get(p, p) for v, p in self.bound.items()}

    @rule(sizes=st.lists(COUNTS, min_size=ROWS, max_size=ROWS), seed=SEEDS)
    def grow(self, sizes: list[int], seed: int) -> None:
        """Extend the rows whose last page is still theirs."""
        lanes = [r for r in range(ROWS) if self.lens[r] % self.ps == 0 or self.last_page(r) in self.bound]
        Random(seed).shuffle(lanes)
        sizes = [min(sizes[r], self.tokens() - self.lens[r]) for r in lanes]
        indptr = generate.offsets(Random(seed), sizes, torch.int32)
        _, self.pool, _ = extend(
            self.subject, self.specs["extend"], self.rows, lanes, [self.lens[r] for r in lanes], indptr, self.pool,
            capacity=indptr[-1], placed=self.placed,
        )  # fmt: skip
        for r, n in zip(lanes, sizes, strict=True):
            for v in self.pages(r, self.lens[r], self.lens[r] + n):
                if v > 0 and v not in self.bound:
                    self.bound[v] = self.pool.v2p[v]
            self.lens[r] += n

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        """Give the rows whose last page is still theirs a token more; one that finds no page asks again later."""
        lanes = [r for r in range(ROWS) if self.lens[r] % self.ps == 0 or self.last_page(r) in self.bound]
        Random(seed).shuffle(lanes)
        after = advance(
            self.subject, self.specs["advance"], self.rows, lanes, [self.lens[r] for r in lanes], self.pool,
            placed=self.placed,
        )  # fmt: skip
        self.pool = after.pool
        for r, n in zip(lanes, after.seq_lens, strict=True):
            for v in self.pages(r, self.lens[r], n):
                self.bound[v] = self.pool.v2p[v]
            self.lens[r] = n

    @rule(r=st.integers(0, ROWS - 1), keep=st.integers(0, CELLS), capacity=st.sampled_from([64, 64, 2]))
    def cut(self, r: int, keep: int, capacity: int) -> None:
        """Give back the tail of a row, but nothing another row owns; a small capacity may cut the cut short."""
        keep = min(max(keep, self.shared[r]), self.lens[r])
        _, self.pool, freed = truncate(
            self.subject, self.specs["truncate"], self.rows, [r], [self.lens[r]], [keep], self.pool,
            capacity=capacity, placed=self.placed,
        )  # fmt: skip
        self.forget(freed)
        self.changed[r] = keep
        kept = -(-keep // self.ps) + capacity
        if kept < -(-self.lens[r] // self.ps):  # what had no room stays; the row begins anew behind a release
            self.leave(r)
        else:
            self.lens[r] = keep

    @rule(r=st.integers(0, ROWS - 1))
    def leave(self, r: int) -> None:
        """Empty a row, the shared prefix stays bound."""
        _, self.pool, freed = release(
            self.subject, self.specs["release"], self.rows, [r], [self.lens[r]], self.pool,
            capacity=64, starts=[self.shared[r]], placed=self.placed,
        )  # fmt: skip
        self.forget(freed)
        self.changed[r] = 0
        self.lens[r] = self.shared[r] = 0

    @rule(r=st.integers(0, ROWS - 1), other=st.integers(0, ROWS - 1), pages=st.integers(1, 4))
    def share(self, r: int, other: int, pages: int) -> None:
        """Start an empty row on whole pages of another."""
        tokens = min(pages * self.ps, self.lens[other] // self.ps * self.ps)
        if r == other or self.lens[r] or not tokens:
            return
        unit = 1 if self.form == "token" else self.ps
        ids = self.rows.before_values()[other][: tokens // unit]
        assign(self.subject, self.specs["assign"], self.rows, [r], ids, [0, len(ids)])
        self.changed[r] = 0
        self.lens[r] = self.shared[r] = tokens

    @rule()
    def read(self) -> None:
        """Build the table of all rows; the dictionary says what every page entry is."""
        width = self.tokens() // self.ps
        device = self.subject.device
        rows = [[self.bound.get(v, 0) for v in self.pages(r, 0, self.lens[r])] for r in range(ROWS)]
        arguments = {
            "request_table": self.rows,
            "req_rows": Guarded([2, 0, 3, 1], torch.int32, device),
            "seq_lens": Guarded([self.lens[r] for r in (2, 0, 3, 1)], torch.int32, device),
            "v2p": self.placed.parts["v2p"],
            "out": Guarded.poisoned((ROWS, width), torch.int32, device),
            "seq_len_delta": 0,
            "state": None,
        }
        expected = [(rows[r] + [0] * width)[:width] for r in (2, 0, 3, 1)]
        hold(self.subject, ops.READ_TABLE, self.specs["read_table"], arguments, {"out": expected})

    @invariant()
    def tables_are_inverse_and_nothing_is_lost(self) -> None:
        """Hold the device's tables, stacks and span against the dictionary."""
        if not hasattr(self, "placed"):
            return
        parts = {name: part.values() for name, part in self.placed.parts.items()}
        v2p, p2v = parts["v2p"], parts["p2v"]
        assert {v: p for v, p in enumerate(v2p) if v and p >= 0} == self.bound
        assert {v: p for p, v in enumerate(p2v) if p and v >= 0} == self.bound
        state = parts["chain"][self.placed.place] if self.down else parts["state"]
        top, holes, span, _, seat = state[:5]
        free_ids, free_pages = parts["virtual_stack"][:top], parts["hole_stack"][:holes]
        assert sorted([*free_ids, *self.bound, *self.adrift[0]]) == list(range(1, NUM_VIRTUAL))
        assert sorted([*free_pages, *self.bound.values(), *self.adrift[1]]) == list(range(seat + 1, seat + span + 1))

    @invariant()
    def a_table_that_is_refreshed_is_as_one_built_anew(self) -> None:
        """Tell what the step changed, and refresh the table."""
        if not hasattr(self, "placed"):
            return
        pages = [[self.bound.get(v, 0) for v in self.pages(r, 0, self.lens[r])] for r in range(ROWS)]
        self.follower.follow(self.rows, self.lens, pages, self.pool, self.placed, self.changed)
        self.changed = {}

    def forget(self, freed: list[int]) -> None:
        """Take the pages a call gave back out of the dictionary."""
        gone = {p for p in freed if p >= 0}
        self.bound = {v: p for v, p in self.bound.items() if p not in gone}

    def tokens(self) -> int:
        """Return the width of a row in tokens, in whole pages."""
        return CELLS // self.ps * self.ps if self.form == "token" else CELLS // 2 * self.ps

    def pages(self, r: int, first: int, last: int) -> list[int]:
        """Return the ids of the pages that hold tokens `[first, last)` of a row."""
        row, unit = self.rows.before_values()[r], self.ps if self.form == "token" else 1
        if first >= last:
            return []
        return [max(row[q * unit] // unit, -1) for q in range(first // self.ps, -(-last // self.ps))]

    def last_page(self, r: int) -> int:
        """Return the id of a row's last page."""
        return self.pages(r, self.lens[r] - 1, self.lens[r])[0]


@pytest.mark.parametrize(
    ("page_size", "form", "down"),
    [(1, "token", False), (1, "page", True), (4, "page", False), (3, "token", False), (3, "token", True)],
    ids=["1-token", "1-page-down", "4-page", "3-token", "3-token-down"],
)
def test_any_sequence_of_operations_keeps_the_tables(subject: Subject, page_size: int, form: str, down: bool) -> None:
    steps = 12 if subject.slow else 30

    class Machine(Tables):
        def __init__(self) -> None:
            super().__init__(subject, page_size, form, down=down)

    run_state_machine_as_test(Machine, settings=settings(subject.generated(0.5), stateful_step_count=steps))
