"""How a call is timed: medians with their spread, on a GPU by replays of a captured graph, on the CPU by the clock.

    plain                 graph of n calls                                  time / n
    a round               graph of its first n calls, after a rewind        time / n
    restored, cold        graph of n x (restore, flush, call), minus
                          graph of n x (restore, flush)                     difference / n

A round is calls that differ, each of which finds what the one before left: a table that grows by one column a call.
What takes that back, the rewind, is outside of the time. A call that changes its inputs in place is preceded by their
restoring; a cold one by a flush, which writes a buffer of twice the second-level cache. Both stand in a second graph
too, without the call, and what that takes is subtracted, replay by replay. Before each replay the GPU is kept busy
until the host has enqueued all of it, so that no launch of the host's is in the time.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Call = Callable[[], None]
Method = Literal["graph", "graph-difference", "wall", "host-loop"]

CUDA: Any = torch.cuda  # parts of it have no types
LOW, HIGH = 0.1, 0.9
"""The quantiles that a spread is told by."""


@dataclass(frozen=True)
class Times:
    """Microseconds of a call: the median of `repeats` samples, the quantiles around it, `calls` in each sample."""

    p10: float
    p50: float
    p90: float
    repeats: int
    calls: int
    method: Method


def summary(samples: Sequence[float], calls: int, method: Method) -> Times:
    """Return the times of samples, each the microseconds of `calls` calls together."""
    each = np.asarray(samples, dtype=np.float64) / calls
    p10, p50, p90 = (float(np.quantile(each, q)) for q in (LOW, 0.5, HIGH))
    return Times(p10, p50, p90, len(each), calls, method)


def fitting(once_us: float, target_us: float, most: int, fewest: int = 1) -> int:
    """Return how many calls of `once_us` microseconds make a sample of about `target_us`: `fewest` to `most`."""
    return max(fewest, min(most, round(target_us / max(once_us, 1e-3))))


@dataclass(frozen=True)
class Round:
    """Calls that are taken one after another. After the last one `rewind` has to be called, or, if None, nothing."""

    calls: tuple[Call, ...]
    rewind: Call | None = None

    def fitting(self, n: int) -> int:
        """Return how many calls to take where `n` are wanted: within one round, or whole rounds."""
        return min(n, len(self.calls)) if self.rewind else -(-n // len(self.calls)) * len(self.calls)

    def first(self, n: int) -> list[Call]:
        """Return the first `n` calls."""
        return [self.calls[i % len(self.calls)] for i in range(n)]


class GpuTimer:
    """Times calls on one GPU. `repeats` replays a figure; a replay takes about TARGET_US."""

    TARGET_US = 400.0
    MOST_CALLS = 400
    HEAD_CYCLES = 600_000
    """Some 0.3 ms: longer than the host takes to enqueue a graph of MOST_CALLS and two events."""

    def __init__(self, device: torch.device, repeats: int = 25) -> None:
        self.device = device
        self.repeats = repeats
        torch.cuda.set_device(device)  # events and replays are on the current device's stream
        self._stream = CUDA.Stream(device)
        self._l2 = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        self._flushed: torch.Tensor | None = None

    def warm(self) -> None:
        """Bring the clocks up: 0.2 s of work."""
        CUDA._sleep(400_000_000)
        torch.cuda.synchronize(self.device)

    def measure(self, call: Call | Round, restore: Call | None = None, *, cold: bool = False) -> Times:
        """Return the time of a call that has been called once already, so that nothing is left to compile."""
        calls = call if isinstance(call, Round) else Round((call,))
        before = [step for step in (restore, self._flush if cold else None) if step is not None]
        few = calls.fitting(8)
        probe = self._capture([step for one in calls.first(few) for step in (*before, one)], calls.rewind)
        once = self._replay_us(probe, calls.rewind) / few
        n = calls.fitting(fitting(once, self.TARGET_US, self.MOST_CALLS, fewest=2))
        whole = self._capture([step for one in calls.first(n) for step in (*before, one)], calls.rewind)
        if not before:
            samples = [self._replay_us(whole, calls.rewind) for _ in range(self.repeats)]
            return summary(samples, n, "graph")
        part = self._capture(before * n)
        samples = [self._replay_us(whole, calls.rewind) - self._replay_us(part) for _ in range(self.repeats)]
        return summary(samples, n, "graph-difference")

    def host(self, calls: Sequence[Call | Round], times: int = 32) -> list[Times]:
        """Return the host's time of each call, or of each round's.

        They take turns: a sample is `times` of one call, then of the next, so that a slow moment of the host is
        everybody's. The device is idle when a sample begins, its queue is long enough, and a round has been rewound.
        """
        rounds = [call if isinstance(call, Round) else Round((call,)) for call in calls]
        samples: list[list[float]] = [[] for _ in rounds]
        collecting = gc.isenabled()
        gc.disable()
        try:
            for repeat in range(self.repeats + 1):
                for one, mine in zip(rounds, samples, strict=True):
                    if one.rewind is not None:
                        one.rewind()
                    steps = one.first(times)
                    self._wait()
                    begin = time.perf_counter_ns()
                    for call in steps:
                        call()
                    if repeat:  # the first one warms caches
                        mine.append((time.perf_counter_ns() - begin) / 1e3)
        finally:
            self._wait()
            if collecting:
                gc.enable()
        return [summary(mine, times, "host-loop") for mine in samples]

    def launches(self, call: Call) -> int | None:
        """Return the nodes of a graph of one call: kernels, copies and fills; None where torch does not tell."""
        try:
            graph = CUDA.CUDAGraph(keep_graph=True)
            counted = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes
        except (TypeError, OSError, AttributeError):  # an older torch, or a driver that is not found under this name
            return None
        self._record(graph, [call])
        count = ctypes.c_size_t(0)
        status = counted(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
        return int(count.value) if status == 0 else None

    def _flush(self) -> None:
        if self._flushed is None:
            self._flushed = torch.zeros(self._l2 // 4, dtype=torch.int32, device=self.device)
        self._flushed.fill_(1)

    def _capture(self, steps: Sequence[Call], rewind: Call | None = None) -> Any:
        graph = CUDA.CUDAGraph()
        self._record(graph, steps)
        self._replay_us(graph, rewind)  # the first replay uploads it
        return graph

    def _record(self, graph: Any, steps: Sequence[Call]) -> None:
        if self._flush in steps:
            self._flush()  # its buffer is not to be made inside of a capture
        self._wait()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for step in steps:
                    step()
            finally:
                graph.capture_end()
        self._wait()

    def _replay_us(self, graph: Any, rewind: Call | None = None) -> float:
        if rewind is not None:
            rewind()
        begin, end = CUDA.Event(enable_timing=True), CUDA.Event(enable_timing=True)
        CUDA._sleep(self.HEAD_CYCLES)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def _wait(self) -> None:
        torch.cuda.synchronize(self.device)


class CpuTimer:
    """Times calls on the CPU: each sample one call, or as many as make a millisecond where nothing is restored."""

    TARGET_US = 1_000.0
    MOST_CALLS = 100
    FEWEST = 5

    def __init__(self, repeats: int = 25, budget_s: float = 1.5) -> None:
        self.repeats = repeats
        self.budget_s = budget_s
        """A figure stops at this, once it has FEWEST samples."""

    def warm(self) -> None:
        """Nothing to bring up."""

    def measure(self, call: Call | Round, restore: Call | None = None, *, cold: bool = False) -> Times:
        """Return the time of a call; `cold` is not measured on the CPU."""
        assert not cold
        calls = call if isinstance(call, Round) else Round((call,))
        n = calls.fitting(
            1 if restore is not None else fitting(self._once_us(calls.first(1)), self.TARGET_US, self.MOST_CALLS)
        )
        samples: list[float] = []
        end = time.perf_counter() + self.budget_s
        while len(samples) < self.repeats and (len(samples) < self.FEWEST or time.perf_counter() < end):
            for step in (calls.rewind, restore):
                if step is not None:
                    step()
            samples.append(self._once_us(calls.first(n)))
        return summary(samples, n, "wall")

    def launches(self, call: Call) -> None:
        """Nothing is launched on the CPU."""

    def _once_us(self, calls: Sequence[Call]) -> float:
        begin = time.perf_counter_ns()
        for call in calls:
            call()
        return (time.perf_counter_ns() - begin) / 1e3
