"""What `pagebind replay --model` does: one run or both, a table, and the files that were asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from pagebind.errors import InvalidArgument
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from pagebind_bench.replay.cards import Card, card_names, load_card
from pagebind_bench.replay.files import write_texts
from pagebind_bench.replay.model_loop import ModelLoop
from pagebind_bench.replay.model_plots import write_overview
from pagebind_bench.replay.model_report import make_report, render_html, runs_of, title
from pagebind_bench.replay.report import render_json
from pagebind_bench.replay.run import loop_words, option, run_told
from pagebind_bench.replay.settings import ModelSettings
from pagebind_bench.replay.traces import Request

GIB = 2**30
MOST_BYTES = 2**50
"""Largest budget, in bytes."""


class ModelOutputs(NamedTuple):
    """Files to write, where asked for."""

    json: Path | None
    html: Path | None
    figure: Path | None


def need_model(model: str | None, told: Mapping[str, Any]) -> None:
    """Refuse options that only say something of a model, without one."""
    stray = [f"--{name.replace('_', '-')}" for name, value in told.items() if value is not None]
    if model is None and stray:
        raise InvalidArgument(
            f"{', '.join(stray)} goes with --model, which is not given; models: {', '.join(card_names())}"
        )
    if told["compare"] and told["pool"] is not None:
        raise InvalidArgument("--compare runs both pools; leave --pool out")


def parse_budget(text: str | None) -> int:
    """Return bytes of text such as 24GiB."""
    if text is None:
        raise InvalidArgument("--model needs --budget, the bytes for pages of all kinds: pass one, as 24GiB")
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except (ValidationError, OverflowError, ValueError) as error:
        raise InvalidArgument(f"--budget is {text!r}; it must be a size in bytes, as 24GiB or 800MiB") from error
    if not 1 <= size <= MOST_BYTES:
        raise InvalidArgument(f"--budget is {text}, {size} bytes; it must be from 1 byte to {MOST_BYTES // 2**40} TiB")
    return size


def print_cards() -> None:
    """Print every model card: what its layers keep of a token or a request, and where the figures come from."""
    table = Table(title="models", title_justify="left")
    for name in ("model", "full attention", "window", "state"):
        table.add_column(name, no_wrap=name == "model")
    cards = [load_card(name) for name in card_names()]
    for card in cards:
        kv, window, state = card.kv_dtype, card.window, card.state
        table.add_row(
            card.name,
            f"{card.full.layers} layers, {card.full.token_bytes(kv) / 1024:,.4g} KiB/token",
            f"{window.tokens:,} tokens, {window.layers} layers, {window.token_bytes(kv) / 1024:,.4g} KiB/token"
            if window
            else "",
            f"{state.layers} layers, {state.request_bytes / 2**20:,.3g} MiB/request" if state else "",
        )
    console = Console()
    console.print(table)
    for card in cards:
        console.print(f"{card.name}: {card.source}", highlight=False, soft_wrap=True)


def replay_model(
    requests: Sequence[Request],
    settings: Sequence[ModelSettings],
    card: Card,
    outputs: ModelOutputs,
    *,
    backend: str | None,
    device: str | None,
    source: str,
    block_origin: str,
    where: Sequence[str],
    asked_block: int | None,
    errors: Console,
) -> None:
    """Run a model on each of the settings, which differ in their pool alone; print and write what came of it."""
    loops = [ModelLoop(requests, each, card, backend=backend, device=device) for each in settings]
    words = ["pagebind", "replay", *where, *loop_words(loops[0], len(requests), settings[0], asked_block)]
    again = shlex.join([*words, *_model_words(settings)])
    for loop in loops:
        what = f"serving, {loop.settings.pool} pool"
        run_told(loop, len(requests) - loop.refused, what, again, errors)
    report = make_report(loops, requests, source=source, block_origin=block_origin, reproduce=again)
    print_report(report)
    texts = [
        (outputs.json, render_json(report) if outputs.json else ""),
        (outputs.html, render_html(report) if outputs.html else ""),
    ]
    if outputs.figure is not None:
        write_overview(outputs.figure, runs_of(report), report["settings"]["budget"], title(report))
        typer.echo(f"wrote {outputs.figure}")
    write_texts(texts)


def _model_words(settings: Sequence[ModelSettings]) -> list[str]:
    first = settings[0]
    words = [*option("model", first.model), *option("budget", first.budget)]
    words += ["--compare"] if len(settings) > 1 else option("pool", first.pool)
    words += [] if first.real_bytes else ["--no-bytes"]
    for name in ("window_ratio", "state_ratio", "cost_move_us"):
        words += option(name, f"{getattr(first, name):g}")
    return words


def print_report(report: dict[str, Any]) -> None:
    """Print the runs of a report as a table, a column for each."""
    console = Console()
    runs: dict[str, Any] = report["runs"]
    backend = report["backend"]
    console.print(f"replay of {title(report)}", highlight=False)
    console.print(
        f"backend {backend['name']} {backend['version']}, mode {backend['mode']}, on {backend['device']}",
        highlight=False,
    )
    table = Table(show_header=True)
    table.add_column("", style="dim")
    for name in runs:
        table.add_column(name, justify="right")
    for label, tell in _ROWS:
        table.add_row(label, *(tell(told["result"]) for told in runs.values()))
    for kind in next(iter(runs.values()))["sub_pools"]:
        table.add_row(
            f"{kind}: room, peak live, GiB",
            *(
                f"{_gib(told['sub_pools'][kind]['bytes'])}, {_gib(told['result']['kinds'][kind]['peak_live_bytes'])}"
                for told in runs.values()
            ),
        )
    table.add_row(
        "verified steps; pages balance to zero",
        *(f"{told['verify']['checked']:,} of {told['result']['steps']:,}" for told in runs.values()),
    )
    table.add_row("wall time, s", *(f"{told['wall_s']:,.1f}" for told in runs.values()))
    console.print(table)
    for name, told in runs.items():
        console.print(f"digest, {name}: {told['digest']}", highlight=False, soft_wrap=True)
    console.print(f"reproduce: {report['reproduce']}", highlight=False, soft_wrap=True)


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"


_QS = ("p50", "p90")
_ROWS: tuple[tuple[str, Any], ...] = (
    ("requests served", lambda r: f"{r['served']:,}"),
    ("refused, too long for the pool", lambda r: f"{r['refused']:,}"),
    ("preemptions", lambda r: f"{r['preempted']:,}"),
    ("steps", lambda r: f"{r['steps']:,}"),
    ("time to completion, virtual s", lambda r: f"{r['virtual_s']:,.1f}"),
    (
        "first token p50 and p90, virtual s",
        lambda r: " and ".join(f"{r['first_token_ms'][q] / 1000:,.1f}" for q in _QS),
    ),
    ("latency p50 and p90, virtual s", lambda r: " and ".join(f"{r['latency_ms'][q] / 1000:,.1f}" for q in _QS)),
    ("requests at once, mean and peak", lambda r: f"{r['mean_running']:,.1f} and {r['peak_running']:,}"),
    ("live, peak and mean, GiB", lambda r: f"{_gib(r['peak_live_bytes'])} and {_gib(r['mean_live_bytes'])}"),
    ("live share of budget while some wait", lambda r: f"{r['mean_live_share_waiting']:.1%}"),
    ("waste inside the frontiers, mean GiB", lambda r: _gib(r["mean_waste_bytes"])),
    ("moved by relief, pages and GiB", lambda r: f"{r['moved_pages']:,} and {_gib(r['moved_bytes'])}"),
)
