"""The command line: `pagebind backends`, `pagebind config`, and what other distributions add.

A distribution adds a command through the entry-point group `pagebind.commands`: a function with typer's annotations,
or a `typer.Typer` for a group of commands. Its module should import heavy libraries inside the function.
"""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

from pagebind.config import resolve
from pagebind.errors import PagebindError
from pagebind.registry import available_backends, resolve_device

try:
    import typer
    from rich.console import Console
    from rich.markup import escape as _escape
    from rich.table import Table
    from typer.core import TyperGroup
except ImportError as error:
    raise SystemExit(f"the pagebind command needs {error.name}: pip install 'pagebind[cli]'") from error

COMMAND_GROUP = "pagebind.commands"

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class ClearErrors(TyperGroup):
    """A command group that prints pagebind's own errors as one message and exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with `--debug`, errors keep their traceback."""
        try:
            return super().invoke(ctx)
        except PagebindError as error:
            if ctx.params.get("debug"):
                raise
            Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {_escape(str(error))}", highlight=False)
            raise typer.Exit(2) from error


def build() -> typer.Typer:
    """Return the command line with every command that is installed."""
    app = typer.Typer(
        cls=ClearErrors,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command()(backends)
    app.command()(config)
    for point in sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name):
        _add(app, point)
    return app


def main() -> None:
    """Run the command line."""
    build()()


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pagebind {version('pagebind')}")
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Page tables of LLM serving engines."""


def backends(
    json_: Json = False, device: Annotated[str | None, typer.Option(help="Judge for this device.")] = None
) -> None:
    """Show each installed backend: usable or the reason why not, and which one auto takes and why."""
    where = resolve_device(resolve(device=device).device)
    candidates = available_backends(where.type)
    if json_:
        rows = [
            {
                "name": c.name,
                "distribution": c.distribution,
                "version": c.backend.version if c.backend else None,
                "api_version": c.backend.api_version if c.backend else None,
                "modes": dict(c.backend.modes) if c.backend else {},
                "features": sorted(c.backend.features) if c.backend else [],
                "usable": c.reason is None,
                "reason": c.reason,
                "auto": c.chosen,
                "note": c.note,
            }
            for c in candidates
        ]
        typer.echo(json.dumps({"device": str(where), "backends": rows}, indent=2))
        return
    table = Table(title=f"backends on {where}", title_justify="left")
    for column in ("backend", "version", "mode", "usable", "why"):
        table.add_column(column, overflow="fold")
    for c in candidates:
        mode = c.backend.modes.get(where.type, "-") if c.backend else "-"
        usable = "[green]yes[/green]" if c.reason is None else "[red]no[/red]"
        why = _escape(c.reason or c.note)
        table.add_row(c.name, c.backend.version if c.backend else "-", mode, usable, why)
    console = Console()
    if candidates:
        console.print(table)
    else:
        console.print("no backend is installed: pip install pagebind-cpu", highlight=False)


def config(json_: Json = False) -> None:
    """Show each setting and where it came from."""
    settings = resolve()
    if json_:
        typer.echo(json.dumps({s.name: {"value": s.value, "origin": s.origin} for s in settings}, indent=2))
        return
    table = Table(title="settings", title_justify="left")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for setting in settings:
        table.add_row(setting.name, _escape(setting.value), _escape(setting.origin))
    Console().print(table)


def _add(app: typer.Typer, point: EntryPoint) -> None:
    try:
        loaded = point.load()
    except ImportError as error:  # a broken distribution must not take the other commands down
        reason = f"{point.name} cannot be loaded from {point.value}: {error}"

        def broken() -> None:
            raise PagebindError(reason)

        app.command(point.name, help=f"Not usable: {_escape(reason)}")(broken)
        return
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=point.name)
    else:
        app.command(point.name)(loaded)


if __name__ == "__main__":
    main()
