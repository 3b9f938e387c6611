"""Reports refuse what is no evidence; the matrix shows what they say."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from filed import case, difference, made, of_version_1

from pagebind_conformance import source
from pagebind_conformance.reporting import matrix, report
from pagebind_conformance.reporting.report import ReportError


def test_a_report_survives_being_written_and_read(tmp_path):
    path = tmp_path / "deep" / "report.json"
    report.write(path, made())
    assert report.read_complete(path) == made()
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


def test_a_report_is_written_where_its_folder_went_while_the_suite_ran(tmp_path):
    path = tmp_path / "deep" / "er" / "report.json"
    report.prepare(path)
    assert list(path.parent.iterdir()) == []
    shutil.rmtree(tmp_path / "deep")
    report.write(path, made())
    assert report.read_complete(path) == made()


def without(key):
    def change(one):
        del one[key]

    return change


def footer_says(**fields):
    return lambda one: one["footer"].update(fields)


def another_case_of_that_name(one):
    """Add a case again, and mend the totals."""
    one["cases"].append(dict(one["cases"][-1]))
    one["levels"] = report.levels_of(one["cases"])
    one["footer"]["total"] += 1


def edited(change, *, sealed=True):
    """Return a report that was changed after it was made; sealed anew, where the seal is not what is to be seen."""
    one = copy.deepcopy(made())
    change(one)
    return report.sealed(one) if sealed and "footer" in one else one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("footer"), "footer"),
        (without("mode"), "mode"),
        (footer_says(total=99), "footer says 99"),
        (lambda one: one["levels"]["core"].update(passed=3), "levels say"),
        (lambda one: one.update(success=False), "success is False"),
        (lambda one: one.update(schema=3), "schema"),
        (footer_says(complete=False), "complete is False"),
        (another_case_of_that_name, "stands there twice"),
        (lambda one: one["cases"][0].pop("features"), "features"),
        (lambda one: one["cases"][0].update(difference={"call": None}), "tensors"),
        (lambda one: one["cases"][0].update(difference=difference(actual=["1 x", "2 3"])), "cases/0/difference"),
        (lambda one: one.update(mode="simulated"), "mode"),
        (lambda one: one["cases"].append(case("bind", 1)), "levels say"),
        (lambda one: one["cases"][0].update(status="green"), "status"),
        (lambda one: one["cases"][0].update(status="failed"), "reason"),
        (lambda one: one.update(more=1), "more"),
    ],
)
def test_a_report_that_disagrees_with_its_schema_or_itself_is_refused(tmp_path, change, message):
    flawed = edited(change)
    path = tmp_path / "report.json"
    with pytest.raises(ReportError, match=message):
        report.write(path, flawed)
    assert not path.exists()
    path.write_text(json.dumps(flawed))
    with pytest.raises(ReportError, match=message):
        report.read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(mode="gpu"),
        lambda one: one.update(commit=None),
        lambda one: one["cases"][0].update(id="read_table.py::test_other"),
        lambda one: one["backend"].update(version="0.2.0"),
        footer_says(seal="0" * 64),
    ],
    ids=range(5),
)
def test_a_report_that_was_edited_is_refused(tmp_path, change):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(edited(change, sealed=False)))
    with pytest.raises(ReportError, match="not as it was written"):
        report.read(path)


def test_an_incomplete_report_made_complete_by_hand_is_refused(tmp_path):
    path = tmp_path / "report.json"
    report.write(path, made(complete=False))
    text = path.read_text().replace('"complete": false', '"complete": true')
    text = text.replace('"why_incomplete": "interrupted"', '"why_incomplete": null')
    path.write_text(text.replace('"success": false', '"success": true'))
    with pytest.raises(ReportError, match="not as it was written"):
        report.read_complete(path)
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(ReportError, match="no conformance report"):
        report.read_complete(path)


def test_a_report_without_a_seal_is_refused_unless_it_is_of_version_1(tmp_path):
    one = made()
    del one["footer"]["seal"]
    with pytest.raises(ReportError, match="'seal' is a required property"):
        report.write(tmp_path / "report.json", one)
    old = of_version_1(made())
    report.write(tmp_path / "old.json", old)
    assert report.read_complete(tmp_path / "old.json") == old
    for later in ({"features": []}, {"difference": difference()}):
        one = copy.deepcopy(old)
        one["cases"][0].update(later)
        with pytest.raises(ReportError, match="cases/0"):
            report.check(one, "it")


def test_filed_reports_are_readable():
    reports = report.read_all([FILED])
    assert {one["backend"]["name"] for one in reports.values()} >= {"cpu", "cuda", "triton"}


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(made()).replace('"mode"', '"mode": "gpu", "mode"'))
    with pytest.raises(ReportError, match="'mode' stands twice"):
        report.read(path)


def test_one_run_is_one_piece_of_evidence(tmp_path, command):
    path, copied = tmp_path / "a.json", tmp_path / "b.json"
    report.write(path, made())
    assert list(report.read_all([tmp_path, path, tmp_path / "." / "a.json"])) == [path]
    copied.write_text(json.dumps(made()))
    for name in ("check", "matrix", "html"):
        result = command(name, path, copied, *(["-o", tmp_path / "page.html"] if name == "html" else []))
        assert result.exit_code == 2
        assert "is the same run as" in result.output
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x>&", "&lt;img src=x&gt;&amp;"),
        ("_all_ of x86_64", r"\_all\_ of x86_64"),
        ("**no** [link](x) `code` ~~x~~", r"\*\*no\*\* \[link\](x) \`code\` \~\~x\~\~"),
        ("two\nlines", "two lines"),
        ("- item", r"\- item"),
        ("3. item", r"3\. item"),
        ("# head", r"\# head"),
        ("state machine", "state machine"),
    ],
)
def test_what_markdown_would_read_as_markup_is_escaped(text, shown):
    assert matrix.plain(text) == shown


def test_names_with_markup_stay_in_their_cells():
    cases = [case("read|table<b>", 1)]
    lines = matrix.render([made(cases, name="a|<i>b")], lambda package: None).splitlines()
    assert lines[0] == r"|  | a\|&lt;i&gt;b (cpu) |"
    assert lines[2] == r"| core: read\|table&lt;b&gt; | 1/1 |"
    assert lines[5].startswith(r"- a\|&lt;i&gt;b (cpu): pagebind-a\|&lt;i&gt;b 0.1.0")


@pytest.mark.parametrize(
    ("statuses", "core", "success"),
    [
        (["passed", "skipped"], "passed", True),
        (["passed", "not-supported"], "partial", False),
        (["passed", "known-failure"], "partial", False),
        (["passed", "failed"], "failed", False),
        (["passed", "errored"], "failed", False),
        (["skipped", "skipped"], "failed", False),
    ],
)
def test_only_a_core_that_passed_whole_is_a_success(statuses, core, success):
    cases = [case("bind", i, status) for i, status in enumerate(statuses)]
    one = made(cases)
    assert one["levels"]["core"]["status"] == core
    assert one["success"] is success


def test_the_matrix_has_a_column_per_backend_and_mode_and_a_row_per_operation():
    cases = [
        case("read_table", 1),
        case("read_table", 2, "failed"),
        case("bind", 1, "skipped"),
        case("alloc", 1, "not-supported", "extended"),
        case("alloc", 2, level="extended", composed=True),
    ]
    rendered = matrix.render([made(), made(cases, name="other", mode="gpu")], lambda package: "a" * 64)
    lines = rendered.splitlines()
    assert lines[0] == "|  | mine (cpu) | other (gpu) |"
    assert "| core: read_table | 2/2 | 1/2, **1 failed** |" in lines
    assert "| core: bind | — | — |" in lines
    assert "| extended: alloc | 1/1 | not supported |" in lines
    assert "| extended: composed forms | — | 1/1 |" in lines
    assert "| **all** | passed | **failed** |" in lines
    assert "older build" not in rendered
    assert "- mine (cpu): pagebind-mine 0.1.0" in rendered
    assert "commit 0123456789ab, 2026-09-01" in rendered


def test_the_newest_report_of_a_backend_and_mode_is_shown_and_an_older_build_is_marked():
    reports = [made(started="2026-09-03T00:00:00Z"), made(started="2026-09-02T00:00:00Z", digest="b" * 64)]
    rendered = matrix.render(reports, lambda package: "c" * 64)
    assert "2026-09-03" in rendered
    assert "2026-09-02" not in rendered
    assert matrix.OLDER in rendered
    assert matrix.OLDER not in matrix.render(reports, lambda package: None)


def test_that_a_build_has_grown_older_leaves_a_page_up_to_date():
    fresh, older = (matrix.render([made()], lambda package, d=d: d) for d in ("a" * 64, "b" * 64))
    page = matrix.replaced(f"# x\n{matrix.BEGIN}\nold\n{matrix.END}\nrest\n", fresh, "README.md")
    assert page.startswith("# x\n")
    assert page.endswith("rest\n")
    assert matrix.up_to_date(page, older, "README.md")
    assert not matrix.up_to_date(page, matrix.render([made(name="new")], lambda package: None), "README.md")
    with pytest.raises(ReportError, match="no place"):
        matrix.replaced("nothing", fresh, "README.md")


FILED = Path(__file__).parents[1] / "reports"


def test_the_commands_check_and_render(command, tmp_path):
    path, readme = tmp_path / "report.json", tmp_path / "README.md"
    report.write(path, made())
    readme.write_text(f"{matrix.BEGIN}\n{matrix.END}\n")
    assert "success" in command("check", path).output
    assert "| core: read_table | 2/2 |" in command("matrix", path).output
    assert command("matrix", "--check", "--readme", readme, path).exit_code == 1
    assert command("matrix", "--write", "--readme", readme, path).exit_code == 0
    assert command("matrix", "--check", "--readme", readme, path).exit_code == 0
    assert "No report" in command("matrix").output


def test_the_commands_refuse_what_is_no_evidence(command, tmp_path):
    path, missing = tmp_path / "report.json", tmp_path / "missing.json"
    report.write(path, made(complete=False))
    for arguments in (["check", path], ["matrix", path], ["check", missing], ["matrix", "--check", missing]):
        result = command(*arguments)
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output
    assert command("matrix", "--write").exit_code == 2


def test_the_digest_follows_the_sources(tmp_path, monkeypatch):
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    (package / "kernel.cu").write_text("x")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = source.digest("thing")
    (package / "notes.txt").write_text("no source")
    assert source.digest("thing") == first
    (package / "kernel.cu").write_text("y")
    assert source.digest("thing") != first
    assert source.digest("not_installed_anywhere") is None


def test_the_digest_leaves_out_what_decides_no_verdict(tmp_path, monkeypatch):
    suite, core = tmp_path / "suite", tmp_path / "core.py"
    for name in ("reporting/page.py", "new_backend/write.py", "suite/reporting.py", "recording.py", "oracle/bind.py"):
        (suite / name).parent.mkdir(parents=True, exist_ok=True)
        (suite / name).write_text("a = 1")
    core.write_text("")
    monkeypatch.setattr(source, "folder_of", {"pagebind": core, source.SUITE: suite, "mine": core}.get)
    first = source.digest("mine")
    for name in ("reporting/page.py", "new_backend/write.py"):
        (suite / name).write_text("a = 2")
        assert source.digest("mine") == first
    seen = {first}
    for name in ("suite/reporting.py", "recording.py", "oracle/bind.py"):
        (suite / name).write_text("a = 2")
        seen.add(source.digest("mine"))
    assert len(seen) == 4


def test_only_the_suites_own_reporting_is_left_out(tmp_path, monkeypatch):
    backend = tmp_path / "mine"
    (backend / "reporting").mkdir(parents=True)
    (backend / "reporting" / "kernel.py").write_text("a = 1")
    monkeypatch.setattr(source, "folder_of", lambda name: backend)
    first = source.digest("mine")
    (backend / "reporting" / "kernel.py").write_text("a = 2")
    assert source.digest("mine") != first


def test_why_a_report_is_no_success_is_said(command, tmp_path):
    lacking = [case("read_table", 1), *(case("read_table", n, "not-supported") for n in (2, 3))]
    for one in lacking[1:]:
        one["reason"] = "windowed of read_table"
    assert report.why_no_success(made(lacking)) == "core is partial: windowed not declared (2 cases)"
    failing = made([case("bind", 1), case("bind", 2, "known-failure")])
    assert report.why_no_success(failing) == "core is partial: known failures (1 cases)"
    assert report.why_no_success(made([case("bind", 1, "failed")])) == "1 case(s) failed"
    assert report.why_no_success(made([case("bind", 1, "skipped")])) == "of the core nothing passed"
    assert report.why_no_success(made(complete=False)) == "it is incomplete: interrupted"
    assert report.why_no_success(made()) is None
    report.write(tmp_path / "report.json", made(lacking))
    result = command("check", tmp_path / "report.json")
    assert "no success, core is partial: windowed not declared (2 cases)" in result.output
    assert result.exit_code == 0


def test_cases_that_did_not_run_are_counted_by_reason():
    cases = [case("bind", n, status) for n, status in enumerate(["skipped"] * 3 + ["not-supported"] * 2 + ["passed"])]
    reasons = ["a graph needs mode gpu; this is mode cpu"] * 2 + ["no room"]
    reasons += ["no planner for alloc; its composed form is tested in its place", "shared of compact", ""]
    for one, reason in zip(cases, reasons, strict=True):
        one["reason"] = reason
    told = report.without_running(cases)
    assert told == [
        "skipped: 2 need mode gpu; 1 no room",
        "not supported: 1 no planner for alloc; 1 shared not declared",
    ]
    assert report.without_running([case("bind", 1)]) == []


def test_the_matrix_takes_folders(command, tmp_path):
    report.write(tmp_path / "0.1.0" / "mine" / "a.json", made())
    report.write(tmp_path / "0.1.0" / "other" / "b.json", made(name="other"))
    assert "|  | mine (cpu) | other (cpu) |" in command("matrix", tmp_path).output


@pytest.mark.parametrize("arguments", [["--", "-k", "case_12"], ["-k", "case_12"], ["--maxfail=2", "-x"]], ids=range(3))
def test_a_run_hands_other_arguments_to_pytest(command, monkeypatch, arguments):
    ran = []

    def run(line, check):
        ran.extend(line)
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert command("run", "--backend", "cpu", *arguments).exit_code == 0
    extra = [a for a in arguments if a != "--"]
    assert ran[-len(extra) - 2 :] == ["--backend", "cpu", *extra]
