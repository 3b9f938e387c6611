"""What a run says on the terminal: progress, a table for each operation, what was promised, the best launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pagebind_bench.bench.evidence import Evidence
from pagebind_bench.bench.promises import Verdict
from pagebind_bench.bench.record import Row, find

Told = Callable[[int, str], None]
WIDTH = 150
"""Columns of tables that go into a file or a pipe."""


@contextmanager
def progress(cases: int) -> Iterator[Told]:
    """Show how far a run is: a bar on a terminal, else a line a case."""
    console = Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        last = -1

        def line(done: int, text: str) -> None:
            nonlocal last
            if done != last:
                console.print(f"{done + 1}/{cases} {text}", highlight=False)
                last = done

        yield line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("limits", total=cases)
        yield lambda done, text: bar.update(task, completed=done, description=text)


def console() -> Console:
    """Return where tables go: wide enough for them where it is no terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDTH)


def rows(console: Console, measured: Sequence[Row]) -> None:
    """Print a table for each operation: a line a case and contender, with the ratio to each peer's time."""
    for op in dict.fromkeys(row["op"] for row in measured if row["groups"] != "limit"):
        table = Table(title=f"{op}: medians, microseconds a call", title_justify="left")
        for column in ("case", "by", "time", "10th to 90th", "x floor", "% ceiling", "/ sglang", "host", "launches"):
            table.add_column(column, justify="left" if column in {"case", "by"} else "right")
        before = None
        for row in measured:
            if row["op"] != op or row["metric"] != "time":
                continue
            case = row["label"] if row["case"] != before else ""
            before = row["case"]
            if row.get("p50") is None:
                table.add_row(case, row["contender"], f"[dim]{row['reason']}[/dim]")
                continue
            peer = find(measured, op=op, case=row["case"], metric="time", contender="sglang")
            host = find(measured, op=op, case=row["case"], metric="host", contender=row["contender"])
            table.add_row(
                case,
                row["contender"],
                f"{row['p50']:,.2f}",
                f"{row['p10']:,.2f} to {row['p90']:,.2f}",
                _ratio(row["p50"], row.get("floor_us")),
                "" if row.get("percent_of_ceiling") is None else f"{row['percent_of_ceiling']:.1f}",
                "" if peer is None or peer is row else _ratio(row["p50"], peer["p50"]),
                "" if host is None else f"{host['p50']:,.1f}",
                "" if row.get("launches") is None else str(row["launches"]),
            )
        console.print(table)


def limits(console: Console, measured: Iterable[Row]) -> None:
    """Print floor and ceiling."""
    for row in measured:
        if row["op"] == "floor" and row["metric"] == "time":
            console.print(f"floor, {row['contender']} kernel, {row['l2']} cache: {row['p50']:.2f} us", highlight=False)
        if row["op"] == "ceiling":
            console.print(f"ceiling, {row['contender']}: {row['bytes_per_s'] / 1e12:.3f} TB/s", highlight=False)


def promises(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print what was promised and what became of it."""
    if not verdicts:
        return
    table = Table(title="what was promised: own time over the other's", title_justify="left")
    for column in ("promise", "by", "against", "own us", "other us", "ratio", "at most", ""):
        table.add_column(column, justify="right" if column in {"own us", "other us", "ratio", "at most"} else "left")
    for verdict in verdicts:
        promise = verdict.promise
        table.add_row(
            verdict.what,
            verdict.contender,
            promise.against,
            f"{verdict.own_us:,.2f}",
            f"{verdict.other_us:,.2f}",
            f"{verdict.ratio:.3f}",
            f"{promise.most:.3f}",
            "[green]kept[/green]" if verdict.kept else "[red]not kept[/red]",
        )
    console.print(table)


def launches(console: Console, best: Sequence[tuple[Row, Row | None]]) -> None:
    """Print the fastest launch of each case of a sweep beside the shipped one."""
    table = Table(title="best launches", title_justify="left")
    for column in ("case", "by", "threads", "programs", "us", "shipped us", "best over shipped"):
        table.add_column(column, justify="left" if column in {"case", "by"} else "right")
    for row, shipped in best:
        own = "" if shipped is None else f"{shipped['p50']:.2f}"
        ratio = "" if shipped is None else f"{row['p50'] / shipped['p50']:.3f}"
        words = [f"{row['op']} {row['label']}", row["contender"], row["threads"], row["programs"], f"{row['p50']:.2f}"]
        table.add_row(*map(str, words), own, ratio)
    console.print(table)


def reports(console: Console, evidence: Mapping[str, Evidence], common: Mapping[str, Any]) -> None:
    """Print what lets speeds be shown, and where they were taken."""
    for name, found in evidence.items():
        commit = f", commit {found.commit[:12]}" if found.commit else ""
        console.print(f"{name}: green report {found.path}{commit}", soft_wrap=True, highlight=False)
    console.print(f"on {common['device']}, torch {common['torch']}, run {common['run']}", highlight=False)


def _ratio(value: float, other: float | None) -> str:
    return "" if other is None or not math.isfinite(other) or other <= 0 else f"{value / other:.2f}"
