"""Write the distribution of a new backend: its record, the core operations in plain torch, a test and nox sessions.

The files are the templates beside this module, by their paths; the folder `module` becomes the package's name.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from pagebind.backend import ENTRY_POINT_GROUP
from pagebind.errors import InvalidArgument
from pagebind.registry import IN_TREE
from pagebind.words import API_VERSION

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST_NAME = 32
"""Characters; the lines that names stand in are short enough for it."""


def new_backend(
    name: Annotated[str, typer.Argument(help="Name of the backend: lowercase letters, digits, hyphens, underscores.")],
    dir: Annotated[Path, typer.Argument(help="Folder to write it to: a new one, or an empty one.")],
) -> None:
    """Write a minimal backend distribution, which passes the core as it is.

    It holds the record, the four core operations in plain torch, a test and nox sessions that run the suite.
    """
    need_free(name)
    for path in write(name, dir):
        typer.echo(path)
    typer.echo(
        f"\nNext, in the environment that pagebind is installed in:\n"
        f"  python -m pip install -e {dir}\n"
        f"  python -m pytest --pyargs pagebind_conformance --backend {name} --device cpu"
    )


def need_free(name: str) -> None:
    """Refuse a name that no backend can have, or that something installed has already."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise InvalidArgument(
            f"backend name {name!r} (from NAME): it must be lowercase letters and digits, starting with a letter, in "
            f"parts joined by single hyphens or underscores, {LONGEST_NAME} characters at most; for example my-backend"
        )
    if name == "auto":
        raise InvalidArgument("backend name 'auto' (from NAME) means the best usable backend: choose another name")
    installed = sorted({*entry_points(group=ENTRY_POINT_GROUP).names, *IN_TREE})
    if name in installed:
        raise InvalidArgument(
            f"backend name {name!r} (from NAME) is taken; taken: {', '.join(installed)}: choose another name"
        )
    named = [d.name for d in distributions() if _normal(d.name) == distribution_of(name)]
    if named or find_spec(module_of(name)) is not None:
        raise InvalidArgument(
            f"backend name {name!r} (from NAME) makes the distribution {distribution_of(name)} with the package "
            f"{module_of(name)}, which is installed already: choose another name"
        )


def write(name: str, directory: Path) -> list[Path]:
    """Write the files of backend `name` to a folder that does not exist or is empty, and return their paths."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        kind = "not empty" if directory.is_dir() else "a file"
        raise InvalidArgument(f"{directory} (from DIR) exists and is {kind}: name a folder that does not exist yet")
    # The templates are sources, not pages: nothing is escaped.
    templates = Environment(
        loader=PackageLoader("pagebind_conformance.new_backend"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    module = module_of(name)
    values = {
        "name": name,
        "module": module,
        "distribution": distribution_of(name),
        "api_version": API_VERSION,
        "version": version("pagebind"),
    }
    texts = {
        directory / template.removesuffix(".j2").replace("/module/", f"/{module}/"): templates.get_template(template)
        for template in templates.list_templates()
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.render(values), encoding="utf-8")
    return list(texts)


def module_of(name: str) -> str:
    """Return the package of a backend."""
    return f"pagebind_{name.replace('-', '_')}"


def distribution_of(name: str) -> str:
    """Return the distribution of a backend, as indexes spell it."""
    return _normal(f"pagebind-{name}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()
