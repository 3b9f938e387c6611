"""Hold a step's read table and write slots against the list oracle and against what the host knows by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pagebind.words import Form
from pagebind_conformance import oracle

from pagebind_bench.replay.scheduler import Job


class Mismatch(Exception):
    """The tables are wrong: what was found, where, and what is right. Not a mistake in what the user asked for."""


@dataclass(frozen=True)
class Lane:
    """One lane of a step as it was read back from the device."""

    job: Job
    prefix: int  # tokens before the step
    length: int  # tokens after it
    ids: np.ndarray  # live cells of its row of the request table
    entries: np.ndarray  # live cells of its row of the read table
    slots: np.ndarray  # [length - prefix], write slots


class Verifier:
    """Checks steps; `checked` counts them."""

    def __init__(self, page_size: int, pages: int, form: Form) -> None:
        self.page_size = page_size
        self.pages = pages
        self.form = form
        self.checked = 0

    def check(self, step: int, v2p: Sequence[int], lanes: Sequence[Lane]) -> None:
        """Raise Mismatch, naming step, lane and column, for the first cell of a step that is wrong.

        `v2p` is the whole table, sentinel included.
        """
        everything: set[int] = set()
        for place, lane in enumerate(lanes):
            where = f"step {step}, lane {place} (request {lane.job.number}, row {lane.job.row.index})"
            ids, entries = lane.ids.tolist(), lane.entries.tolist()
            held = -(-lane.length // self.page_size)
            [right], counters = oracle.read_table(
                [ids], [0], [lane.length], v2p, [[-1] * held], page_size=self.page_size, form=self.form
            )
            _need_equal(f"{where}: read table", "column", entries, right)
            _need_equal(f"{where}: write slots", "new token", lane.slots.tolist(), self._slots(lane, ids, v2p))
            if any(counters.values()):
                raise Mismatch(f"{where}: the oracle counts {counters}; expected no fault")
            if not 0 < min(entries) <= max(entries) <= self.pages:
                column = next(c for c, entry in enumerate(entries) if not 0 < entry <= self.pages)
                raise Mismatch(
                    f"{where}: read table, column {column}: expected a page from 1 to {self.pages}, "
                    f"got {entries[column]}"
                )
            self._need_unmoved(where, lane.job, entries)
            everything.update(entries)
        self._need_distinct(step, lanes, len(everything))
        self.checked += 1

    def _slots(self, lane: Lane, ids: list[int], v2p: Sequence[int]) -> list[int]:
        size = self.page_size
        if self.form == "token":
            tokens = ids[lane.prefix :]
        else:
            tokens = [ids[t // size] * size + t % size for t in range(lane.prefix, lane.length)]
        return oracle.translate(tokens, v2p, page_size=size)[0]

    def _need_unmoved(self, where: str, job: Job, entries: list[int]) -> None:
        # Nothing is moved in this pool, so what a request has written stays where it was, and so do shared pages.
        if job.seen is not None:
            before = job.seen[: len(entries)]
            _need_equal(f"{where}: pages since the last check", "column", entries[: len(before)], before)
        else:
            for block in job.blocks:
                mine = entries[block.first : block.end]
                if block.seen is None:
                    block.seen = mine
                else:
                    _need_equal(f"{where}: shared block {block.number}", "page", mine, block.seen)
        job.seen = entries

    def _need_distinct(self, step: int, lanes: Sequence[Lane], found: int) -> None:
        shared = {block: block.pages for lane in lanes for block in lane.job.blocks}
        own = sum(-(-lane.length // self.page_size) - lane.job.shared for lane in lanes)
        right = own + sum(shared.values())
        if found != right:
            raise Mismatch(
                f"step {step}: the batch's {len(lanes)} lanes read {found} different pages; expected {right}: {own} of "
                f"their own and {right - own} of shared prefixes"
            )


def _need_equal(what: str, unit: str, got: list[int], right: list[int]) -> None:
    if got == right:
        return
    column = next((c for c, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), min(len(got), len(right)))
    shown = [str(cells[column]) if column < len(cells) else "nothing" for cells in (right, got)]
    raise Mismatch(f"{what}, {unit} {column}: expected {shown[0]}, got {shown[1]}")
