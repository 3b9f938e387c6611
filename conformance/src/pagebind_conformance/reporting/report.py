"""Reports: one JSON object per run, checked against its schema and against itself when written and when read.

Version 2 of the schema adds what a page draws of a failed case, the features a case is about, and a seal, the SHA-256
of all the rest: a report that was edited by hand is refused. Reports of version 1 have none of these and stay readable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import jsonschema
from pagebind.errors import PagebindError

SCHEMA_VERSION = 2

Status = Literal["passed", "failed", "errored", "skipped", "not-supported", "known-failure"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "errored", "skipped", "not-supported", "known-failure")
LEVELS = ("core", "extended")
ABSENT = ("not-supported", "known-failure")

NEEDED = re.compile(r" needs (mode .*); this is mode ")
"""How the reason of a skip for want of a mode is put, and the modes in it."""

Report = dict[str, Any]


class ReportError(PagebindError):
    """A file is no conformance report, or does not agree with itself."""


def schema() -> dict[str, Any]:
    """Return the published JSON Schema."""
    text = files("pagebind_conformance.reporting").joinpath("report.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def seal(report: Report) -> str:
    """Return the SHA-256 of a report without its seal, as JSON with sorted keys and no spaces."""
    bare = {**report, "footer": {key: value for key, value in report["footer"].items() if key != "seal"}}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(report: Report) -> Report:
    """Return a report with its seal in the footer."""
    return {**report, "footer": {**report["footer"], "seal": seal(report)}}


def levels_of(cases: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Count the cases of each level by status, and judge the level.

    `passed`: nothing failed, and what was skipped the machine could not show; `partial`: something is not supported or
    a known failure; `failed`: something failed, or nothing passed.
    """
    counts: dict[str, Counter[str]] = {level: Counter() for level in LEVELS}
    for case in cases:
        counts[case["level"]][case["status"]] += 1
    return {level: {"status": _judge(count), "total": count.total(), **_all(count)} for level, count in counts.items()}


def successful(levels: Mapping[str, Mapping[str, Any]], stale: Sequence[str], complete: bool) -> bool:
    """Return whether a run is a success: complete, core passed whole, nothing failed, no stale known failure."""
    nothing_failed = all(levels[level]["failed"] == levels[level]["errored"] == 0 for level in LEVELS)
    return complete and not stale and nothing_failed and levels["core"]["status"] == "passed"


def why_no_success(report: Report) -> str | None:
    """Return why a report's run is no success, or None where it is one."""
    if report["success"]:
        return None
    if not report["footer"]["complete"]:
        return f"it is incomplete: {report['footer']['why_incomplete']}"
    wrong = sum(level["failed"] + level["errored"] for level in report["levels"].values())
    if wrong:
        return f"{wrong} case(s) failed"
    if report["stale_known_failures"]:
        return f"{len(report['stale_known_failures'])} known failure(s) name no case"
    absent = [case for case in report["cases"] if case["level"] == "core" and case["status"] in ABSENT]
    if not absent:
        return "of the core nothing passed"
    known = sum(case["status"] == "known-failure" for case in absent)
    counts = Counter(_undeclared(case["reason"]) for case in absent if case["status"] == "not-supported")
    told = [f"{what} ({count} cases)" for what, count in counts.most_common()]
    return "core is partial: " + ", ".join([*told, *([f"known failures ({known} cases)"] if known else [])])


def without_running(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for the skipped cases and one for those not supported, counted by reason; none where none is."""
    skipped: Counter[str] = Counter()
    absent: Counter[str] = Counter()
    for case in cases:
        if case["status"] == "skipped":
            needed = NEEDED.search(case["reason"])
            skipped[f"need {needed[1]}" if needed else case["reason"].splitlines()[0]] += 1
        elif case["status"] == "not-supported":
            absent[_undeclared(case["reason"])] += 1
    told = {"skipped": skipped, "not supported": absent}
    return [
        f"{name}: " + "; ".join(f"{count} {reason}" for reason, count in counts.most_common())
        for name, counts in told.items()
        if counts
    ]


def prepare(path: Path) -> None:
    """Make the folder of a report to come. Raises ReportError where none can be written: a run tells before it runs."""
    try:
        if path.is_dir():
            raise ReportError(f"--report is {path}, which is a folder; name a file")
        beside = _room_for(path)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise ReportError(f"--report is {path}, which cannot be written: {error}; name a file that can be") from error


def write(path: Path, report: Report) -> None:
    """Check a report and write it, whole or not at all."""
    check(report, str(path))
    beside = _room_for(path)
    try:
        beside.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path) -> Report:
    """Read a report, complete or not; raises ReportError for a file that is none or does not agree with itself."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}; name reports that exist") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}; run the suite again with --report") from error
    check(report, str(path))
    checked: Report = report
    return checked


def read_complete(path: Path) -> Report:
    """Read a report that has to be complete."""
    report = read(path)
    if not report["footer"]["complete"]:
        why = report["footer"]["why_incomplete"]
        raise ReportError(f"{path} is incomplete ({why}) and no evidence: run the whole suite with --report")
    return report


def read_all(paths: Iterable[Path]) -> dict[Path, Report]:
    """Read reports that have to be complete, of a folder every `.json` at any depth; copies of one run are refused."""
    found = [inside for path in paths for inside in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    reports: dict[Path, Report] = {}
    runs: dict[str, Path] = {}
    for path in {path.resolve(): path for path in found}.values():
        report = read_complete(path)
        other = runs.setdefault(seal(report), path)
        if other != path:
            raise ReportError(f"{path} is the same run as {other} and no evidence beside it; name one of them")
        reports[path] = report
    return reports


def check(report: Any, origin: str) -> None:
    """Raise ReportError unless a report keeps the schema, its seal is whole and its totals are those of its cases."""
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema()).iter_errors(report))
    if error is not None:
        where = "/".join(map(str, error.absolute_path)) or "the report"
        raise ReportError(
            f"{origin} is no conformance report of schema {SCHEMA_VERSION} or before: {where}: {error.message}"
        )
    cases, footer = report["cases"], report["footer"]
    if "seal" in footer and footer["seal"] != seal(report):
        raise ReportError(
            f"{origin} is not as it was written: its seal is {footer['seal'][:12]}, what it holds has "
            f"{seal(report)[:12]}; reports are not edited, run the suite again with --report"
        )
    twice = [name for name, count in Counter(case["id"] for case in cases).items() if count > 1]
    if twice:
        raise ReportError(f"{origin} does not agree with itself: {twice[0]} stands there twice")
    told, counted = report["levels"], levels_of(cases)
    if told != counted:
        raise ReportError(f"{origin} does not agree with itself: levels say {told}, its cases are {counted}")
    if footer["total"] != len(cases):
        raise ReportError(
            f"{origin} does not agree with itself: footer says {footer['total']} cases, {len(cases)} are there"
        )
    if footer["complete"] != (footer["why_incomplete"] is None):
        raise ReportError(
            f"{origin} does not agree with itself: complete is {footer['complete']}, "
            f"why_incomplete {footer['why_incomplete']!r}"
        )
    success = successful(counted, report["stale_known_failures"], footer["complete"])
    if report["success"] != success:
        raise ReportError(
            f"{origin} does not agree with itself: success is {report['success']}, its cases make it {success}"
        )


def _room_for(path: Path) -> Path:
    """Make the folder of a report, which may have gone while the suite ran; return a file in it to write first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two values for one key JSON readers take either; what others read has to be what was checked.
    keys = Counter(key for key, _ in pairs)
    if len(keys) != len(pairs):
        raise ValueError(f"{max(keys, key=lambda key: keys[key])!r} stands twice in an object")
    return dict(pairs)


def _undeclared(reason: str) -> str:
    # As a test skips: `windowed of read_table`, or `no planner for alloc; its composed form is ...`.
    features, of, _ = reason.rpartition(" of ")
    return f"{features} not declared" if of and ";" not in reason else reason.partition(";")[0]


def _judge(count: Counter[str]) -> str:
    if count["failed"] or count["errored"]:
        return "failed"
    if count["not-supported"] or count["known-failure"]:
        return "partial"
    return "passed" if count["passed"] else "failed"


def _all(count: Counter[str]) -> dict[str, int]:
    return {status: count[status] for status in STATUSES}
