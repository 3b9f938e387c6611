"""Run a loop with a progress bar, and spell the command that runs it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import typer
from pagebind.pool import UnifiedPool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pagebind_bench.replay.settings import Common
from pagebind_bench.replay.verify import Mismatch

COSTS = ("cost_step_ms", "cost_prefill_us", "cost_entry_us")


class Loops(Protocol):
    """A loop that can be run."""

    pool: UnifiedPool

    @property
    def backend_name(self) -> str:
        """What names the backend."""

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Serve every request."""


def run_told(loop: Loops, requests: int, what: str, again: str, errors: Console) -> None:
    """Run a loop and show how far it is; where a table is wrong, say how to see it again and exit with code 1."""
    try:
        with _progress(errors) as bar:
            task = bar.add_task(what, total=requests, steps=0)
            loop.run(lambda done, steps: bar.update(task, completed=done, steps=steps))
    except Mismatch as error:
        errors.print(f"[red]wrong:[/red] {str(error).replace('[', chr(92) + '[')}", highlight=False)
        errors.print(f"the replay stopped there and wrote nothing; reproduce: {again}", highlight=False)
        raise typer.Exit(1) from error


def trace_words(trace: Path | None, profile: str, seed: int) -> list[str]:
    """Return the words of a command that name the trace."""
    return [str(trace)] if trace is not None else ["--profile", profile, "--seed", str(seed)]


def loop_words(loop: Loops, count: int, settings: Common, asked_block: int | None) -> list[str]:
    """Return the words that run a loop again, whatever the configuration says by then."""
    # A backend named module:attribute is named so again; any other by the name it has.
    words = ["--backend", loop.backend_name, "--device", str(loop.pool.device), "--requests", str(count)]
    if settings.block_tokens or asked_block == 0:
        words += ["--block-tokens", str(settings.block_tokens)]
    names = ("page_size", "pages", "max_batch", "max_context", "chunk", "form", "verify", "sample_every", "threads")
    words += [word for name in names if hasattr(settings, name) for word in option(name, getattr(settings, name))]
    for name in COSTS:
        words += option(name, f"{getattr(settings, name):g}")
    return words if settings.speed == 1 else [*words, *option("speed", f"{settings.speed:g}")]


def option(name: str, value: Any) -> list[str]:
    """Return an option as two words."""
    return ["--" + name.replace("_", "-"), str(value)]


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
