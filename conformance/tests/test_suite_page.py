"""The page carries every case once, counted or told, stays small, and takes nothing in a report for markup."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser

import pytest
from filed import case, difference, made, of_version_1

from pagebind_conformance.reporting import page, report


def same(package):
    return "a" * 64


def data_of(text):
    """Return the data that a page carries, in which no letter can begin or end an element."""
    (inside,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not set(inside) & set("<>&")
    return json.loads(inside)


def failed(operation, number, **more):
    return case(operation, number, "failed", **{"difference": difference(), "reproduce": "run it", **more})


def counts_of(data, run):
    """Return cases by level, row and status, as a page counts them."""
    counts = Counter()
    told = data["runs"][run]
    for _, row, _, passed in told["groups"]:
        counts[(*data["rows"][row], "passed")] += passed
    for group, _, status, *_ in told["cases"]:
        counts[(*data["rows"][told["groups"][group][1]], data["statuses"][status])] += 1
    return {key: count for key, count in counts.items() if count}


def test_every_case_is_counted_in_its_row():
    cases = [
        *(case("read_table", n) for n in range(5)),
        failed("read_table", 7),
        case("bind", 1, "skipped"),
        case("alloc", 1, "not-supported", "extended"),
        case("alloc", 2, level="extended", composed=True),
        case("alloc", 3, "known-failure", "extended", composed=True),
        case("free", 3, "errored", "extended"),
    ]
    data = page.page_data([made(cases)], same)
    assert counts_of(data, 0) == {
        ("core", "read_table", "passed"): 5,
        ("core", "read_table", "failed"): 1,
        ("core", "bind", "skipped"): 1,
        ("extended", "alloc", "not-supported"): 1,
        ("extended", "free", "errored"): 1,
        ("extended", "composed forms", "passed"): 1,
        ("extended", "composed forms", "known-failure"): 1,
    }
    assert data["rows"][-1] == ["extended", "composed forms"]


def test_cases_are_told_apart_by_the_features_they_planned():
    cases = [
        case("read_table", 1, features=["fill=sink", "windowed"]),
        case("read_table", 2, features=["fill=sink"]),
        failed("read_table", 3, features=["fill=sink"]),
    ]
    data = page.page_data([made(cases)], same)
    sets = {tuple(data["features"][features]): passed for _, _, features, passed in data["runs"][0]["groups"] if passed}
    assert sets == {("fill=sink", "windowed"): 1, ("fill=sink",): 1}
    group = data["runs"][0]["groups"][data["runs"][0]["cases"][0][0]]
    assert data["features"][group[2]] == ["fill=sink"]


def test_passed_cases_of_a_test_take_no_room():
    def many(count):
        return made([{**case("read_table", 1), "id": f"read_table.py::test_x[bs{n}]"} for n in range(count)])

    few, lots = (page.render([many(count)], same) for count in (10, 4000))
    assert len(lots) < len(few) + 10
    assert data_of(lots)["runs"][0]["groups"] == [[0, 0, 0, 4000]]


def test_a_failed_case_keeps_its_reason_grids_and_command():
    command = "python -m pytest --pyargs 'pagebind_conformance.suite.bind::test_1[a b]' --backend mine"
    one = failed("bind", 1, id="bind.py::test_1[a b]", reason="first line\nsecond line", reproduce=command)
    other = failed("bind", 2, id="bind.py::test_2", reproduce="something else", reason="x" * 500)
    run = page.page_data([made([one, other])], same)["runs"][0]
    (_, parameters, _, _, again, details), second = run["cases"]
    assert parameters == "[a b]"
    assert again == 1
    assert run["around"][0] + shlex.quote("pagebind_conformance.suite.bind::test_1[a b]") + run["around"][1] == command
    assert run["details"][details] == {"reason": "first line\nsecond line", "difference": difference()}
    assert second[4] == "something else"
    assert run["details"][second[5]]["reason"] == "x" * 500


def test_a_short_reason_without_grids_needs_no_details():
    cases = [case("bind", 1, "failed"), case("bind", 2, "skipped", reason="a graph\nneeds mode gpu; this is mode cpu")]
    data = page.page_data([made(cases)], same)
    assert [one[5] for one in data["runs"][0]["cases"]] == [None, None]
    assert data["reasons"] == ["because", "a graph\nneeds mode gpu; this is mode cpu"]


def test_with_little_room_each_test_keeps_a_case_before_one_has_two():
    cases = [failed(operation, n, id=f"{operation}.py::t[{n}]") for operation in ("bind", "unbind") for n in range(50)]
    bare = len(json.dumps(page.page_data([made(cases)], same, 0), separators=(",", ":")))
    size = len(json.dumps({"reason": "because", "difference": difference()}, separators=(",", ":")))
    run = page.page_data([made(cases)], same, bare + 3 * (size + 6))["runs"][0]
    kept = [i for i, one in enumerate(run["cases"]) if one[5] != page.NO_ROOM]
    assert kept == [0, 1, 50]
    assert [run["cases"][i][5] for i in kept] == [0, 2, 1]
    assert len(run["details"]) == 3


def test_five_reports_that_fail_everywhere_stay_under_three_megabytes():
    grid = [" ".join(str(1000 + i) for i in range(64))] * 64
    told = difference(grid, grid)
    cases = [
        failed(
            "bind", n, id=f"bind.py::test_{n % 340}[own-size{n}-i64i64]", difference=told, reason=f"{n} " + "w" * 900
        )
        for n in range(4700)
    ]
    reports = [made(cases, name=f"backend{i}") for i in range(5)]
    text = page.render(reports, same)
    assert len(text) < 3_000_000
    data = data_of(text)
    assert all(len(run["cases"]) == 4700 for run in data["runs"])
    assert any(run["details"] for run in data["runs"])


def test_runs_stand_by_backend_mode_and_time_and_older_builds_are_marked():
    reports = [
        made(name="b", started="2026-09-03T00:00:00Z"),
        made(name="b", started="2026-09-02T00:00:00Z", digest="b" * 64),
        made(name="a", mode="gpu"),
    ]
    runs = page.page_data(reports, same)["runs"]
    assert [(run["name"], run["started"][:10]) for run in runs][1:] == [("b", "2026-09-02"), ("b", "2026-09-03")]
    assert [run["older"] for run in runs] == [False, True, False]
    assert [run["newer"] for run in runs] == [0, 1, 0]
    assert not any(run["older"] for run in page.page_data(reports, lambda package: None)["runs"])


def test_what_a_run_is_worth_is_told():
    lacking = [case("bind", 1), case("bind", 2, "not-supported", reason="windowed of read_table")]
    run = page.page_data([made(lacking)], same)["runs"][0]
    assert (run["verdict"], run["success"]) == ("failed", False)
    assert run["why"] == "core is partial: windowed not declared (1 cases)"
    assert run["notes"] == ["not supported: 1 windowed not declared"]
    assert page.page_data([made()], same)["runs"][0]["verdict"] == "passed"


def test_reports_of_version_1_are_shown():
    old = of_version_1(made([case("bind", 1), case("bind", 2, "skipped")]))
    report.check(old, "it")
    data = page.page_data([old], same)
    assert data["features"] == [[]]
    assert not data["runs"][0]["by_feature"]


class Elements(HTMLParser):
    """Counts the elements and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "srcset")]


def test_nothing_of_a_report_is_markup_and_nothing_is_loaded():
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(2)"><!--{{ 7 * 7 }}'
    told = difference([evil], [evil])
    one = made(
        [
            failed(evil, 1, id=f"bind.py::{evil}[{evil}]", reason=evil, features=[evil], difference=told),
            case("bind", 2, "skipped", reason=evil),
        ],
        name=evil,
    )
    plain, text = page.render([made()], same), page.render([one], same)
    assert Elements(text).tags == Elements(plain).tags
    assert Elements(text).links == ["data:,"]
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    data = data_of(text)
    assert data["runs"][0]["name"] == evil
    assert data["runs"][0]["details"][0]["difference"] == told


def test_a_page_of_the_same_reports_is_the_same():
    reports = [made(name="b"), made(name="a")]
    assert page.render(reports, same) == page.render(reports[::-1], same)


@pytest.mark.parametrize("folder", ["", "deep/er"])
def test_the_command_writes_the_page(command, tmp_path, folder):
    report.write(tmp_path / "filed" / "report.json", made())
    output = tmp_path / folder / "page.html"
    result = command("html", tmp_path / "filed", "--output", output)
    assert result.exit_code == 0, result.output
    assert [run["name"] for run in data_of(output.read_text())["runs"]] == ["mine"]


def test_what_the_command_cannot_do_is_one_message(command, tmp_path):
    path = tmp_path / "report.json"
    report.write(path, made())
    result = command("html", path, "-o", tmp_path)
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    report.write(path, made(complete=False))
    assert "incomplete" in command("html", path, "-o", tmp_path / "page.html").output
    assert not (tmp_path / "page.html").exists()
