"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pagebind.errors import InvalidArgument


def need_writable(option: str, path: Path | None) -> None:
    """Refuse a path that could not be written, before the work that is to fill it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir():
        raise InvalidArgument(f"{option} is {path}, which is a folder; name a file")
    if not folder.is_dir():
        raise InvalidArgument(f"{option} is {path}, but there is no folder {folder}: make it, or name another file")
    if not os.access(folder, os.W_OK):
        raise InvalidArgument(f"{option} is {path}, but the folder {folder} cannot be written: name another file")


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place, so that a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
