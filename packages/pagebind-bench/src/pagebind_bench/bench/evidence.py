"""No speed without a green conformance report of the same build: which reports there are, and whether one will do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagebind import Backend
from pagebind.backend import SERVING_MODES
from pagebind.errors import PagebindError
from pagebind_conformance import source
from pagebind_conformance.reporting import report

FOLDER = Path("conformance/reports")
SHOWN = 12
"""Characters of a digest or a commit in messages."""


class NoEvidence(PagebindError):
    """A backend has no green conformance report of this build, so its speed is not shown."""


@dataclass(frozen=True)
class Evidence:
    """The report that lets a backend's speed be shown."""

    path: Path
    source: str
    """SHA-256 over the sources of core, suite and backend: those of the report, which are those installed here."""
    commit: str | None
    started: str


def filed_reports(start: Path | None = None) -> list[Path]:
    """Return the reports filed in the checkout around a folder, or in that of the installed suite."""
    here = (start or Path.cwd()).resolve()
    suite = source.folder_of("pagebind_conformance")
    roots = [*(folder / FOLDER for folder in (here, *here.parents))]
    roots += [] if suite is None else [folder / FOLDER for folder in suite.parents]
    for root in roots:
        if root.is_dir():
            return sorted(root.rglob("*.json"))
    return []


def need_report(backend: Backend, asked: str, device_type: str, reports: Iterable[Path]) -> Evidence:
    """Return the evidence for a backend that was asked for as `asked`; raises NoEvidence, and says what to run."""
    mode = backend.modes[device_type]
    if mode not in SERVING_MODES:
        raise NoEvidence(
            f"backend {backend.name!r} runs in mode {mode!r} on {device_type}, which exists to test it: "
            "its times there say nothing; measure it on a GPU"
        )
    package = source.package_of(backend, asked)
    here = source.digest(package)
    against: list[str] = []
    for path in reports:
        told = _head(path)
        if told is None or told["backend"].get("name") != backend.name or told["backend"].get("package") != package:
            continue
        wrong = _wrong(path, told, mode, here)
        if wrong is None:
            return Evidence(path, told["source"], told.get("commit"), told["started"])
        against.append(f"{path} {wrong}")
    raise NoEvidence(_refusal(backend, asked, device_type, against))


def _head(path: Path) -> dict[str, Any] | None:
    # A whole check of a report takes a second: only one that could do is worth it.
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("backend"), dict) else None


def _wrong(path: Path, told: dict[str, Any], mode: str, here: str | None) -> str | None:
    """Return why a report of this backend is no evidence here, or None where it is."""
    if told.get("mode") != mode:
        return f"is of mode {told.get('mode')!r}, here it is {mode!r}"
    if told.get("source") != here:
        commit = f" (commit {str(told['commit'])[:SHOWN]})" if told.get("commit") else ""
        return f"is of another build{commit}: sources {str(told.get('source'))[:SHOWN]}, here {str(here)[:SHOWN]}"
    try:
        checked = report.read_complete(path)
    except report.ReportError as error:
        return f"is no report: {error}"
    why = report.why_no_success(checked)
    return None if why is None else f"is not green: {why}"


def _refusal(backend: Backend, asked: str, device_type: str, against: Sequence[str]) -> str:
    name = asked if ":" in asked else backend.name
    seen = "; ".join(against) or "none of it was found"
    return (
        f"backend {backend.name!r} has no green conformance report of this build on {device_type}, so no speed is "
        f"shown: {seen}; run: python -m pytest --pyargs pagebind_conformance --backend {name} --device {device_type} "
        "--report report.json, and then: pagebind bench --report report.json"
    )
