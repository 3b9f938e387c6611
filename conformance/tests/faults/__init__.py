"""Faults as small patches of the backends' own sources, one fault each, and the case of the suite meant for each.

`cpu.toml`, `triton.toml` and `cuda.toml` list them. A fault is applied to a copy of its backend's package that stands
first on the path, so what runs is the backend itself but for a line or two; its `old` text occurs exactly once, so a
backend that moves on says which faults to look at anew.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pagebind_conformance.plugin import SUITE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
BACKENDS = ("cpu", "triton", "cuda")
WITHOUT_GPU = {"cpu": "cpu", "triton": "interpreter", "cuda": "host"}
"""The mode of each backend where there is no GPU."""

WITH_GPU = "gpu"

MODULES = {"alloc": ("alloc.py", "span.py"), "refresh_table": ("refresh_table.py", "refreshing.py")}
"""Modules of the suite about an operation, where they are more than the one of its name."""


@dataclass(frozen=True)
class Fault:
    """One fault of one backend."""

    backend: str
    name: str
    reason: str
    """What is wrong, in one line."""
    file: str
    """Of the backend's package."""
    old: str
    new: str
    modes: tuple[str, ...]
    """That can show it."""
    case: str
    """`module.py::test`, which is to fail."""
    only: str = ""
    """pytest's -k expression for the parameters of the case that are run, where not all are."""
    operation: str = ""
    """What the patched file is about, where it has not the operation's name."""

    @property
    def id(self) -> str:
        """Name it among all faults."""
        return f"{self.backend}-{self.name}"

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the suite that look at the patched operation, and the one of the case."""
        operation = self.operation or Path(self.file).stem
        about = MODULES.get(operation, (f"{operation}.py",))
        return tuple(
            dict.fromkeys([*(name for name in about if (SUITE / name).exists()), self.case.partition("::")[0]])
        )

    def apply(self, package: Path) -> None:
        """Patch a copy of the backend's package. Raises ValueError unless the old text stands there exactly once."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        times = text.count(self.old)
        if times != 1:
            raise ValueError(
                f"fault {self.id} replaces a text of {self.file} that occurs there {times} times, not once; the source "
                f"moved on: mend the fault in {self.backend}.toml, or drop it where there is nothing left to be wrong"
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def package_of(backend: str) -> str:
    """Return the top-level module of a backend of this repository."""
    return f"pagebind_{backend}"


def copy_of(backend: str, folder: Path) -> Path:
    """Copy the installed package of a backend into a folder, and return the copy."""
    found = find_spec(package_of(backend))
    if found is None or found.origin is None:
        raise LookupError(f"{package_of(backend)} is not installed; its faults are patches of its sources")
    target = folder / package_of(backend)
    shutil.copytree(Path(found.origin).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def load() -> list[Fault]:
    """Return all faults, of all backends."""
    faults = []
    for backend in BACKENDS:
        for entry in tomllib.loads((FOLDER / f"{backend}.toml").read_text(encoding="utf-8")).get("fault", []):
            fields: dict[str, Any] = {**entry, "modes": tuple(entry["modes"])}
            faults.append(Fault(backend=backend, **fields))
    return faults
