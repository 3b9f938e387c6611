"""What every loop shares: the virtual clock's way from arrival to arrival, and the look at rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from typing import Protocol

import numpy as np
import torch
from pagebind.pool import UnifiedPool

from pagebind_bench.replay.scheduler import Scheduler
from pagebind_bench.replay.settings import Common


class Steps(Protocol):
    """A loop that is driven."""

    scheduler: Scheduler
    now: float  # virtual milliseconds
    served: int
    wall_s: float

    @property
    def settings(self) -> Common:
        """What it is run with."""

    @property
    def record(self) -> Sized:
        """A row a step."""

    def begin(self) -> None:
        """Prepare the first step."""

    def step(self) -> None:
        """Run one step, and move the clock."""

    def end(self) -> None:
        """See that everything came back."""


def drive(loop: Steps, progress: Callable[[int, int], None]) -> None:
    """Serve every request; `progress(served, steps)` is called after each step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(loop.settings.threads)
    try:
        began = time.perf_counter()
        loop.begin()
        plan = loop.scheduler
        while plan.coming or plan.busy:
            plan.arrive(loop.now)
            if not plan.busy:
                loop.now = plan.coming[0].request.arrival_ms  # nothing to do until the next arrival
                continue
            loop.step()
            progress(loop.served, len(loop.record))
        loop.end()
        loop.wall_s = time.perf_counter() - began
    finally:
        torch.set_num_threads(threads)


def due(settings: Common, number: int) -> bool:
    """Return whether step `number`, from 1, is to be checked."""
    verify = settings.verify
    return verify == "every" or (verify == "sample" and (number - 1) % settings.sample_every == 0)


def live_cells(pool: UnifiedPool, rows: Sequence[int], d_rows: torch.Tensor, counts: Sequence[int]) -> list[np.ndarray]:
    """Return the first `counts[b]` cells of each row of the request table."""
    table = pool.requests.table
    if table.device.type == "cpu":
        view = table.numpy()
        return [view[row, :count] for row, count in zip(rows, counts, strict=True)]
    picked = table[:, : max(counts)].index_select(0, d_rows).cpu().numpy()
    return [line[:count] for line, count in zip(picked, counts, strict=True)]
