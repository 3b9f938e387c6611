"""Hold a step's read table and write slots against the list oracle and against what the host knows by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pagebind.words import Form
from pagebind_conformance import oracle

from pagebind_bench.replay.job import Job


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
            need_equal(f"{where}: read table", "column", entries, right)
            need_equal(f"{where}: write slots", "new token", lane.slots.tolist(), self.slots(lane, ids, v2p))
            if any(counters.values()):
                raise Mismatch(f"{where}: the oracle counts {counters}; expected no fault")
            if not 0 < min(entries) <= max(entries) <= self.pages:
                column = next(c for c, entry in enumerate(entries) if not 0 < entry <= self.pages)
                raise Mismatch(
                    f"{where}: read table, column {column}: expected a page from 1 to {self.pages}, "
                    f"got {entries[column]}"
                )
            # Nothing is moved in this pool: what a request has written stays where it was.
            self.need_unchanged(where, "page", lane.job, entries)
            everything.update(entries)
        self.need_distinct(step, lanes, len(everything))
        self.checked += 1

    def slots(self, lane: Lane, ids: list[int], v2p: Sequence[int]) -> list[int]:
        """Return the right write slots of a lane."""
        size = self.page_size
        if self.form == "token":
            tokens = ids[lane.prefix :]
        else:
            tokens = [ids[t // size] * size + t % size for t in range(lane.prefix, lane.length)]
        return oracle.translate(tokens, v2p, page_size=size)[0]

    def need_unchanged(self, where: str, what: str, job: Job, entries: list[int]) -> None:
        """Raise Mismatch where the pages (or ids) of a row are not those it had, or not those of its shared blocks."""
        if job.seen is not None:
            before = job.seen[: len(entries)]
            need_equal(f"{where}: {what}s since the last check", "column", entries[: len(before)], before)
        else:
            for block in job.blocks:
                mine = entries[block.first : block.end]
                if block.seen is None:
                    block.seen = mine
                else:
                    need_equal(f"{where}: shared block {block.number}", what, mine, block.seen)
        job.seen = entries

    def need_distinct(self, step: int, lanes: Sequence[Lane], found: int) -> None:
        """Raise Mismatch where the lanes do not read as many different pages as they hold together."""
        shared = {block: block.pages for lane in lanes for block in lane.job.blocks}
        own = sum(-(-lane.length // self.page_size) - lane.job.shared for lane in lanes)
        right = own + sum(shared.values())
        if found != right:
            raise Mismatch(
                f"step {step}: the batch's {len(lanes)} lanes read {found} different pages; expected {right}: {own} of "
                f"their own and {right - own} of shared prefixes"
            )


def need_equal(what: str, unit: str, got: list[int], right: list[int]) -> None:
    """Raise Mismatch for the first cell in which two lists differ."""
    if got == right:
        return
    column = next((c for c, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), min(len(got), len(right)))
    shown = [str(cells[column]) if column < len(cells) else "nothing" for cells in (right, got)]
    raise Mismatch(f"{what}, {unit} {column}: expected {shown[0]}, got {shown[1]}")
