"""The page: one self-contained HTML file rendered from reports, with a matrix to look at and every failed case to open.

Passed cases are counted by test and row, never listed. What a failed case tells is embedded while there is room: first
one case of each test, then a second one, so that a backend that fails everywhere leaves the page small.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from pagebind_conformance import source
from pagebind_conformance.reporting.matrix import Digest, in_order, is_older, row_of, rows_of, verdict
from pagebind_conformance.reporting.report import LEVELS, STATUSES, Report, why_no_success, without_running

MOST_CHARACTERS = 2_900_000
"""Of the page's data."""
LONGEST_BRIEF = 160
"""Characters of a failed case's reason that always stand in the page."""
PARTS = ("page.css", "page.case.js", "page.js", "page.html.j2")
FAILED = ("failed", "errored", "known-failure")
MOVED = ("reproduce", "environment", "device", "mode", "started", "duration_seconds", "commit", "source", "success")
"""Fields of a report that the page has as they are."""

NO_ROOM = -1
"""Stands for the details of a case that found no room."""


class Numbered:
    """Values by number, in the order first asked for."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def __getitem__(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers)


def render(reports: Iterable[Report], digest: Digest = source.digest, room: int = MOST_CHARACTERS) -> str:
    """Return the page of complete reports; nothing in it is loaded from elsewhere, and nothing of a report is markup.

    `digest` gives the SHA-256 of the sources installed here for a backend's package, by which older builds are told;
    `room` is what the data may take, in characters.
    """
    folder = files("pagebind_conformance.reporting")
    style, drawing, moving, template = (folder.joinpath(name).read_text("utf-8") for name in PARTS)
    script = f"{drawing}\n{moving}"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(_quiet(_compact(page_data(reports, digest, room)))),
    )


def page_data(reports: Iterable[Report], digest: Digest, room: int = MOST_CHARACTERS) -> dict[str, Any]:
    """Return what the page shows: rows, and of every run its facts, its groups of cases, and cases that did not pass.

    A group is `[test, row, features, passed]`: numbers of a test, a row and a set of features, and how many cases
    passed. A case is `[group, parameters, status, reason, again, details]`, where `again` is 1 if the command that
    runs it is put together from its id, 0 if there is none, and `details` is None if the reason is all there is.
    """
    ordered = in_order(reports)
    rows = rows_of(ordered)
    tests, reasons, features = Numbered(), Numbered(), Numbered()
    runs = []
    for i, one in enumerate(ordered):
        newer = [other for other in ordered[i + 1 :] if _column(other) == _column(one)]
        runs.append(_run(one, rows, tests, reasons, features) | {"older": is_older(one, digest), "newer": len(newer)})
    data = {
        "statuses": list(STATUSES),
        "levels": list(LEVELS),
        "rows": [list(row) for row in rows],
        "tests": list(tests),
        "reasons": list(reasons),
        "features": [list(one) for one in features],
        "runs": runs,
    }
    _fill(runs, ordered, room - len(_compact(data)))
    return data


def _run(
    one: Report, rows: list[tuple[str, str]], tests: Numbered, reasons: Numbered, features: Numbered
) -> dict[str, Any]:
    groups, cases = Numbered(), []
    passed: Counter[int] = Counter()
    ahead, behind = _around(one["reproduce"])
    for case in one["cases"]:
        test, bracket, parameters = case["id"].partition("[")
        row = rows.index((case["level"], row_of(case)))
        group = groups[tests[test], row, features[tuple(case.get("features", ()))]]
        if case["status"] == "passed":
            passed[group] += 1
            continue
        reason = case["reason"] if case["status"] not in FAILED else _brief(case["reason"])
        again = case.get("reproduce", 0)
        if again == f"{ahead}{shlex.quote(_address(case['id']))}{behind}":
            again = 1
        details = NO_ROOM if reason != case["reason"] or case.get("difference") else None
        status = STATUSES.index(case["status"])
        cases.append([group, bracket + parameters, status, reasons[reason], again, details])
    return {
        **{name: one[name] for name in MOVED},
        **{name: one["backend"][name] for name in ("name", "distribution", "version", "features", "planners")},
        "core": one["core"]["version"],
        "suite": one["suite"]["version"],
        "verdict": verdict(one),
        "why": why_no_success(one) or "",
        "stale": one["stale_known_failures"],
        "notes": without_running(one["cases"]),
        "by_feature": one["schema"] > 1,
        "around": [ahead, behind],
        "groups": [[*group, passed[i]] for i, group in enumerate(groups)],
        "cases": cases,
        "details": [],
    }


def _fill(runs: list[dict[str, Any]], reports: list[Report], room: int) -> None:
    """Give details to cases, one of each test and run first, then the next ones, as long as there is room."""
    waiting = []
    for n, (run, one) in enumerate(zip(runs, reports, strict=True)):
        nth: Counter[int] = Counter()
        unpassed = [case for case in one["cases"] if case["status"] != "passed"]
        for short, case in zip(run["cases"], unpassed, strict=True):
            if short[-1] == NO_ROOM:
                test = run["groups"][short[0]][0]
                waiting.append((nth[test], n, short, case))
                nth[test] += 1
    for _, n, short, case in sorted(waiting, key=lambda one: one[:2]):
        details = {"reason": case["reason"], "difference": case.get("difference")}
        size = len(_compact(details)) + len(",0000")
        if size <= room:
            room -= size
            short[-1] = len(runs[n]["details"])
            runs[n]["details"].append(details)


def _column(one: Report) -> tuple[str, str]:
    return one["backend"]["name"], one["mode"]


def _address(case: str) -> str:
    module, _, test = case.partition(".py::")
    return f"pagebind_conformance.suite.{module}::{test}"


def _around(reproduce: str) -> tuple[str, str]:
    """Return what stands before and behind the package's name in the command that repeats a run."""
    ahead, pyargs, behind = reproduce.partition("--pyargs pagebind_conformance")
    return (f"{ahead}--pyargs ", behind) if pyargs else ("", "")


def _brief(reason: str) -> str:
    first = reason.partition("\n")[0]
    return first if len(first) <= LONGEST_BRIEF else f"{first[: LONGEST_BRIEF - 4]} ..."


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _quiet(text: str) -> str:
    # Inside a script element nothing but these can end it or open another.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
