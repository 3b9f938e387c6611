"""The report of a model's replay, of one run or of two beside each other: JSON, and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pagebind_bench.replay import model_plots
from pagebind_bench.replay.model_loop import ModelLoop
from pagebind_bench.replay.model_plots import Run
from pagebind_bench.replay.model_record import summary
from pagebind_bench.replay.record import OPERATIONS
from pagebind_bench.replay.report import about_backend, about_build, about_trace
from pagebind_bench.replay.traces import Request

SCHEMA = 1
"""Version of the JSON's layout."""


def make_report(
    loops: Sequence[ModelLoop], requests: Sequence[Request], *, source: str, block_origin: str, reproduce: str
) -> dict[str, Any]:
    """Return everything there is to tell about the runs, which differ in their pool alone and ended well."""
    first = loops[0]
    card, page_size = first.card, first.settings.page_size
    return {
        "kind": "pagebind replay of a model",
        "schema": SCHEMA,
        **about_build(),
        "backend": about_backend(first.pool, first.pool.tables[first.kinds.owner], first.record),
        "trace": about_trace(requests, source, block_origin),
        "model": {**card.model_dump(exclude_none=True), "page_bytes": card.page_bytes(page_size)},
        "settings": {name: value for name, value in asdict(first.settings).items() if name != "pool"},
        "runs": {loop.settings.pool: _about_run(loop) for loop in loops},
        "reproduce": reproduce,
    }


def _about_run(loop: ModelLoop) -> dict[str, Any]:
    plan, stats = loop.scheduler, loop.pool.stats()
    return {
        "result": {
            "served": loop.served,
            "refused": loop.refused,
            "preempted": loop.preempted,
            "hit_rate": round(plan.hit_tokens / plan.prompt_tokens, 6) if plan.prompt_tokens else 0.0,
            **summary(loop.record, loop.kinds, loop.settings.budget),
        },
        "sub_pools": {
            name: {
                "grows": loop.pool.sub_pools[name].grows,
                "pages": own.capacity,
                "bytes": own.capacity * own.page_bytes,
            }
            for name, own in stats.sub_pools.items()
        },
        "operations": loop.record.operations(),
        "verify": {
            "mode": loop.settings.verify,
            "checked": loop.verifier.checked,
            "stamps_read": loop.verifier.stamped,
            "balanced": True,
        },
        "wall_s": round(loop.wall_s, 3),
        "digest": loop.digest.hexdigest(),
        "series": loop.record.thinned(),
        "series_by_steps": loop.record.thinned(by_steps=True),
    }


def runs_of(report: dict[str, Any]) -> list[Run]:
    """Return what the figures need of a report: they are drawn from it alone."""
    return [
        Run(
            name,
            told["series"],
            told["series_by_steps"],
            told["result"],
            {kind: own["grows"] for kind, own in told["sub_pools"].items()},
        )
        for name, told in report["runs"].items()
    ]


def title(report: dict[str, Any]) -> str:
    """Return one line that says what was replayed."""
    budget = report["settings"]["budget"]
    size = f"{budget / 2**30:,.4g} GiB" if budget >= 2**30 else f"{budget / 2**20:,.4g} MiB"
    return f"{report['model']['name']} on {report['trace']['source']}, {size}"


def render_html(report: dict[str, Any]) -> str:
    """Return one page with figures in it; it loads nothing from anywhere."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pagebind_bench.replay", "templates")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("model.html.j2")
    runs, budget = runs_of(report), report["settings"]["budget"]
    figures = {
        "space": model_plots.space_figure(runs, budget),
        "requests": model_plots.requests_figure(runs),
        "live": model_plots.live_figure(runs, budget),
        "bars": model_plots.bars_figure(runs) if len(runs) > 1 else "",
    }
    called = {name for told in report["runs"].values() for name in told["operations"]}
    operations = [name for name in OPERATIONS if name in called]
    return page.render(report=report, figures=figures, title=title(report), operations=operations)
