"""What a replay remembers: a row a step, the time of every call, and the summary that is made of both."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COLUMNS = (
    "began_ms",  # on the virtual clock
    "time_ms",  # the same, at the end of the step
    "live",  # pages that are bound
    "cached",  # those that belong to the prefix cache
    "idle",  # those that no running request uses: they can be evicted
    "batch",  # lanes
    "running",  # requests
    "waiting",  # requests
    "prefill",  # tokens
    "entries",  # read-table cells
    "tokens",  # in the rows of running requests
    "row_pages",  # that these rows hold; a shared page counts in each
    "preempted",  # requests
)
OPERATIONS = ("relief", "alloc", "extend", "read_table", "assign", "evict_window", "release", "free")
"""What a replay calls, in the order reports tell it."""
POINTS = 600
"""Points that a series is thinned to for figures and JSON."""


@dataclass
class Record:
    """A replay's steps and call times. Over a span of steps `summed` columns are added up, `peaks` told beside."""

    columns: tuple[str, ...] = COLUMNS
    summed: tuple[str, ...] = ("preempted",)
    peaks: tuple[str, ...] = ("live", "batch", "waiting", "entries")
    steps: dict[str, array[float]] = field(init=False)
    calls: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in OPERATIONS})
    """Host nanoseconds of every call, by operation."""
    first_token_ms: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        self.steps = {name: array("d") for name in self.columns}

    def __len__(self) -> int:
        return len(self.steps["time_ms"])

    def add(self, **values: float) -> None:
        """Take in one step; a value for every column."""
        for name in self.columns:
            self.steps[name].append(values[name])

    def column(self, name: str) -> np.ndarray:
        """Return one column, float64 `[steps]`."""
        return np.frombuffer(self.steps[name], dtype=np.float64) if len(self) else np.zeros(0)

    def called(self) -> list[tuple[str, array[int]]]:
        """Return the operations that were called, with their times."""
        return [(name, times) for name, times in self.calls.items() if times]

    def operations(self) -> dict[str, dict[str, float]]:
        """Return calls, and p50, p99 and total of the host time of each operation, in microseconds."""
        told = {}
        for name, nanoseconds in self.called():
            spent = np.frombuffer(nanoseconds, dtype=np.int64) / 1000
            told[name] = {
                "calls": len(spent),
                "p50_us": round(float(np.quantile(spent, 0.5)), 2),
                "p99_us": round(float(np.quantile(spent, 0.99)), 2),
                "total_us": round(float(spent.sum()), 1),
            }
        return told

    def thinned(self, *, by_steps: bool = False) -> dict[str, list[float]]:
        """Return every column over at most POINTS equal spans of virtual time, or of steps; empty spans are left out.

        Columns are means over a span, but the times of its first and last step, and sums and peaks where asked.
        """
        time = self.column("time_ms")
        if not len(time):
            return {}
        along = np.arange(len(time), dtype=np.float64) if by_steps else time
        edges = np.linspace(along[0], along[-1], min(POINTS, len(time)) + 1)[1:-1]
        place = np.searchsorted(edges, along, side="right")
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        counts = np.diff(np.append(starts, len(time)))
        series: dict[str, list[float]] = {"steps": counts.tolist()} if by_steps else {}
        for name in self.columns:
            values = self.column(name)
            sums = np.add.reduceat(values, starts)
            told = values[starts] if name == "began_ms" else values[starts + counts - 1]
            if name not in ("began_ms", "time_ms"):
                told = sums if name in self.summed else sums / counts
            series[name] = np.round(told, 3).tolist()
            if name in self.peaks:
                series[f"peak_{name}"] = np.maximum.reduceat(values, starts).tolist()
        return series

    def summary(self, page_size: int) -> dict[str, Any]:
        """Return the figures that need the steps: pages, batch, entries, tail waste, latencies."""
        live, tokens, held = self.column("live"), self.column("tokens"), self.column("row_pages") * page_size
        return {
            "steps": len(self),
            "virtual_s": number(self.column("time_ms"), np.max) / 1000,
            "peak_pages": int(number(live, np.max)),
            "mean_pages": round(number(live, np.mean), 1),
            "peak_cached_pages": int(number(self.column("cached"), np.max)),
            "peak_batch": int(number(self.column("batch"), np.max)),
            "mean_batch": round(number(self.column("batch"), np.mean), 2),
            "peak_entries": int(number(self.column("entries"), np.max)),
            "mean_entries": round(number(self.column("entries"), np.mean), 1),
            "tail_waste": round(1 - float(tokens.sum()) / float(held.sum()), 6) if held.sum() else 0.0,
            "first_token_ms": quantiles(self.first_token_ms),
            "latency_ms": quantiles(self.latency_ms),
        }


def number(values: np.ndarray, of: Any) -> float:
    """Return `of(values)`, 0 where there are none."""
    return float(of(values)) if len(values) else 0.0


def quantiles(values: array[float]) -> dict[str, float]:
    """Return p50, p90 and p99, 0 where there are no values."""
    cells = np.array(values) if len(values) else np.zeros(1)
    return {f"p{q}": round(float(np.quantile(cells, q / 100)), 1) for q in (50, 90, 99)}
