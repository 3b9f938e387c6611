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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from pagebind_bench.replay.loop import Loop
    from pagebind_bench.replay.settings import Settings
    from pagebind_bench.replay.traces import Request

GENERATED = 500
"""Requests of a generated trace."""
MOST_REQUESTS = 10_000_000
"""Most requests of one replay; all of them are kept in memory."""
CROWD = 4
"""The default pool holds 1 / CROWD of a full batch of average requests, so that pages do run out."""


class Verify(str, Enum):
    """Which steps are checked."""

    every = "every"
    sample = "sample"
    off = "off"


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
    table and frees what ended. Exit code 1: a table was wrong. Exit code 2: the input was.
    """
    from pagebind.registry import get_backend

    from pagebind_bench.replay.files import need_different, need_writable, write_whole
    from pagebind_bench.replay.generator import generate
    from pagebind_bench.replay.loop import Loop
    from pagebind_bench.replay.report import make_report, render_html, render_json
    from pagebind_bench.replay.settings import Settings, need_numbers
    from pagebind_bench.replay.traces import block_tokens as block_of
    from pagebind_bench.replay.traces import read_trace
    from pagebind_bench.replay.verify import Mismatch

    need_writable("--json", json_)
    need_writable("--html", html)
    need_different(json=json_, html=html)
    need_numbers(cost_step_ms=cost_step_ms, cost_prefill_us=cost_prefill_us, cost_entry_us=cost_entry_us)
    get_backend(backend, device=device)  # a backend that cannot be used is refused before a long trace is read
    if trace is None:
        served = generate(profile, requests or GENERATED, seed, block_tokens)
        block, origin = block_of(served, block_tokens or None)
    else:
        served = read_trace(trace, requests)
        block, origin = block_of(served, block_tokens)
    settings = Settings(
        pages=pages or default_pages(served, page_size, max_batch),
        page_size=page_size,
        max_batch=max_batch,
        max_context=max_context or max(request.tokens for request in served),
        chunk=chunk,
        block_tokens=block,
        form=form.value,
        verify=verify.value,
        sample_every=sample_every,
        cost_step_ms=cost_step_ms,
        cost_prefill_us=cost_prefill_us,
        cost_entry_us=cost_entry_us,
        threads=threads,
    )
    loop = Loop(served, settings, backend=backend, device=device)
    again = reproduce(trace, len(served), profile, seed, loop, settings, block_tokens)
    source = trace.name if trace is not None else f"generated: profile {profile}, seed {seed}"
    errors = Console(stderr=True, soft_wrap=True)
    try:
        with _progress(errors) as bar:
            task = bar.add_task("serving", total=len(served), steps=0)
            loop.run(lambda done, steps: bar.update(task, completed=done, steps=steps))
    except Mismatch as error:
        errors.print(f"[red]wrong:[/red] {str(error).replace('[', chr(92) + '[')}", highlight=False)
        errors.print(f"the replay stopped there and wrote nothing; reproduce: {again}", highlight=False)
        raise typer.Exit(1) from error

    report = make_report(loop, served, source=source, block_origin=origin, reproduce=again)
    _print_report(report)
    # Both are rendered before either is written, so that a failure leaves no half of a pair.
    texts = [(json_, render_json(report) if json_ else ""), (html, render_html(report, loop.record) if html else "")]
    for path, text in texts:
        if path is not None:
            write_whole(path, text)
            typer.echo(f"wrote {path}")


def default_pages(requests: Sequence[Request], page_size: int, max_batch: int) -> int:
    """Return the pages of a pool that is tight for these requests, and holds the largest of them."""
    held = [-(-request.tokens // page_size) for request in requests]
    return max(*held, max_batch * sum(held) // (len(held) * CROWD), 1)


def reproduce(
    trace: Path | None,
    count: int,
    profile: str,
    seed: int,
    loop: Loop,
    settings: Settings,
    asked_block: int | None,
) -> str:
    """Return the command that runs the same replay again, whatever the configuration says by then."""
    words = ["pagebind", "replay"]
    words += [str(trace)] if trace is not None else ["--profile", profile, "--seed", str(seed)]
    # A backend named module:attribute is named so again; any other by the name it has.
    words += ["--backend", loop.backend_name, "--device", str(loop.pool.device), "--requests", str(count)]
    if settings.block_tokens or asked_block == 0:
        words += ["--block-tokens", str(settings.block_tokens)]
    for name in (
        "page_size",
        "pages",
        "max_batch",
        "max_context",
        "chunk",
        "form",
        "verify",
        "sample_every",
        "threads",
    ):
        words += ["--" + name.replace("_", "-"), str(getattr(settings, name))]
    for name in ("cost_step_ms", "cost_prefill_us", "cost_entry_us"):
        words += ["--" + name.replace("_", "-"), f"{getattr(settings, name):g}"]
    return shlex.join(words)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[steps]} steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _print_report(report: dict[str, Any]) -> None:
    console = Console()
    result, checked, backend = report["result"], report["verify"], report["backend"]
    summary = Table(title=f"replay of {report['trace']['source']}", title_justify="left", show_header=False)
    summary.add_column(style="dim")
    summary.add_column()
    pages = report["settings"]["pages"]
    rows = [
        ("backend", f"{backend['name']} {backend['version']}, mode {backend['mode']}, on {backend['device']}"),
        ("requests served", f"{result['served']:,} of {report['trace']['requests']:,}"),
        ("preempted", f"{result['preempted']:,}"),
        ("steps", f"{result['steps']:,} in {report['wall_s']:.1f} s"),
        ("virtual clock", f"{result['virtual_s']:,.1f} s"),
        ("pages, peak and mean", f"{result['peak_pages']:,} and {result['mean_pages']:,.0f} of {pages:,}"),
        ("batch, peak and mean", f"{result['peak_batch']:,} and {result['mean_batch']:,.1f}"),
        ("tail waste", f"{result['tail_waste']:.2%} of the tokens that held pages could hold"),
        ("hit rate", _hit_rate(report)),
        ("verified", f"{checked['checked']:,} of {result['steps']:,} steps; pages balance to zero"),
    ]
    for row in rows:
        summary.add_row(*row)
    console.print(summary)
    times = Table(title="host time of a call, microseconds", title_justify="left")
    times.add_column("operation")
    for column in ("calls", "p50", "p99"):
        times.add_column(column, justify="right")
    for name, told in report["operations"].items():
        times.add_row(name, f"{told['calls']:,.0f}", f"{told['p50_us']:,.1f}", f"{told['p99_us']:,.1f}")
    console.print(times)
    console.print(f"digest: {report['digest']}", highlight=False, soft_wrap=True)
    console.print(f"reproduce: {report['reproduce']}", highlight=False, soft_wrap=True)


def _hit_rate(report: dict[str, Any]) -> str:
    if not report["settings"]["block_tokens"]:
        return f"no prefix cache: {report['trace']['block_origin']}"
    return f"{report['result']['hit_rate']:.2%} of prompt tokens"
