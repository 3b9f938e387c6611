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
OPERATIONS = ("extend", "read_table", "assign", "release", "free")
"""What a replay calls, in the order reports tell it."""
POINTS = 600
"""Points that a series is thinned to for figures and JSON."""


@dataclass
class Record:
    """A replay's steps and call times."""

    steps: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in COLUMNS})
    calls: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in OPERATIONS})
    """Host nanoseconds of every call, by operation."""
    first_token_ms: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps["time_ms"])

    def add(self, **values: float) -> None:
        """Take in one step; a value for every column."""
        for name in COLUMNS:
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

    def thinned(self) -> dict[str, list[float]]:
        """Return every column over at most POINTS equal spans of virtual time; spans without a step are left out.

        `began_ms` is when a span's first step begins and `time_ms` when its last one ends, `preempted` is a sum, the
        others are means over steps; `peak_*` are the highest.
        """
        time = self.column("time_ms")
        if not len(time):
            return {}
        spans = min(POINTS, len(time))
        edges = np.linspace(time[0], time[-1], spans + 1)[1:-1]
        place = np.searchsorted(edges, time, side="right")
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        counts = np.diff(np.append(starts, len(time)))
        series: dict[str, list[float]] = {}
        for name in COLUMNS:
            values = self.column(name)
            sums = np.add.reduceat(values, starts)
            told = {
                "began_ms": values[starts],
                "time_ms": values[starts + counts - 1],
                "preempted": sums,
            }
            series[name] = np.round(told.get(name, sums / counts), 3).tolist()
            if name in ("live", "batch", "waiting", "entries"):
                series[f"peak_{name}"] = np.maximum.reduceat(values, starts).tolist()
        return series

    def summary(self, page_size: int) -> dict[str, Any]:
        """Return the figures that need the steps: pages, batch, entries, tail waste, latencies."""
        live, tokens, held = self.column("live"), self.column("tokens"), self.column("row_pages") * page_size
        return {
            "steps": len(self),
            "virtual_s": _number(self.column("time_ms"), np.max) / 1000,
            "peak_pages": int(_number(live, np.max)),
            "mean_pages": round(_number(live, np.mean), 1),
            "peak_cached_pages": int(_number(self.column("cached"), np.max)),
            "peak_batch": int(_number(self.column("batch"), np.max)),
            "mean_batch": round(_number(self.column("batch"), np.mean), 2),
            "peak_entries": int(_number(self.column("entries"), np.max)),
            "mean_entries": round(_number(self.column("entries"), np.mean), 1),
            "tail_waste": round(1 - float(tokens.sum()) / float(held.sum()), 6) if held.sum() else 0.0,
            "first_token_ms": _quantiles(self.first_token_ms),
            "latency_ms": _quantiles(self.latency_ms),
        }


def _number(values: np.ndarray, of: Any) -> float:
    return float(of(values)) if len(values) else 0.0


def _quantiles(values: array[float]) -> dict[str, float]:
    cells = np.array(values) if len(values) else np.zeros(1)
    return {f"p{q}": round(float(np.quantile(cells, q / 100)), 1) for q in (50, 90, 99)}
