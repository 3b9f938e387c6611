"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import typer
from pagebind.errors import InvalidArgument


def need_writable(option: str, path: Path | None) -> None:
    """Refuse a path that could not be written, before the work that is to fill it."""
    if path is None:
        return
    try:
        target = path.resolve()
        if target.is_dir():
            raise InvalidArgument(f"{option} is {path}, which is a folder; name a file")
        if target.exists() and not target.is_file():
            raise InvalidArgument(f"{option} is {path}, which is a device or a pipe; name a file")
        if not target.parent.is_dir():
            raise InvalidArgument(
                f"{option} is {path}, but there is no folder {target.parent}: make it, or name another file"
            )
        # Only making one tells: permissions do not know of read-only file systems, nor of names that are too long.
        handle, name = _make_beside(target)
        os.close(handle)
        os.unlink(name)
    except (OSError, RuntimeError) as error:  # Python before 3.13 raises RuntimeError for a loop of links
        raise InvalidArgument(
            f"{option} is {path}, which cannot be written: {_why(error)}; name another file"
        ) from error


def need_different(**options: Path | None) -> None:
    """Refuse two options that name one file, of which the second would replace what the first wrote."""
    seen: dict[Path, str] = {}
    for name, path in options.items():
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise InvalidArgument(f"--{other} and --{name} both name {path}; give each a file of its own")


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place, so that a reader sees the old file or the new one.

    A link stays a link: the file it points to is replaced. Raises InvalidArgument where that cannot be written.
    """
    try:
        target = path.resolve()
        handle, name = _make_beside(target)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)  # mkstemp makes files that only their owner can read
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{path} cannot be written: {_why(error)}; name another file") from error


def write_texts(texts: Iterable[tuple[Path | None, str]]) -> None:
    """Write each text whose path was asked for, and say so."""
    for path, text in texts:
        if path is not None:
            write_whole(path, text)
            typer.echo(f"wrote {path}")


def _make_beside(target: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
