"""Known failures: what a backend's own `conformance.toml` admits, strict both ways.

    [[known-failure]]
    case = "alloc.py::test_case_11[own]"      the id reports give it; `suite/` before it is left out
    mode = "gpu"                              left out: every mode
    kind = "upstream"                         planned (could be done) | upstream (waits for somebody else) | never
    reason = "what fails and why"
    exception = "Difference"                  left out: any; else it, or what it derives from, has that name
    link = "https://example.org/issues/12"    left out: none; where it is followed up

A case that is listed and passes fails the run, and so do one that fails by another exception than the one listed, and
an entry that names no case.
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
NEEDED, FURTHER = ("case", "kind", "reason"), ("mode", "exception", "link")
KINDS = ("planned", "upstream", "never")
MODES = ("gpu", "interpreter", "host", "cpu")


@dataclass(frozen=True)
class KnownFailure:
    """One admitted failure."""

    case: str
    kind: str
    reason: str
    mode: str | None = None
    exception: str | None = None
    link: str | None = None

    @property
    def told(self) -> str:
        """What the report gives as the reason."""
        return f"{self.kind}: {self.reason}" + (f" ({self.link})" if self.link else "")

    def covers(self, error: BaseException) -> bool:
        """Return whether a failure is the admitted one; of several failed examples each has to be."""
        several = getattr(error, "exceptions", None)
        if several:
            return all(self.covers(one) for one in several)
        return self.exception is None or self.exception in {kind.__name__ for kind in type(error).__mro__}


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
    for name in NEEDED:
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise ConfigError(f"{path}: a known-failure without {name}; it needs {', '.join(NEEDED)}")
    about = f"{path}: {fields['case']}"
    unknown = set(fields) - {*NEEDED, *FURTHER}
    if unknown:
        raise ConfigError(f"{about} has {', '.join(sorted(unknown))}; an entry has {', '.join((*NEEDED, *FURTHER))}")
    if fields["kind"] not in KINDS:
        raise ConfigError(f"{about} has kind {fields['kind']!r}; kinds: {', '.join(KINDS)}")
    for name in FURTHER:
        if not isinstance(fields.get(name, "-"), str) or not fields.get(name, "-"):
            raise ConfigError(f"{about} has {name} {fields[name]!r}; write a text, or leave it out")
    if fields.get("mode", MODES[0]) not in MODES:
        raise ConfigError(f"{about} has mode {fields['mode']!r}; modes: {', '.join(MODES)}")
    further = {name: fields.get(name) for name in FURTHER}
    return KnownFailure(fields["case"].removeprefix("suite/"), fields["kind"], fields["reason"], **further)
