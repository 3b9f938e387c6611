"""The matrix: Markdown rendered from reports, one column per backend and mode, one row per operation or contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pagebind_conformance import report, source
from pagebind_conformance.report import Report, ReportError

BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
OLDER = " **(older build)**"
ABSENT = "—"

Digest = Callable[[str], "str | None"]


def render(reports: Iterable[Report], digest: Digest = source.digest) -> str:
    """Return the matrix of complete reports; of several for one backend and mode the newest is shown.

    `digest` gives the SHA-256 of the sources installed here for a backend's package, by which older builds are told.
    """
    newest: dict[tuple[str, str], Report] = {}
    for one in sorted(reports, key=lambda r: str(r["started"])):
        newest[one["backend"]["name"], one["mode"]] = one
    if not newest:
        return "No report is filed yet.\n"
    columns = [newest[key] for key in sorted(newest)]
    rows: dict[tuple[str, str], None] = {}  # in the order of the reports' cases, core first
    for one in columns:
        rows |= {(case["level"], _row(case)): None for case in one["cases"]}
    ordered = sorted(rows, key=lambda row: (row[0] != "core", row[1] == COMPOSED))
    head = ["", *(f"{one['backend']['name']} ({one['mode']})" for one in columns)]
    lines = [_line(head), _line(["---", *[":---:"] * len(columns)])]
    lines += [_line([f"{level}: {row}", *(_cell(one, level, row) for one in columns)]) for level, row in ordered]
    verdict = ["**all**", *(_verdict(one) for one in columns)]
    lines += [_line(verdict), "", *(_footer(one, digest) for one in columns)]
    return "\n".join(lines) + "\n"


def replaced(text: str, matrix: str, origin: str) -> str:
    """Return a page with what stands between the two markers replaced by the matrix."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{origin} has no place for the matrix: put {BEGIN} and {END} where it belongs")
    return f"{before}{BEGIN}\n{matrix}{END}{after}"


def up_to_date(text: str, matrix: str, origin: str) -> bool:
    """Return whether a page shows this matrix; that a build has grown older since is no difference."""
    return replaced(text, matrix, origin).replace(OLDER, "") == text.replace(OLDER, "")


def load(paths: Sequence[Path]) -> list[Report]:
    """Read reports that have to be complete; of a folder, every `.json` at any depth."""
    found = [inside for path in paths for inside in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    return [report.read_complete(path) for path in found]


COMPOSED = "composed forms"


def _row(case: dict[str, object]) -> str:
    return COMPOSED if case["composed"] else str(case["operation"])


def _cell(one: Report, level: str, row: str) -> str:
    statuses = [case["status"] for case in one["cases"] if case["level"] == level and _row(case) == row]
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
    if one["success"]:
        return "core passed" if one["levels"]["extended"]["status"] != "passed" else "passed"
    return "**failed**"


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
    here = digest(backend["package"])
    mark = OLDER if here is not None and here != one["source"] else ""
    return f"- {backend['name']} ({one['mode']}): {'; '.join(parts)}{mark}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
