"""Hold a step of a model against what each row must hold, whatever the pool has moved meanwhile.

Ids never change while a row holds them; bytes follow their page. The model of a row is plain host arithmetic:

    pages of a row   [ passed by the window | in the window ]     full: every column a page of its own, or a shared one
                       window: the sink       window: a page of its own

With a real buffer every token's slot is stamped when it is written, and read back through the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from pagebind.pool import UnifiedPool
from pagebind.words import SINK
from pagebind_conformance import oracle

from pagebind_bench.replay.job import Job
from pagebind_bench.replay.kinds import Kinds
from pagebind_bench.replay.verify import Lane, Mismatch, Verifier, need_equal

STAMP = 1_000_003
"""A prime: stamps of different requests and positions differ, but for a chance that no fault can aim at."""


@dataclass(frozen=True)
class KindLane(Lane):
    """A lane of one kind of page; `first` is the first page of the row that it still holds, by host arithmetic."""

    first: int = 0


@dataclass
class ModelVerifier:
    """Checks steps; `checked` counts them."""

    pool: UnifiedPool
    kinds: Kinds
    checked: int = 0
    stamped: int = field(default=0, init=False)
    """Tokens and states whose bytes were read back."""
    _spans: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._rows = Verifier(self.pool.page_size, self.pool.num_virtual(self.kinds.owner) - 1, self.pool.form)
        size = {name: 1 if name == self.kinds.state else self.pool.page_size for name in self.kinds.names}
        # One stamp a token; pages are far larger than that.
        self._views = (
            {name: self.pool.view(name, torch.int32, [size[name]]) for name in self.kinds.names}
            if self.pool.buffer is not None
            else {}
        )

    def check(self, step: int, lanes: Mapping[str, Sequence[KindLane]], states: Sequence[int]) -> None:
        """Raise Mismatch, naming step, lane, kind and column, for the first cell of a step that is wrong."""
        self._spans = self._page_spans()
        for name in self.kinds.paged:
            self._check_kind(step, name, lanes[name])
        if self.kinds.state is not None:
            self._check_states(step, [lane.job for lane in lanes[self.kinds.owner]], states)
        self.checked += 1

    def _check_kind(self, step: int, name: str, lanes: Sequence[KindLane]) -> None:
        size, v2p = self.pool.page_size, self.pool.tables[name].v2p.tolist()
        found: list[int] = []
        for place, lane in enumerate(lanes):
            where = f"step {step}, lane {place} (request {lane.job.number}, row {lane.job.row.index}), {name!r}"
            ids, entries = lane.ids.tolist(), lane.entries.tolist()
            held = -(-lane.length // size)
            [right], counters = oracle.read_table(
                [ids], [0], [lane.length], v2p, [[-1] * held], page_size=size, form=self.pool.form
            )
            if any(counters.values()):
                raise Mismatch(f"{where}: the oracle counts {counters}; expected no fault")
            need_equal(f"{where}: read table", "column", entries, right)
            need_equal(f"{where}: write slots", "new token", lane.slots.tolist(), self._rows.slots(lane, ids, v2p))
            need_equal(f"{where}: columns that the window passed", "column", entries[: lane.first], [SINK] * lane.first)
            own = entries[lane.first :]
            self._need_inside(where, name, own, lane.first)
            found += own
            if name == self.kinds.owner:
                pages = ids if self.pool.form == "page" else [cell // size for cell in ids[::size]]
                self._rows.need_unchanged(where, "id", lane.job, pages)
            self._read_back(where, name, lane)
        if name == self.kinds.owner:
            self._rows.need_distinct(step, lanes, len(set(found)))
        elif len(set(found)) != len(found):
            raise Mismatch(
                f"step {step}: {len(found)} columns read {len(set(found))} pages of {name!r}; expected no page twice"
            )

    def _page_spans(self) -> dict[str, tuple[int, int]]:
        """Return the first and the last page of each span, by the host's counts: page 0 lies behind those before it."""
        spans, base = {}, 0
        for name, own in self.pool.stats().sub_pools.items():
            spans[name] = ((own.first_byte - base) // own.page_bytes, (own.end_byte - base) // own.page_bytes - 1)
            base += own.page_bytes
        return spans

    def _need_inside(self, where: str, name: str, entries: Sequence[int], first: int) -> None:
        low, high = self._spans[name]
        for column, page in enumerate(entries, first):
            if page == SINK or not low <= page <= high:
                raise Mismatch(
                    f"{where}: read table, column {column}: expected a page from {low} to {high}, got {page}"
                )

    def _check_states(self, step: int, jobs: Sequence[Job], pages: Sequence[int]) -> None:
        name = self.kinds.state
        assert name is not None
        for place, (job, page) in enumerate(zip(jobs, pages, strict=True)):
            where = f"step {step}, lane {place} (request {job.number}), {name!r}"
            self._need_inside(where, name, [page], 0)
            if self._views:
                need_equal(f"{where}: bytes", "state", self._views[name][page].tolist(), [stamp(job, 0)])
                self.stamped += 1
        if len(set(pages)) != len(pages):
            raise Mismatch(
                f"step {step}: {len(pages)} requests have {len(set(pages))} pages of {name!r}; expected one each"
            )

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def write(self, slots: Mapping[str, torch.Tensor], lanes: Sequence[tuple[Job, int]]) -> None:
        """Stamp the new tokens of a step: `slots[kind]`, int32 `[tokens]`; `lanes` are jobs and their new tokens."""
        if not self._views:
            return
        stamps = np.concatenate([stamp_tokens(job, job.length - tokens, job.length) for job, tokens in lanes])
        values = torch.from_numpy(stamps).to(self.pool.device)
        size = self.pool.page_size
        for name, given in slots.items():
            at = given.to(torch.int64)
            self._views[name][at // size, at % size] = values

    def write_states(self, jobs: Sequence[Job]) -> None:
        """Stamp the states of requests that were admitted."""
        if not self._views or self.kinds.state is None or not jobs:
            return
        v2p = self.pool.tables[self.kinds.state].v2p
        pages = v2p[torch.cat([job.state for job in jobs]).to(torch.int64)].to(torch.int64)
        values = torch.tensor([stamp(job, 0) for job in jobs], dtype=torch.int32, device=self.pool.device)
        self._views[self.kinds.state][pages, 0] = values

    def _read_back(self, where: str, name: str, lane: KindLane) -> None:
        if not self._views:
            return
        size = self.pool.page_size
        begin = max(lane.first, lane.job.shared)  # a shared page has the stamps of the request that computed it
        pages = torch.tensor(lane.entries[begin:].tolist(), dtype=torch.int64, device=self.pool.device)
        found = self._views[name][pages].flatten()[: lane.length - begin * size].tolist()
        right = stamp_tokens(lane.job, begin * size, lane.length).tolist()
        need_equal(f"{where}: bytes", f"token {begin * size} +", found, right)
        self.stamped += len(right)


def stamp(job: Job, position: int) -> int:
    """Return what a token of a request writes, an int32."""
    return (job.number * STAMP + position) % 2**31


def stamp_tokens(job: Job, begin: int, end: int) -> np.ndarray:
    """Return the stamps of tokens `[begin, end)`, int32."""
    return ((job.number * STAMP + np.arange(begin, end, dtype=np.int64)) % 2**31).astype(np.int32)
