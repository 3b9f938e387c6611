"""Rows that live in two sub-pools, full and window, and every operation on them, in lists; two tables follow them.

What changes is what the oracle says. What is told by `touch`, and the refreshes, are calls of the backend: after each
refresh a table's cells have to be those of a fresh build.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from pagebind.ops import RefreshTableSpec, TouchSpec

from pagebind_conformance import generate, oracle
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.touch import touch

ROWS, PAGES = 5, 6
NUM = 90
MOST = 2**31 - 1


class World:
    """The rows, the two sub-pools, the versions, and the tables `full` and `window`."""

    def __init__(self, subject: Subject, rng: Random, full: RefreshTableSpec, window: RefreshTableSpec) -> None:
        """Begin with empty rows; versions begin at random, some of them about to wrap around."""
        self.telling, self.rng = replace(subject, composed=True), rng  # touch may be its composed form
        self.ps, self.form = full.page_size, full.form
        self.tokens = PAGES * self.ps
        self.rows = [[-1] * (PAGES if self.form == "page" else self.tokens) for _ in range(ROWS)]
        self.lens, self.shared, self.first = [0] * ROWS, [0] * ROWS, [0] * ROWS
        self.owner: dict[int, int] = {}  # row -> the row that owns its head
        self.covered = [0] * ROWS  # tokens of a row that a table may hold, of those since its last change
        self.pool = generate.sub_pool(rng, NUM, NUM, 0, 0)
        self.borrower = generate.borrower(generate.sub_pool(rng, NUM, NUM, 0, 0))
        self.versions = [[rng.choice([0, MOST, MOST - 1, -1]), rng.randint(0, 9)] for _ in range(ROWS)]
        self.touches = TouchSpec(max_bs=16)
        self.full = Refreshed(subject, full, ROWS + 2, self._width(full))
        self.window = Refreshed(subject, window, ROWS + 1, self._width(window))
        self.kinds: dict[str, Any] = {"page_size": self.ps, "form": self.form}

    def step(self) -> None:
        """Do something to some row, and now and then bring one of the tables up to date."""
        rng = self.rng
        deeds = [self.append, self.append, self.cut, self.share, self.leave, self.free, self.free_under,
                 self.compact, self.evict, self.swap, self.lose]  # fmt: skip
        rng.choice(deeds)(rng.randrange(ROWS))
        for refresh in (self.refresh_full, self.refresh_window):
            if rng.random() < 0.4:
                refresh()

    # ---- told by nothing ----

    def append(self, _row: int) -> None:
        """Grow some rows, as a prefill or a decode step does; a table that covers the new tokens already is told."""
        rows = self.rng.sample(range(ROWS), self.rng.randint(1, ROWS))
        most = self.rng.choice([1, 1, 3 * self.ps])
        sizes = [min(self.rng.randint(1, most), self.tokens - self.lens[r]) for r in rows]
        indptr = [sum(sizes[:b]) for b in range(len(sizes) + 1)]
        slots, told = [0] * indptr[-1], oracle.Emitted([0] * indptr[-1], [0] * indptr[-1], [0] * indptr[-1])
        prefixes = [self.lens[r] for r in rows]
        self.rows, self.pool, _, emitted, _ = oracle.extend(
            self.rows, rows, prefixes, indptr, self.pool, slots, emitted=told, page_size=self.ps, form=self.form
        )
        assert emitted is not None
        self.borrower = oracle.alloc(self.borrower, [v for v in emitted.new_ids if v > 0])[0]
        for r, n in zip(rows, sizes, strict=True):
            if n and self.covered[r] > self.lens[r]:
                self.tell(r, self.lens[r])
            self.lens[r] += n

    def free(self, r: int) -> None:
        """Free the last pages of a row by their ids; its length shrinks, its cells stay."""
        kept = max(self.shared[r] // self.ps, self.first[r], self.rng.randrange(PAGES))
        if not self._lent(r) and kept * self.ps < self.lens[r]:
            self._free_from(r, kept)
            self.lens[r] = kept * self.ps

    def free_under(self, r: int) -> None:
        """Free a row's pages by their ids while tables show them, and empty it later."""
        if not self._lent(r) and self.shared[r] < self.lens[r]:
            self._free_from(r, self.shared[r] // self.ps)
            self.refresh_full()
            self.refresh_window()
            self.leave(r)

    def compact(self, _row: int) -> None:
        """Close holes of one of the sub-pools."""
        name = self.rng.choice(["pool", "borrower"])
        pool = getattr(self, name)
        retreat = self.rng.randint(0, pool.hole_top)
        setattr(self, name, oracle.compact(pool, retreat, [0] * retreat, [0] * retreat)[0])

    def evict(self, r: int) -> None:
        """Give back the pages that the window has left."""
        if not self._lent(r) and not self.shared[r]:
            self._evict(r, "head", 0, self.rng.randint(0, self.lens[r]))

    # ---- told by touch ----

    def cut(self, r: int) -> None:
        """Truncate a row."""
        keep = self.rng.randint(max([self.shared[r], *self._lent(r)]), self.lens[r])
        self._evict(r, "tail", keep, self.lens[r])
        self.rows, self.pool, _, _ = oracle.truncate(
            self.rows, [r], [self.lens[r]], [keep], self.pool, [0] * PAGES, **self.kinds
        )
        self.lens[r] = keep
        self.tell(r, keep)

    def leave(self, r: int) -> None:
        """Empty a row; another request begins in it."""
        if self._lent(r):
            return
        self._evict(r, "row", self.shared[r], self.lens[r])
        self.rows, self.pool, _, _ = oracle.release(
            self.rows, [r], [self.lens[r]], self.pool, [0] * PAGES, starts=[self.shared[r]], **self.kinds
        )
        self.owner.pop(r, None)
        self.lens[r] = self.shared[r] = 0
        self.tell(r, 0)

    def share(self, r: int) -> None:
        """Start an empty row on whole pages of another, which is no sharer itself."""
        other = self.rng.randrange(ROWS)
        tokens = self.rng.randint(1, 3) * self.ps
        if self.lens[r] or other == r or self.shared[other] or tokens > self.lens[other] or self._lent(r):
            return
        ids = self.rows[other][: tokens if self.form == "token" else tokens // self.ps]
        self.rows, _ = oracle.assign(self.rows, [r], ids, [0, len(ids)])
        self.owner[r], self.lens[r], self.shared[r] = other, tokens, tokens
        self.tell(r, 0)

    def swap(self, r: int) -> None:
        """Write two of a row's pages in each other's place, by hand."""
        pages = list(range(self.shared[r] // self.ps, self.lens[r] // self.ps))
        if len(pages) > 1 and not self._lent(r):
            low, high = sorted(self.rng.sample(pages, 2))
            cells = [self._cells(low), self._cells(high)]
            row = self.rows[r]
            row[cells[0]], row[cells[1]] = row[cells[1]], row[cells[0]]
            self.tell(r, low * self.ps)

    def lose(self, r: int) -> None:
        """Write a hole, or an id past the table, in the place of a page, by hand."""
        pages = range(self.shared[r] // self.ps, self.lens[r] // self.ps)
        if pages and not self._lent(r) and self.rng.random() < 0.3:
            page = self.rng.choice(pages)
            self.rows[r][self._cells(page)] = generate.spread([self.rng.choice([-1, NUM + 3])], self.ps, self.form)
            self.tell(r, page * self.ps)

    def tell(self, r: int, token: int) -> None:
        """Touch a row; whoever is brought up to date afterwards holds nothing of it from that token on."""
        self.versions = touch(self.telling, self.touches, self.versions, [r], [token])
        self.covered[r] = min(self.covered[r], token)

    # ---- tables ----

    def refresh_full(self) -> None:
        """Bring the table of the full sub-pool up to date, some lanes a little longer or shorter than they are."""
        lanes, lens = self._lanes(len(self.full.cells))
        delta = self.rng.choice([0, 0, 0, 2])
        self.full.refresh(
            self.rows, lanes, lens, self.pool.v2p, self.versions, epoch=self.pool.epoch, seq_len_delta=delta
        )
        self._cover(lanes, lens, delta)

    def refresh_window(self) -> None:
        """Bring the table of the window up to date; lanes start at the window, or anywhere."""
        lanes, lens = self._lanes(len(self.window.cells))
        starts = [self.rng.choice([max(n - 2 * self.ps, 0), self.rng.randint(0, max(n, 0))]) for n in lens]
        self.window.refresh(
            self.rows, lanes, lens, self.borrower.v2p, self.versions,
            epoch=self.borrower.epoch, first=self.first, starts=starts,
        )  # fmt: skip
        self._cover(lanes, lens, 0)

    def _lanes(self, most: int) -> tuple[list[int], list[int]]:
        order = list(range(ROWS)) if self.rng.random() < 0.5 else self.rng.sample([-1, *range(ROWS), ROWS], ROWS)
        lanes = order[: self.rng.choice([ROWS, ROWS, self.rng.randint(0, most)])]
        lens = [self.lens[r] if 0 <= r < ROWS else 3 for r in lanes]
        return lanes, [max(n - self.rng.choice([0, 0, 0, 1, self.ps]), 0) for n in lens]

    def _cover(self, lanes: list[int], lens: list[int], delta: int) -> None:
        for r, n in zip(lanes, lens, strict=True):
            if 0 <= r < ROWS:
                self.covered[r] = max(self.covered[r], min(n + delta, self.tokens))

    # ---- parts ----

    def _width(self, spec: RefreshTableSpec) -> int:
        return PAGES if spec.granularity == "page" else self.tokens

    def _cells(self, page: int) -> slice:
        return slice(page, page + 1) if self.form == "page" else slice(page * self.ps, (page + 1) * self.ps)

    def _lent(self, r: int) -> list[int]:
        """Return how many tokens of a row each of those hold that began on it."""
        return [self.shared[other] for other, owner in self.owner.items() if owner == r]

    def _free_from(self, r: int, page: int) -> None:
        unit = 1 if self.form == "page" else self.ps
        last = -(-self.lens[r] // self.ps)
        cells = [self.rows[r][q * unit] for q in range(page, last)]
        ids = [v // unit if v >= 0 else -1 for v in cells]
        self.pool, _, _ = oracle.free(self.pool, ids)
        self.borrower, _, _ = oracle.free(self.borrower, ids, borrowed=True)
        self.covered = [0] * ROWS  # both epochs have risen: nothing that was built before is believed

    def _evict(self, r: int, part: str, start: int, length: int) -> None:
        self.borrower, self.first, _, _ = oracle.evict(
            self.rows, [r], [start], [length], self.borrower, self.first, [0] * PAGES, part=part, **self.kinds
        )
