"""The matrix: Markdown rendered from reports, one column per backend and mode, one row per operation or contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pagebind_conformance import source
from pagebind_conformance.reporting import markers
from pagebind_conformance.reporting.report import Report

BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
OLDER = " **(older build)**"
ABSENT = "—"
COMPOSED = "composed forms"

MARKUP = re.compile(r"[\\`*\[\]|~#]|(?<!\w)_|_(?!\w)|^[-+]|^\d+(?=[.)])")
"""What Markdown would read as markup in a cell or an item."""
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Digest = Callable[[str], "str | None"]


def render(reports: Iterable[Report], digest: Digest = source.digest) -> str:
    """Return the matrix of complete reports; of several for one backend and mode the newest is shown.

    `digest` gives the SHA-256 of the sources installed here for a backend's package, by which older builds are told.
    """
    newest: dict[tuple[str, str], Report] = {}
    for one in in_order(reports):
        newest[one["backend"]["name"], one["mode"]] = one
    if not newest:
        return "No report is filed yet.\n"
    columns = list(newest.values())
    lines = [_line(["", *(_title(one) for one in columns)]), _line(["---", *[":---:"] * len(columns)])]
    for level, row in rows_of(columns):
        lines.append(_line([f"{level}: {plain(row)}", *(_cell(one, level, row) for one in columns)]))
    lines.append(_line(["**all**", *(_verdict(one) for one in columns)]))
    return "\n".join([*lines, "", *(_footer(one, digest) for one in columns)]) + "\n"


def in_order(reports: Iterable[Report]) -> list[Report]:
    """Return reports by backend, mode and time."""
    return sorted(reports, key=lambda one: (one["backend"]["name"], one["mode"], one["started"]))


def rows_of(reports: Iterable[Report]) -> list[tuple[str, str]]:
    """Return level and name of each row: in the order of the cases, core first, composed forms last."""
    rows = dict.fromkeys((case["level"], row_of(case)) for one in reports for case in one["cases"])
    return sorted(rows, key=lambda row: (row[0] != "core", row[1] == COMPOSED))


def row_of(case: Mapping[str, Any]) -> str:
    """Return the name of the row that a case counts in."""
    return COMPOSED if case["composed"] else str(case["operation"])


def is_older(one: Report, digest: Digest) -> bool:
    """Return whether the sources installed here are others than those a report is of."""
    here = digest(one["backend"]["package"])
    return here is not None and here != one["source"]


def verdict(one: Report) -> str:
    """Return what a run is worth in two words."""
    if one["success"]:
        return "core passed" if one["levels"]["extended"]["status"] != "passed" else "passed"
    return "failed"


def plain(text: object) -> str:
    """Return text that Markdown shows as it is, on one line."""
    escaped = MARKUP.sub(lambda found: _escaped(found[0]), " ".join(str(text).split()))
    return "".join(ENTITIES.get(letter, letter) for letter in escaped)


def replaced(text: str, matrix: str, origin: str) -> str:
    """Return a page with the matrix between its markers; raises ReportError where it has none."""
    return markers.replaced(text, BEGIN, END, matrix, origin)


def up_to_date(text: str, matrix: str, origin: str) -> bool:
    """Return whether a page shows this matrix; that a build has grown older since is no difference."""
    return replaced(text, matrix, origin).replace(OLDER, "") == text.replace(OLDER, "")


def _title(one: Report) -> str:
    return f"{plain(one['backend']['name'])} ({one['mode']})"


def _cell(one: Report, level: str, row: str) -> str:
    statuses = [case["status"] for case in one["cases"] if case["level"] == level and row_of(case) == row]
    passed, skipped = statuses.count("passed"), statuses.count("skipped")
    absent = statuses.count("not-supported")
    ran = len(statuses) - skipped - absent
    if not ran:
        return "not supported" if absent else ABSENT
    wrong = statuses.count("failed") + statuses.count("errored")
    marks = [f"{passed}/{ran}"]
    marks += [f"**{wrong} failed**"] if wrong else []
    known = statuses.count("known-failure")
    marks += [f"{known} known"] if known else []
    marks += [f"{absent} not supported"] if absent else []
    return ", ".join(marks)


def _verdict(one: Report) -> str:
    return "**failed**" if verdict(one) == "failed" else verdict(one)


def _footer(one: Report, digest: Digest) -> str:
    backend, environment = one["backend"], one["environment"]
    skipped = sum(level["skipped"] for level in one["levels"].values())
    libraries = [f"{name} {environment[name]}" for name in ("torch", *source.PLATFORMS) if environment.get(name)]
    commit = f"commit {one['commit'][:12]}" if one["commit"] else "no commit"
    parts = [
        f"{backend['distribution']} {backend['version']}, {one['core']['distribution']} {one['core']['version']}, "
        f"suite {one['suite']['version']}",
        f"{one['device']['name']}, Python {environment['python']}, {', '.join(libraries)}",
        f"{skipped} skipped, which need another mode",
        f"{commit}, {one['started'][:10]}",
    ]
    mark = OLDER if is_older(one, digest) else ""
    return f"- {_title(one)}: {plain('; '.join(parts))}{mark}"


def _escaped(markup: str) -> str:
    return f"{markup}\\" if markup.isdigit() else f"\\{markup}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
