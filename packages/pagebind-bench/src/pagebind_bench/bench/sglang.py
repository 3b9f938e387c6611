"""The peer: SGLang's own kernels, loaded from its published wheel without importing anything else of it.

Two modules of it are loaded by their path; they need torch and Triton alone. Nothing of SGLang is part of this project:
what a case calls here is what its `UnifiedMemoryPool` and `MultiEndedAllocator` call (facts of wheel 0.5.23).
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from pagebind.errors import PagebindError

TABLES = "sglang/kernels/ops/kvcache/kv_read_table.py"
SLOTS = "sglang/kernels/ops/memory/virtual_slot.py"
NEEDED = {
    TABLES: ("build_kv_read_table",),
    SLOTS: ("alloc_bind_inplace", "bind_inplace", "free_unbind_inplace", "translate_token_ids"),
}
MEND = "pass --sglang a published wheel (pip download --no-deps sglang) or a folder it was unpacked to"


class PeerUnavailable(PagebindError):
    """A peer that was asked for cannot take part; the message says why and what to do."""


@dataclass(frozen=True)
class Sglang:
    """SGLang's launchers. Tables and ids are int64; a launcher allocates what it returns."""

    version: str
    """As its wheel says, with the start of the SHA-256 over both modules."""
    build_kv_read_table: Callable[..., Any]
    alloc_bind_inplace: Callable[..., Any]
    bind_inplace: Callable[..., Any]
    free_unbind_inplace: Callable[..., Any]
    translate_token_ids: Callable[..., Any]


_unpacked: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of wheels, kept as long as the process: Triton reads a kernel's source from its file."""


def load(path: Path | None = None) -> Sglang:
    """Load the two modules from a wheel, an unpacked folder, or (None) from where SGLang is installed.

    Raises PeerUnavailable where they are not there, or Triton is not.
    """
    if importlib.util.find_spec("triton") is None:
        raise PeerUnavailable("SGLang's kernels need Triton, which is not installed here: pip install triton")
    root, release = _root(path)
    files = [root / name for name in NEEDED]
    functions: dict[str, Any] = {}
    for file, (name, wanted) in zip(files, NEEDED.items(), strict=True):
        if not file.is_file():
            raise PeerUnavailable(
                f"there is no {name} in {path or root}: it is no SGLang that has these kernels; {MEND}"
            )
        module = _load(file)
        for function in wanted:
            functions[function] = getattr(module, function, None)
            if functions[function] is None:
                raise PeerUnavailable(f"{name} of {path or root} has no {function}; use the wheel of 0.5.23")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return Sglang(version=f"{release} ({digest[:12]})", **functions)


def _root(path: Path | None) -> tuple[Path, str]:
    """Return the folder that holds the package, and the release."""
    if path is None:
        spec = importlib.util.find_spec("sglang")  # finds, and does not import: it is a top-level package
        if spec is None or not spec.submodule_search_locations:
            raise PeerUnavailable(f"SGLang is not installed; {MEND}")
        return Path(spec.submodule_search_locations[0]).parent, _installed()
    if path.is_dir():
        # Around the package, whatever the folder is named, or the package itself.
        root = path if (path / "sglang").is_dir() else path.parent
        return root, _release(root)
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise PeerUnavailable(f"--sglang is {path}, which is neither a wheel nor a folder; {MEND}")
    folder = tempfile.TemporaryDirectory(prefix="pagebind-sglang-")
    _unpacked.append(folder)
    with zipfile.ZipFile(path) as wheel:
        kept = [name for name in wheel.namelist() if name in NEEDED or name.endswith(".dist-info/METADATA")]
        wheel.extractall(folder.name, kept)
    return Path(folder.name), _release(Path(folder.name))


def _release(root: Path) -> str:
    for metadata in sorted(root.glob("sglang-*.dist-info/METADATA")):
        for line in metadata.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ").strip()
    return "unknown release"


def _installed() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "unknown release"


def _load(file: Path) -> ModuleType:
    name = f"pagebind_bench_peer_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # somebody else's module: whatever it raises is the reason
        del sys.modules[name]
        raise PeerUnavailable(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
