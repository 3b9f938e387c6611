"""What was tested, and where: digests of installed sources, versions, the device, the commit."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import torch
from pagebind import Backend
from pagebind.backend import ENTRY_POINT_GROUP

SUFFIXES = (".py", ".cu", ".cuh")
SUITE = "pagebind_conformance"
ASIDE = ("inputs", "new_backend", "reporting")
"""Folders of the suite that decide no verdict of it.

What draws further inputs, what backends are begun from, and what reads and shows reports.
"""
PLATFORMS = ("triton", "cupy", "cupy-cuda12x", "cupy-cuda13x", "numpy")


def package_of(backend: Backend, asked: str) -> str:
    """Return the top-level module of a backend that was asked for as `asked`: `module:attribute`, a name or `auto`."""
    if ":" in asked:
        return asked.partition(":")[0].partition(".")[0]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=backend.name):
        return point.module.partition(".")[0]
    raise LookupError(f"backend {backend.name!r} is in no entry point and was not named module:attribute")


def folder_of(package: str) -> Path | None:
    """Return the folder of a top-level package, the file of a single module, or None where neither is installed."""
    spec = find_spec(package) if package.isidentifier() and package != "__main__" else None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def digest(package: str) -> str | None:
    """Return the SHA-256 over the sources of core, suite and `package` as installed here; None where one is not.

    It covers what decides a verdict: the backend, what plans and calls it, the oracle, the cases, and how they are run
    and recorded. What stands in a folder of ASIDE is left out, so that a change of a page's look makes no filed report
    old; that a report still agrees with today's checks is seen each time it is read.
    """
    whole = hashlib.sha256()
    for name in ("pagebind", SUITE, package):
        root = folder_of(name)
        if root is None:
            return None
        sources = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in SUFFIXES)
        for path in sources:
            inside = path.name if root.is_file() else path.relative_to(root).as_posix()
            if name == SUITE and inside.partition("/")[0] in ASIDE:
                continue
            whole.update(f"{name}/{inside}\0".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def environment() -> dict[str, str | None]:
    """Return versions and platform; libraries that are not installed are left out."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for name in PLATFORMS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """Return the name of a device's hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.machine()


def commit_here() -> str | None:
    """Return the commit of the working directory, or None where there is no git."""
    try:
        ran = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return ran.stdout.strip() or None if ran.returncode == 0 else None
