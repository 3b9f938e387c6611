"""The command `pagebind replay`: read or generate a trace, run the loop over it, and tell what happened."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from pagebind_bench.replay.traces import Request

GENERATED = 500
"""Requests of a generated trace."""
MOST_REQUESTS = 10_000_000
"""Most requests of one replay; all of them are kept in memory."""
MODELS = "Models"
"""Heading of the options that go with --model."""
WINDOW_RATIO, STATE_RATIO = 0.8, 0.9
"""The split of a static pool; see `pagebind_bench.replay.split`."""
COST_MOVE_US = 0.57
"""What moving a MiB costs: 2 MiB read and written at 3.7 TB/s, as measured on an H200."""
CROWD = 4
"""The default pool holds 1 / CROWD of a full batch of average requests, so that pages do run out."""


class Verify(str, Enum):
    """Which steps are checked."""

    every = "every"
    sample = "sample"
    off = "off"


class Pool(str, Enum):
    """How a model's kinds of page share the budget."""

    unified = "unified"
    static = "static"


class TableForm(str, Enum):
    """Unit of the request table's ids."""

    page = "page"
    token = "token"


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="CSV or JSONL, plain or gzipped. Left out: one is generated.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="A backend's name or module:attribute. Default: as configured.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: as configured.")] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_REQUESTS, help=f"Serve the first N. Default: all; {GENERATED} when generated."),
    ] = None,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16,
    pages: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Pages of the pool. Default: 1/{CROWD} of a full batch, but the largest request fits."
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 64,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens a row of the request table holds. Default: the largest request's.")
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Prefill tokens a step, over all requests.")] = 2048,
    form: Annotated[TableForm, typer.Option(help="Unit of the request table's ids.")] = TableForm.page,
    block_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Tokens of a hashed block; 0 shares no prefix. Default: inferred from the trace."),
    ] = None,
    verify: Annotated[Verify, typer.Option(help="Steps whose table and write slots are checked.")] = Verify.sample,
    sample_every: Annotated[int, typer.Option(min=1, help="With --verify sample: check each k-th step.")] = 16,
    profile: Annotated[str, typer.Option(help="Generated traffic: chat, code, prefix-chat or agent.")] = "chat",
    seed: Annotated[int, typer.Option(min=0, help="Seed of a generated trace.")] = 0,
    cost_step_ms: Annotated[float, typer.Option(min=0.001, help="Virtual milliseconds a step.")] = 20.0,
    cost_prefill_us: Annotated[float, typer.Option(min=0, help="Virtual microseconds a prefill token.")] = 50.0,
    cost_entry_us: Annotated[float, typer.Option(min=0, help="Virtual microseconds a read-table entry.")] = 0.5,
    speed: Annotated[float, typer.Option(min=0.001, help="Arrivals this many times as fast as in the trace.")] = 1.0,
    model: Annotated[
        str | None,
        typer.Option(help="Take pages of every kind this model has, out of --budget.", rich_help_panel=MODELS),
    ] = None,
    pool: Annotated[
        Pool | None,
        typer.Option(help="One budget for all kinds, or split up front. Default: unified.", rich_help_panel=MODELS),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run both pools, and draw them side by side.", rich_help_panel=MODELS)
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="Bytes for the pages of all kinds, as 24GiB.", rich_help_panel=MODELS)
    ] = None,
    no_bytes: Annotated[
        bool,
        typer.Option("--no-bytes", help="Plan the tables without the buffer: any budget.", rich_help_panel=MODELS),
    ] = False,
    window_ratio: Annotated[
        float | None,
        typer.Option(
            min=0.001, help=f"Static: window tokens / full tokens. Default: {WINDOW_RATIO}.", rich_help_panel=MODELS
        ),
    ] = None,
    state_ratio: Annotated[
        float | None,
        typer.Option(
            min=0.001, help=f"Static: state bytes / other bytes. Default: {STATE_RATIO}.", rich_help_panel=MODELS
        ),
    ] = None,
    cost_move_us: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"Virtual microseconds a MiB that relief moves. Default: {COST_MOVE_US}.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw one figure there: .png, .svg or .pdf.", rich_help_panel=MODELS)
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="List the model cards, and leave.", rich_help_panel=MODELS)
    ] = False,
    threads: Annotated[
        int,
        typer.Option(
            min=1, max=os.cpu_count() or 1, help="Threads torch may use for one operation on the CPU; these are small."
        ),
    ] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="Write everything there as JSON.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with figures there.")] = None,
) -> None:
    """Replay a serving trace through real page tables, and check them against plain Python lists.

    Requests arrive on a virtual clock and are served by continuous batching with chunked prefill, preemption and, where
    the trace has block hashes, a prefix cache. Every step takes and binds pages, emits write slots, builds the read
    table and frees what ended. With --model the pages of every kind of that model's layers (full attention, window,
    state) come out of one budget. Exit code 1: a table was wrong. Exit code 2: the input was.
    """
    from pagebind.errors import InvalidArgument
    from pagebind.registry import get_backend

    from pagebind_bench.replay.cards import load_card
    from pagebind_bench.replay.files import need_different, need_writable, write_texts
    from pagebind_bench.replay.generator import generate
    from pagebind_bench.replay.loop import Loop
    from pagebind_bench.replay.model_command import ModelOutputs, need_model, parse_budget, print_cards, replay_model
    from pagebind_bench.replay.model_plots import need_format
    from pagebind_bench.replay.report import make_report, render_html, render_json
    from pagebind_bench.replay.run import loop_words, run_told, trace_words
    from pagebind_bench.replay.settings import ModelSettings, Settings, need_numbers
    from pagebind_bench.replay.told import print_report
    from pagebind_bench.replay.traces import block_tokens as block_of
    from pagebind_bench.replay.traces import read_trace

    if models:
        print_cards()
        return
    for_models = {
        "pool": pool,
        "compare": compare or None,
        "budget": budget,
        "no_bytes": no_bytes or None,
        "window_ratio": window_ratio,
        "state_ratio": state_ratio,
        "cost_move_us": cost_move_us,
        "figure": figure,
    }
    need_model(model, for_models)
    if model is not None and pages is not None:
        raise InvalidArgument("--pages sizes a pool of one kind of page; with --model pass --budget instead")
    need_writable("--json", json_)
    need_writable("--html", html)
    need_writable("--figure", figure)
    need_format(figure)
    need_different(json=json_, html=html, figure=figure)
    costs = {"cost_step_ms": cost_step_ms, "cost_prefill_us": cost_prefill_us, "cost_entry_us": cost_entry_us}
    need_numbers(**costs, speed=speed)
    card = None if model is None else load_card(model)
    budget_bytes = None if card is None else parse_budget(budget)
    get_backend(backend, device=device)  # a backend that cannot be used is refused before a long trace is read
    if trace is None:
        served = generate(profile, requests or GENERATED, seed, block_tokens)
        block, origin = block_of(served, block_tokens or None)
    else:
        served = read_trace(trace, requests)
        block, origin = block_of(served, block_tokens)
    if speed != 1:
        served = [request._replace(arrival_ms=request.arrival_ms / speed) for request in served]
    common: dict[str, Any] = {
        "page_size": page_size,
        "max_batch": max_batch,
        "max_context": max_context or max(request.tokens for request in served),
        "chunk": chunk,
        "block_tokens": block,
        "form": form.value,
        "verify": verify.value,
        "sample_every": sample_every,
        **costs,
        "speed": speed,
        "threads": threads,
    }
    source = trace.name if trace is not None else f"generated: profile {profile}, seed {seed}"
    errors = Console(stderr=True, soft_wrap=True)
    where = trace_words(trace, profile, seed)
    if card is not None and budget_bytes is not None:
        runs: tuple[Any, ...] = ("unified", "static") if compare else ((pool or Pool.unified).value,)
        told: dict[str, Any] = {
            "model": model,
            "budget": budget_bytes,
            "real_bytes": not no_bytes,
            "window_ratio": WINDOW_RATIO if window_ratio is None else window_ratio,
            "state_ratio": STATE_RATIO if state_ratio is None else state_ratio,
            "cost_move_us": COST_MOVE_US if cost_move_us is None else cost_move_us,
        }
        need_numbers(cost_move_us=told["cost_move_us"])
        replay_model(
            served,
            [ModelSettings(**common, **told, pool=run) for run in runs],
            card,
            ModelOutputs(json_, html, figure),
            backend=backend,
            device=device,
            source=source,
            block_origin=origin,
            where=where,
            asked_block=block_tokens,
            errors=errors,
        )
        return
    settings = Settings(pages=pages or default_pages(served, page_size, max_batch), **common)
    loop = Loop(served, settings, backend=backend, device=device)
    again = shlex.join(["pagebind", "replay", *where, *loop_words(loop, len(served), settings, block_tokens)])
    run_told(loop, len(served), "serving", again, errors)
    report = make_report(loop, served, source=source, block_origin=origin, reproduce=again)
    print_report(report)
    # Both are rendered before either is written, so that a failure leaves no half of a pair.
    texts = [(json_, render_json(report) if json_ else ""), (html, render_html(report, loop.record) if html else "")]
    write_texts(texts)


def default_pages(requests: Sequence[Request], page_size: int, max_batch: int) -> int:
    """Return the pages of a pool that is tight for these requests, and holds the largest of them."""
    held = [-(-request.tokens // page_size) for request in requests]
    return max(*held, max_batch * sum(held) // (len(held) * CROWD), 1)
