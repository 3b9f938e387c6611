"""The command `pagebind bench`: refuse without a conformance report, measure, record, tell; and draw from a CSV."""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    import torch

    from pagebind_bench.bench.evidence import Evidence
    from pagebind_bench.bench.sglang import Sglang
    from pagebind_bench.bench.timing import CpuTimer, GpuTimer

PEERS = ("sglang", "published")
QUICK_REPEATS, SWEEP_REPEATS, REPEATS = 9, 9, 25

app = typer.Typer(invoke_without_command=True, help="Measure what operations cost, beside peers and limits.")


@app.callback()
def bench(
    context: typer.Context,
    op: Annotated[list[str] | None, typer.Option(help="An operation; may be repeated. Default: all.")] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="A backend's name or module:attribute; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: as configured.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="sglang or published; may be repeated. Default: what can be had.")
    ] = None,
    sglang: Annotated[
        Path | None, typer.Option(help="SGLang's wheel, or a folder it is unpacked in. Default: where it is installed.")
    ] = None,
    case: Annotated[str, typer.Option(help="Only cases whose op/case has this in it.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A few cases, a minute on two cores.")] = False,
    promised: Annotated[bool, typer.Option("--promised", help="Only cases that a promise is about.")] = False,
    grid_sweep: Annotated[bool, typer.Option("--grid-sweep", help="Every launch of a few shapes instead.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write rows there; one that exists is added to.")] = None,
    report: Annotated[
        list[Path] | None, typer.Option(help="A conformance report of this build; may be repeated.")
    ] = None,
    report_dir: Annotated[
        Path | None, typer.Option(help="Folder of reports. Default: conformance/reports of the checkout.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch on the CPU. Default: its own.")] = None,
    repeats: Annotated[int | None, typer.Option(min=3, help="Samples a figure.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0, help="Begin no case after so many seconds.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit that rows name. Default: that of the directory.")] = None,
) -> None:
    """Measure operations; each time stands beside peers, an empty kernel and a plain copy of the same run.

    Refuses without a green conformance report of the same build for each backend. Exit code 1: a contender was wrong.
    Exit code 2: the input was, or there is no report.
    """
    if context.invoked_subcommand is not None:
        return
    import torch

    from pagebind_bench.bench import cases, promises, record, runner, tell
    from pagebind_bench.bench.lab import Fault, Lab
    from pagebind_bench.bench.timing import CpuTimer, GpuTimer

    began = time.perf_counter()
    ops = _chosen_ops(op, cases.CASES)
    if promised + quick + grid_sweep > 1:
        _refuse("--promised, --quick and --grid-sweep each choose the cases: pass one of them")
    group = "sweep" if grid_sweep else "quick" if quick else "promise" if promised else None
    wanted = cases.chosen(ops, group=group, named=case)
    _need_cases(wanted, case)
    if csv is not None:
        record.need_columns(csv)
    backends, where, evidence = _backends(backend, device, report, report_dir)
    if grid_sweep and where.type != "cuda":
        _refuse(f"--grid-sweep needs a GPU: launches mean nothing on {where}; leave it out, or pass --device cuda")
    if threads is not None:
        torch.set_num_threads(threads)
    lab = Lab(where, tuple(backends), _sglang(peer, sglang), _published(peer, where), _bare(where))
    count = repeats or (SWEEP_REPEATS if grid_sweep else QUICK_REPEATS if quick else REPEATS)
    timer: GpuTimer | CpuTimer = (
        GpuTimer(where, count) if where.type == "cuda" else CpuTimer(count, 0.5 if quick else 1.5)
    )
    again = shlex.join(
        [
            *("pagebind", "bench", *_options(op=op, backend=backend or [b.name for b in backends], peer=peer)),
            *_options(device=[where], sglang=[sglang], case=[case or None], repeats=[repeats], threads=[threads]),
            *_options(report=report, report_dir=[report_dir], quick=quick, promised=promised, grid_sweep=grid_sweep),
        ]
    )
    common = record.environment(where, commit, again)
    left = 0
    try:
        with record.Recorder(csv, common) as recorder, tell.progress(len(wanted)) as told:
            limits = runner.measure_limits(timer, lab, recorder, triton=where.type == "cuda" and _has_triton())
            run = runner.Run(lab, timer, recorder, evidence, limits)
            for number, one in enumerate(wanted):
                if time_limit is not None and time.perf_counter() - began > time_limit:
                    left = len(wanted) - number
                    break
                told(number, f"{one.op} {one.id}")
                (run.sweep if grid_sweep else run.case)(one, partial(told, number))
    except Fault as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]wrong:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from error

    console = tell.console()
    tell.limits(console, recorder.rows)
    if grid_sweep:
        tell.launches(console, runner.best(recorder.rows))
    else:
        tell.rows(console, recorder.rows)
        tell.promises(console, list(promises.verdicts(recorder.rows, evidence, where.type)))
    tell.reports(console, evidence, common)
    if left:
        console.print(f"{left} case(s) were left out: the time limit of {time_limit:g} s was over", highlight=False)
    if csv is not None:
        console.print(f"wrote {csv}; draw it: pagebind bench plot {csv}", soft_wrap=True, highlight=False)
    console.print(f"reproduce: {again}", soft_wrap=True, highlight=False)


@app.command()
def plot(
    csv: Annotated[Path, typer.Argument(help="A CSV that pagebind bench wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the figures. Default: that of the CSV.")] = None,
    kind: Annotated[str, typer.Option(help="svg, png or pdf.")] = "svg",
) -> None:
    """Draw the figures of a CSV: cost along each axis, skew, host time, percent of the ceiling, sweeps."""
    from pagebind.operation import need_choice

    from pagebind_bench.bench.plots import draw_all

    need_choice("--kind", kind, ("svg", "png", "pdf"))
    folder = out or csv.parent
    if not folder.is_dir():
        _refuse(f"--out is {folder}, which is no folder; make it, or name another")
    written, left_out = draw_all(csv, folder, kind)
    for path in written:
        typer.echo(f"wrote {path}")
    for reason in left_out:
        typer.echo(f"not drawn: {reason}")


@app.command()
def table(
    csv: Annotated[Path, typer.Argument(help="A CSV that pagebind bench wrote.")],
    readme: Annotated[Path | None, typer.Option(help="Page with the markers of the table: check it.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Replace the table in the page.")] = False,
) -> None:
    """Render what was promised, and what became of it, as Markdown: to the terminal, or between markers of a page."""
    from pagebind_conformance.reporting.markers import replaced

    from pagebind_bench.bench import page

    rendered = page.render(csv)
    if readme is None:
        if write:
            _refuse("--write needs --readme FILE, the page to write")
        typer.echo(rendered, nl=False)
        return
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        _refuse(f"--readme is {readme}, which cannot be read: {error.strerror}")
    wanted = replaced(text, page.BEGIN, page.END, rendered, str(readme))
    if write:
        readme.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        typer.echo(f"{readme} shows another table than {csv}; render it anew with --write", err=True)
        raise typer.Exit(1)


# ---- what is measured ------------------------------------------------------------------------------------------------


def _chosen_ops(asked: list[str] | None, known: Iterable[str]) -> list[str]:
    from pagebind.errors import did_you_mean

    names = list(known)
    for name in asked or []:
        if name not in names:
            _refuse(f"--op is {name!r}, which has no case; operations: {', '.join(names)}{did_you_mean(name, names)}")
    return list(dict.fromkeys(asked)) if asked else names


def _need_cases(wanted: list[Any], named: str) -> None:
    if not wanted:
        _refuse(f"no case of this set has {named!r} in its name; leave --case out to have all of them")


def _backends(
    asked: list[str] | None, device: str | None, reports: list[Path] | None, folder: Path | None
) -> tuple[list[Any], torch.device, dict[str, Evidence]]:
    """Return the backends, their device, and the report of each: no backend gets further without one."""
    from pagebind.config import resolve
    from pagebind.registry import settle

    from pagebind_bench.bench.evidence import filed_reports, need_report

    if folder is not None and not folder.is_dir():
        _refuse(f"--report-dir is {folder}, which is no folder; name one with conformance reports")
    for path in reports or []:
        if not path.is_file():
            _refuse(f"--report is {path}, which does not exist; name a report that the suite wrote")
    named = [] if folder is None else sorted(folder.rglob("*.json"))
    searched = [*(reports or []), *named] or filed_reports()
    found: list[Any] = []
    evidence: dict[str, Evidence] = {}
    where: torch.device | None = None
    for name in dict.fromkeys(asked) if asked else [None]:
        config = resolve(backend=name, device=device)
        record, its_device = settle(config.backend, config.device)
        if where is not None and its_device != where:
            _refuse(f"backend {record.name!r} runs on {its_device}, the ones before it on {where}: pass --device")
        if record.name in evidence:
            _refuse(f"two of the backends are named {record.name!r}; measure them one after another")
        where = its_device
        evidence[record.name] = need_report(record, config.backend.value, where.type, searched)
        found.append(record)
    assert where is not None
    return found, where, evidence


def _sglang(asked: list[str] | None, path: Path | None) -> Sglang | None:
    from pagebind.operation import need_choice

    from pagebind_bench.bench.sglang import PeerUnavailable, load

    for name in asked or []:
        need_choice("--peer", name, PEERS)
    if asked is not None and "sglang" not in asked:
        return None
    try:
        return load(path)
    except PeerUnavailable as error:
        if path is not None or asked is not None:
            raise
        typer.echo(f"without SGLang beside ours: {error}", err=True)
        return None


def _published(asked: list[str] | None, where: torch.device) -> bool:
    can = where.type == "cuda" and _has_triton()
    if asked is not None and "published" in asked and not can:
        _refuse("--peer published needs Triton and a GPU: its interpreter's times say nothing; leave it out")
    return can and (asked is None or "published" in asked)


def _bare(where: torch.device) -> dict[str, Callable[[], None]]:
    if where.type != "cuda":
        return {}
    from pagebind_bench.bench.bare import launches

    return launches(where)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _options(**values: Any) -> list[str]:
    """Return options as words: a list's values one after another, a flag where it is True."""
    words: list[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            words += [word for one in value or [] if one is not None for word in (option, str(one))]
    return words


def _refuse(message: str) -> NoReturn:
    from pagebind.errors import InvalidArgument

    raise InvalidArgument(message)
