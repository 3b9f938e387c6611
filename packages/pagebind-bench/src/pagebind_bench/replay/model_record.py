"""What a model's replay remembers of each step: where every kind's span lies and what of it is live, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pagebind.pool import PoolStats

from pagebind_bench.replay.kinds import Kinds
from pagebind_bench.replay.record import Record, number, quantiles

STEP = (
    "began_ms",  # on the virtual clock
    "time_ms",  # the same, at the end of the step
    "batch",  # lanes
    "running",  # requests
    "waiting",  # requests
    "prefill",  # tokens
    "entries",  # read-table cells that hold a page
    "preempted",  # requests
    "moved_bytes",  # by relief
    "relieved",  # 1 where a frontier retreated to make room
)
SPAN = (
    "live",  # bytes of bound pages
    "first",  # byte at which its span begins
    "end",  # byte past it
    "moved",  # pages that relief moved
)


def column(kind: str, what: str) -> str:
    """Return the name of a kind's column."""
    return f"{kind}.{what}"


def new_record(kinds: Kinds) -> Record:
    """Return an empty record for the kinds of a model."""
    spans = [column(kind, what) for kind in kinds.names for what in SPAN]
    summed = ["preempted", "moved_bytes", "relieved", *(name for name in spans if name.endswith(".moved"))]
    peaks = ["waiting", "batch", *(name for name in spans if name.endswith(".live"))]
    return Record(columns=(*STEP, *spans), summed=tuple(summed), peaks=tuple(peaks))


def span_columns(stats: PoolStats, moved: Mapping[str, int]) -> dict[str, float]:
    """Return a step's values of the columns of every kind; `moved` is in pages."""
    told: dict[str, float] = {}
    for kind, own in stats.sub_pools.items():
        values = (own.live * own.page_bytes, own.first_byte, own.end_byte, moved.get(kind, 0))
        told |= {column(kind, what): value for what, value in zip(SPAN, values, strict=True)}
    return told


def summary(record: Record, kinds: Kinds, budget: int) -> dict[str, Any]:
    """Return the figures of a replay. Bytes, unless a name says otherwise; means are over steps.

    `waste` is what lies inside a kind's frontiers and is not live: holes, or what of a fixed region is free. While
    `waiting` counts the steps in which requests wait for room: there an unused byte is a loss.
    """
    steps = len(record)
    live = {kind: record.column(column(kind, "live")) for kind in kinds.names}
    span = {kind: record.column(column(kind, "end")) - record.column(column(kind, "first")) for kind in kinds.names}
    all_live, all_span = sum(live.values()), sum(span.values())
    waits = record.column("waiting") > 0
    moved = record.column("moved_bytes")
    return {
        "steps": steps,
        "virtual_s": round(number(record.column("time_ms"), np.max) / 1000, 3),
        "mean_running": round(number(record.column("running"), np.mean), 2),
        "peak_running": int(number(record.column("running"), np.max)),
        "steps_waiting": int(waits.sum()),
        "peak_live_bytes": int(number(np.asarray(all_live), np.max)),
        "mean_live_bytes": round(number(np.asarray(all_live), np.mean)),
        "mean_live_share_waiting": round(number(np.asarray(all_live)[waits], np.mean) / budget, 4),
        "peak_span_bytes": int(number(np.asarray(all_span), np.max)),
        "mean_waste_bytes": round(number(np.asarray(all_span - all_live), np.mean)),
        "moved_pages": int(sum(record.column(column(kind, "moved")).sum() for kind in kinds.names)),
        "moved_bytes": int(moved.sum()),
        "steps_relieved": int(record.column("relieved").sum()),
        "most_moved_bytes": int(number(moved, np.max)),
        "kinds": {
            kind: {
                "peak_live_bytes": int(number(live[kind], np.max)),
                "mean_live_bytes": round(number(live[kind], np.mean)),
                "mean_waste_bytes": round(number(span[kind] - live[kind], np.mean)),
                "moved_pages": int(record.column(column(kind, "moved")).sum()),
            }
            for kind in kinds.names
        },
        "first_token_ms": quantiles(record.first_token_ms),
        "latency_ms": quantiles(record.latency_ms),
    }
