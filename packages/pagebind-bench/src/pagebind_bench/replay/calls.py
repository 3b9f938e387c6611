"""The calls that a step makes on the pool: decisions of the scheduler go in, each call is timed.

Page ids stay on the device: those of a cached block are a slice of a copy of the row they came from.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from pagebind.pool import UnifiedPool

from pagebind_bench.replay.job import Job, Leaving, Passing
from pagebind_bench.replay.kinds import Kinds
from pagebind_bench.replay.prefix import Block, Kept

ALIGN = 32
"""Elements; every section of a step's input starts at a multiple of them, as in an engine's packed buffer."""


class Calls:
    """Calls on a pool; `times[operation]` collects the host nanoseconds of each."""

    def __init__(self, pool: UnifiedPool, kinds: Kinds, times: dict[str, array[int]]) -> None:
        self.pool = pool
        self.kinds = kinds
        self.times = times
        self._section = -(-(pool.max_bs + 1) // ALIGN) * ALIGN

    def admit(self, jobs: Sequence[Job]) -> None:
        """Open a row for each job, take a page for its state, and put the prefix that it shares at its head."""
        for job in jobs:
            job.row = self.pool.open_row()
            job.seen = None
        if jobs and self.kinds.state is not None:
            states = torch.empty(len(jobs), dtype=torch.int32, device=self.pool.device)
            self.timed("alloc", self.pool.alloc, len(jobs), name=self.kinds.state, ids=states)
            for place, job in enumerate(jobs):
                job.state = states[place : place + 1]
        sharing = [job for job in jobs if job.shared]
        if sharing:
            self._assign(sharing, [job.blocks for job in sharing])

    def _assign(self, jobs: Sequence[Job], heads: Sequence[Sequence[Block]]) -> None:
        parts = [self._cells(_pages_of(blocks)) for blocks in heads]
        rows, indptr = self.upload([job.row.index for job in jobs], np.cumsum([0, *(part.shape[0] for part in parts)]))
        self.timed("assign", self.pool.assign, rows, torch.cat(parts), indptr)

    def keep(self, job: Job, kept: Kept) -> None:
        """Make what the prefix cache kept of a job's prompt true of its row."""
        if kept.swapped > kept.before:
            # Somebody else's pages hold the same tokens: give back this row's, and read theirs.
            self._free(self._row_pages(job, kept.before, kept.swapped))
            self._assign([job], [[block for block in kept.blocks if block.end <= kept.swapped]])
            job.seen = None
        if kept.end > kept.swapped:
            source = self._row_pages(job, kept.swapped, kept.end)
            for block in kept.new:
                block.handle = (source, block.first - kept.swapped)
                if job.seen is not None and len(job.seen) >= block.end:
                    block.seen = job.seen[block.first : block.end]

    def _row_pages(self, job: Job, first: int, end: int) -> torch.Tensor:
        """Return a copy of the virtual ids of pages `[first, end)` of a row, int32."""
        row, size = self.pool.requests.table[job.row.index], self.pool.page_size
        if self.pool.form == "token":
            return row[first * size : end * size : size] // size
        return row[first:end].clone()

    def _cells(self, pages: torch.Tensor) -> torch.Tensor:
        """Return page ids as cells of the request table, int32."""
        if self.pool.form == "page":
            return pages
        size = self.pool.page_size
        offsets = torch.arange(size, dtype=torch.int32, device=pages.device)
        return (pages[:, None] * size + offsets).flatten()

    def free_blocks(self, blocks: Sequence[Block]) -> None:
        """Free the pages of blocks that the prefix cache has forgotten."""
        if any(block.pages for block in blocks):
            self._free(_pages_of(blocks))

    def _free(self, ids: torch.Tensor) -> None:
        self.timed("free", self.pool.free, ids)

    def pass_window(self, passing: Sequence[Passing]) -> None:
        """Give back the window pages that running rows have passed."""
        if passing:
            rows, begins = self.upload([one.job.row.index for one in passing], [one.begin for one in passing])
            pages = sum(one.pages for one in passing)
            self.timed("evict_window", self.pool.evict_window, rows, begins, pages=pages, name=self.kinds.window)

    def release(self, leaving: Sequence[Leaving]) -> None:
        """Empty the rows of jobs that leave, and free their states; pages of the prefix cache stay."""
        size = self.pool.page_size
        for start in range(0, len(leaving), self.pool.max_bs):
            some = leaving[start : start + self.pool.max_bs]
            rows, lengths, starts = self.upload(
                [one.job.row.index for one in some],
                [one.length for one in some],
                [one.shared * size for one in some],
            )
            pages = {self.kinds.owner: sum(one.pages for one in some)}
            if self.kinds.window is not None:
                pages[self.kinds.window] = sum(one.window for one in some)
            row = [one.job.row for one in some]
            self.timed("release", self.pool.release, row, rows, lengths, starts=starts, pages=pages)
        if leaving and self.kinds.state is not None:
            states = torch.cat([one.job.state for one in leaving])
            self.timed("free", self.pool.free, states, name=self.kinds.state)

    def upload(self, *parts: Any) -> list[torch.Tensor]:
        """Return device copies of int sequences, int32, at most a batch and one long, sent in one transfer."""
        packed = np.zeros((len(parts), self._section), dtype=np.int32)
        for line, part in zip(packed, parts, strict=True):
            line[: len(part)] = part
        sent = torch.from_numpy(packed).to(self.pool.device)
        return [sent[place, : len(part)] for place, part in enumerate(parts)]

    def timed(self, operation: str, call: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Make a call and take its host time."""
        began = time.perf_counter_ns()
        call(*args, **kwargs)
        self.times[operation].append(time.perf_counter_ns() - began)


def _pages_of(blocks: Iterable[Block]) -> torch.Tensor:
    """Return the page ids of blocks end to end, int32; neighbours cut from one copy are taken as one slice."""
    pieces: list[tuple[torch.Tensor, int, int]] = []
    for block in blocks:
        if not block.pages:
            continue
        source, start = block.handle
        if pieces and pieces[-1][0] is source and pieces[-1][2] == start:
            pieces[-1] = (source, pieces[-1][1], start + block.pages)
        else:
            pieces.append((source, start, start + block.pages))
    slices = [source[start:end] for source, start, end in pieces]
    return slices[0] if len(slices) == 1 else torch.cat(slices)
