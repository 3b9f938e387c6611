"""The report of a replay: one dictionary, which becomes JSON and a self-contained HTML page."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import torch
from pagebind.pool import UnifiedPool
from pagebind.words import PageTables

from pagebind_bench import __version__
from pagebind_bench.replay import plots
from pagebind_bench.replay.loop import Loop
from pagebind_bench.replay.record import Record
from pagebind_bench.replay.traces import Request

SCHEMA = 1
"""Version of the JSON's layout."""
ENTRY = {"relief": "compact", "evict_window": "evict"}
"""Operations by the name of what a replay calls, where they differ."""


def make_report(
    loop: Loop, requests: Sequence[Request], *, source: str, block_origin: str, reproduce: str
) -> dict[str, Any]:
    """Return everything there is to tell about a replay that ended well."""
    pool, plan = loop.pool, loop.scheduler
    result = {
        "served": loop.served,
        "preempted": loop.preempted,
        "hit_rate": round(plan.hit_tokens / plan.prompt_tokens, 6) if plan.prompt_tokens else 0.0,
        "prompt_tokens": plan.prompt_tokens,
        "hit_tokens": plan.hit_tokens,
        **loop.record.summary(pool.page_size),
    }
    return {
        "kind": "pagebind replay",
        "schema": SCHEMA,
        **about_build(),
        "backend": about_backend(pool, loop.tables, loop.record),
        "trace": about_trace(requests, source, block_origin),
        "settings": asdict(loop.settings),
        "result": result,
        "operations": loop.record.operations(),
        "verify": {"mode": loop.settings.verify, "checked": loop.verifier.checked, "balanced": True},
        "wall_s": round(loop.wall_s, 3),
        "digest": loop.digest.hexdigest(),
        "reproduce": reproduce,
        "series": loop.record.thinned(),
    }


def about_build() -> dict[str, Any]:
    """Return when a report was made, and with which versions."""
    return {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "pagebind": version("pagebind"),
            "pagebind-bench": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def about_backend(pool: UnifiedPool, tables: PageTables, record: Record) -> dict[str, Any]:
    """Return what ran the calls of a replay, and where."""
    device = pool.device
    return {
        "name": pool.backend.name,
        "version": pool.backend.version,
        "mode": pool.backend.modes[device.type],
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "index_dtype": str(tables.v2p.dtype).removeprefix("torch."),
        "composed": [name for name, _ in record.called() if ENTRY.get(name, name) not in pool.backend.planners],
    }


def about_trace(requests: Sequence[Request], source: str, block_origin: str) -> dict[str, Any]:
    """Return what was replayed."""
    return {
        "source": source,
        "requests": len(requests),
        "input_tokens": sum(request.input_tokens for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "span_s": round(requests[-1].arrival_ms / 1000, 3),
        "block_origin": block_origin,
    }


def render_json(report: dict[str, Any]) -> str:
    """Return the report as JSON."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def render_html(report: dict[str, Any], record: Record) -> str:
    """Return one page with figures in it; it loads nothing from anywhere."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pagebind_bench.replay", "templates")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("replay.html.j2")
    series, pages = report["series"], report["settings"]["pages"]
    figures = {
        "pages": plots.pages(series, pages),
        "batch": plots.batch(series, report["settings"]["max_batch"]),
        "entries": plots.entries(series),
        "times": plots.times(record),
    }
    return page.render(report=report, figures=figures)
