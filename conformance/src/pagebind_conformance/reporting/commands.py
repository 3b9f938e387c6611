"""`pagebind conformance`: run the suite, check reports, render their matrix or a page of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pagebind_conformance.new_backend.command import new_backend

app = typer.Typer(no_args_is_help=True, help="Run the conformance suite, check its reports, render them.")
app.command()(new_backend)

PYTEST_USAGE_ERROR = 4

Named = Annotated[list[Path], typer.Argument(help="Reports, as written by --report, or folders of them.")]
Files = Annotated[list[Path] | None, typer.Argument(help="Reports, as written by --report, or folders of them.")]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    backend: Annotated[str | None, typer.Option(help="Installed name, or module:attribute.")] = None,
    device: Annotated[str | None, typer.Option(help="Device it is tested on.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report here.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit the report names.")] = None,
    examples: Annotated[int | None, typer.Option(help="Generated cases per spec.")] = None,
) -> None:
    """Run the suite on a backend; the exit code is 1 where a case failed, 2 where nothing could be run.

    Other arguments are pytest's own, as in `run --backend cpu -k case_12`.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "pagebind_conformance"]
    options = {"--backend": backend, "--device": device, "--report": report, "--commit": commit, "--examples": examples}
    for option, value in options.items():
        command += [option, str(value)] if value is not None else []
    command += context.args
    code = subprocess.run(command, check=False).returncode
    raise typer.Exit(2 if code == PYTEST_USAGE_ERROR else code)


@app.command()
def check(files: Named) -> None:
    """Check that reports keep the schema, are as they were written, agree with themselves and are complete."""
    from pagebind_conformance.reporting.report import read_all, why_no_success

    for path, report in read_all(files).items():
        why = why_no_success(report)
        verdict = "success" if why is None else f"no success, {why}"
        typer.echo(f"{path}: {report['backend']['name']} ({report['mode']}), {len(report['cases'])} cases, {verdict}")


@app.command()
def matrix(
    files: Files = None,
    readme: Annotated[Path | None, typer.Option(help="Page with the markers of the matrix.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Fail if the page shows another matrix.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Replace the matrix in the page.")] = False,
) -> None:
    """Render reports as Markdown: to the terminal, or between the markers of a page."""
    from pagebind_conformance.reporting.matrix import render, replaced, up_to_date
    from pagebind_conformance.reporting.report import ReportError, read_all

    rendered = render(read_all(files or []).values())
    if not check and not write:
        typer.echo(rendered, nl=False)
        return
    if readme is None or check == write:
        raise ReportError("--check and --write need --readme FILE, and go one at a time")
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{readme} cannot be read: {error.strerror}") from error
    if write:
        readme.write_text(replaced(text, rendered, str(readme)), encoding="utf-8")
    elif not up_to_date(text, rendered, str(readme)):
        typer.echo(f"{readme} shows another matrix than its reports; render it anew with --write", err=True)
        raise typer.Exit(1)


@app.command()
def html(
    files: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the page here.")],
) -> None:
    """Render reports as one self-contained page: the matrix, and every failed case to open."""
    from pagebind_conformance.reporting.page import render
    from pagebind_conformance.reporting.report import ReportError, read_all

    reports = read_all(files)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render(reports.values()), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{output} cannot be written: {error.strerror}; name a file in a folder of yours") from error
    typer.echo(f"{output}: {len(reports)} report(s)")
