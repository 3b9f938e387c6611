"""Known failures: what a backend's own `conformance.toml` admits, strict both ways.

    [[known-failure]]
    case = "alloc.py::test_case_11[own]"      the id reports give it; `suite/` before it is left out
    mode = "gpu"                              left out: every mode
    kind = "upstream"                         planned (could be done) | upstream (waits for somebody else) | never
    reason = "what fails and why"

A case that is listed and passes fails the run, and so does an entry that names no case.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagebind.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "conformance.toml"
KINDS = ("planned", "upstream", "never")
MODES = ("gpu", "interpreter", "host", "cpu")


@dataclass(frozen=True)
class KnownFailure:
    """One admitted failure."""

    case: str
    kind: str
    reason: str
    mode: str | None = None


def load(folder: Path | None, mode: str) -> dict[str, KnownFailure]:
    """Return the known failures of a mode by case, from `conformance.toml` in the backend's package, if it has one."""
    path = (folder if folder is None or folder.is_dir() else folder.parent) if folder else None
    if path is None or not (path / FILE).is_file():
        return {}
    path = path / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; mend the file") from error
    if set(table) - {"known-failure"} or not isinstance(table.get("known-failure", []), list):
        raise ConfigError(f"{path} holds {', '.join(table)}; it has [[known-failure]] tables and nothing else")
    entries = [_entry(path, raw) for raw in table.get("known-failure", [])]
    return {entry.case: entry for entry in entries if entry.mode in (None, mode)}


def _entry(path: Path, raw: Any) -> KnownFailure:
    fields = raw if isinstance(raw, dict) else {}
    for name in ("case", "kind", "reason"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise ConfigError(f"{path}: a known-failure without {name}; it needs case, kind and reason")
    if fields["kind"] not in KINDS:
        raise ConfigError(f"{path}: kind {fields['kind']!r} of {fields['case']}; kinds: {', '.join(KINDS)}")
    if fields.get("mode", MODES[0]) not in MODES or set(fields) - {"case", "kind", "reason", "mode"}:
        raise ConfigError(f"{path}: {fields['case']} has {', '.join(fields)}; mode is one of {', '.join(MODES)}")
    return KnownFailure(fields["case"].removeprefix("suite/"), fields["kind"], fields["reason"], fields.get("mode"))
