"""The plugin: silent where it is not meant, strict where it is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pagebind_conformance.known import KnownFailure
from pagebind_conformance.plugin import SUITE
from pagebind_conformance.reporting.report import ReportError, read, read_complete

CASE = "assign.py::test_ids_go_to_the_head_of_their_rows_as_they_are"
OWN = f"{CASE}[composed-i32i32]"


def test_other_runs_are_left_alone(pytester):
    pytester.makepyfile("def test_mine(subject=None): assert subject is None")
    pytester.mkdir("suite")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*pagebind backend*")


def test_a_folder_of_the_suite_runs_only_when_it_is_asked_for(pytester):
    result = pytester.runpytest_inprocess("--collect-only", "-q", str(SUITE.parent / "oracle"))
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_configuration_says_which_backend_where_no_option_does(pytester, monkeypatch):
    monkeypatch.setenv("PAGEBIND_BACKEND", "outside:BACKEND")
    monkeypatch.setenv("PAGEBIND_DEVICE", "cpu")
    result = pytester.runpytest_inprocess(f"{SUITE / CASE}", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["pagebind backend: outside 1.0 on cpu, mode cpu"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "outside:NOTHING"], "*outside:NOTHING* (from argument backend)*"),
        (["--backend", "cpuu"], "*cpuu* (from argument backend) is not installed*"),
        (["--backend", "outside:BACKEND", "--device", "cuda:99"], "*cuda:99* (from argument device)*"),
        (["--backend", "outside:BACKEND", "--device", "cpu", "--examples", "0"], "*--examples is 0*"),
        (["--backend", "outside:BACKEND", "--device", "cpu", "--report", "."], "*--report is .*a folder*"),
        (["--backend", "outside:BACKEND", "--report", "file/r.json"], "*--report is file/r.json*cannot be written*"),
        (["--backend", "outside:BACKEND", "--report", f"{'r' * 300}.json"], "*--report is r*cannot be written*"),
    ],
    ids=["attribute", "name", "device", "examples", "report", "folder", "file"],
)
def test_what_cannot_be_run_is_one_message(pytester, arguments, message):
    (pytester.path / "file").touch()
    result = pytester.runpytest_inprocess("--pyargs", "pagebind_conformance", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_a_run_of_some_modules_is_marked_incomplete(run_suite, pytester):
    _, report = run_suite("outside:BACKEND", cases=(CASE,))
    assert not report["footer"]["complete"]
    assert not report["success"]
    assert "read_table.py" in report["footer"]["why_incomplete"]
    with pytest.raises(ReportError, match="incomplete"):
        read_complete(pytester.path / "report.json")
    assert read(pytester.path / "report.json") == report


def test_a_run_with_deselected_cases_is_marked_incomplete(run_suite):
    _, report = run_suite("outside:BACKEND", "-k", "test_ids_go_to_the_head")
    assert report["footer"]["why_incomplete"].endswith("were deselected")
    assert {case["id"] for case in report["cases"]} >= {OWN}


def test_an_interrupted_run_is_marked_incomplete(run_suite):
    _, report = run_suite("failing:BACKEND", "-x", cases=("assign.py",))
    assert report["footer"]["why_incomplete"].endswith("cases did not run")
    assert not report["footer"]["complete"]
    assert not report["success"]


@pytest.fixture
def admitting(pytester, monkeypatch):
    """Make a package whose backend is the failing or the sound one, with known failures."""

    def make(known: str, sound: bool = False) -> str:
        package = pytester.mkpydir("admitting")
        record = "from outside import BACKEND" if sound else "from failing import BACKEND"
        (package / "__init__.py").write_text(record + "\n")
        (package / "conformance.toml").write_text(known)
        monkeypatch.syspath_prepend(str(pytester.path))
        monkeypatch.delitem(sys.modules, "admitting", raising=False)
        return "admitting:BACKEND"

    return make


FOUND = "assign.py::test_bad_rows_and_parts_are_clipped_and_counted"


def known(case: str, kind: str = "planned", **more: str) -> str:
    fields = {"case": case, "kind": kind, "reason": "parts are not cut to the row", **more}
    return "\n".join(["[[known-failure]]", *(f'{name} = "{value}"' for name, value in fields.items()), ""])


def test_an_admitted_failure_fails_no_run_and_is_reported(run_suite, admitting):
    entries = "".join(known(f"{FOUND}[own-{d}]") for d in ("i32i32", "i32i64", "i64i32", "i64i64"))
    result, report = run_suite(admitting(entries), cases=(FOUND,))
    assert result.ret == 0
    assert {case["status"] for case in report["cases"] if not case["composed"]} == {"known-failure"}
    assert "planned: parts are not cut to the row" in {case["reason"] for case in report["cases"]}


def test_an_entry_may_name_the_exception_and_a_link(run_suite, admitting):
    entries = [
        known(f"{FOUND}[own-i32i32]", exception="Difference", link="https://example.org/issues/12"),
        known(f"{FOUND}[own-i32i64]", exception="AssertionError"),
        known(f"{FOUND}[own-i64i32]", exception="IndexError"),
    ]
    result, report = run_suite(admitting("".join(entries)), cases=(FOUND,))
    told = {case["id"].rpartition("-")[2][:-1]: case for case in report["cases"] if not case["composed"]}
    statuses = {name: case["status"] for name, case in told.items()}
    known_ones = {"i32i32": "known-failure", "i32i64": "known-failure"}
    assert statuses == {**known_ones, "i64i32": "failed", "i64i64": "failed"}
    assert told["i32i32"]["reason"] == "planned: parts are not cut to the row (https://example.org/issues/12)"
    assert told["i64i32"]["reason"].startswith("admitted to fail by IndexError, it failed by Difference: request_t")
    assert result.ret == 1


def test_an_admitted_failure_that_the_machine_cannot_show_is_skipped(run_suite, admitting):
    case = "launching.py::test_a_call_returns_while_its_stream_is_stalled"
    result, report = run_suite(admitting(known(f"{case}[bind]", exception="Difference")), cases=(case,))
    assert {one["status"] for one in report["cases"]} == {"skipped"}
    assert result.ret == 0


def test_of_several_failed_examples_each_has_to_be_the_admitted_one():
    class Several(Exception):
        exceptions = (IndexError(), KeyError())

    def entry(exception):
        return KnownFailure("case", "never", "why", exception=exception)

    assert entry("LookupError").covers(Several())
    assert not entry("IndexError").covers(Several())
    assert entry(None).covers(Several())


def test_an_admitted_failure_that_passes_fails_the_run(run_suite, admitting):
    result, report = run_suite(admitting(known(OWN), sound=True), cases=(CASE,))
    assert result.ret == 1
    assert [case["status"] for case in report["cases"] if case["id"] == OWN] == ["failed"]


def test_an_entry_that_names_no_case_fails_a_whole_run(run_suite, admitting):
    result, _ = run_suite(admitting(known("assign.py::test_gone"), sound=True), "--collect-only")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["stale known failure: assign.py::test_gone is no case of the suite"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[known", "not valid TOML"),
        (known("x", "someday"), "x has kind 'someday'; kinds: planned, upstream, never"),
        ("[other]\n", "holds other"),
        ('[[known-failure]]\ncase = "x"\n', "without kind"),
        (known("x", mode="simulated"), "x has mode 'simulated'; modes: gpu"),
        (known("x", where="here"), "x has where; an entry has case"),
        (known("x", link=""), "x has link ''"),
        (known("x") + "exception = 3\n", "x has exception 3"),
    ],
    ids=range(8),
)
def test_a_flawed_list_of_known_failures_is_one_message(run_suite, admitting, text, message):
    result, _ = run_suite(admitting(text, sound=True), cases=(CASE,))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *conformance.toml*{message}*"])


def test_a_report_is_written_whole_or_not_at_all(run_suite, pytester):
    run_suite("outside:BACKEND", cases=(CASE,))
    assert json.loads((pytester.path / "report.json").read_text())
    assert not list(pytester.path.glob("*.part"))


def test_the_folder_of_a_report_is_made_before_anything_runs(pytester):
    pytester.makepyfile(test_here="def test_it(): import pathlib; assert list(pathlib.Path('new').iterdir()) == []")
    options = ["--backend", "outside:BACKEND", "--device", "cpu", "--report", "new/report.json"]
    pytester.runpytest_inprocess("test_here.py", *options, "-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert (pytester.path / "new" / "report.json").exists()


def test_core_comes_first_and_composed_forms_after_a_backends_own(run_suite):
    result, _ = run_suite("outside:BACKEND", "--collect-only")
    seen = [line.partition("::") for line in result.outlines if ".py::" in line]
    tiers = [(path.rpartition("/")[2], "[composed" in test) for path, _, test in seen]
    first = list(dict.fromkeys(name for name, _ in tiers))
    core = ["bind.py", "unbind.py", "translate.py", "read_table.py", "contract.py", "compiling.py", "launching.py"]
    assert first[:7] == core
    assert first[-3:] == ["state_machine.py", "graphs.py", "large.py"]
    extended = [composed for name, composed in tiers if name not in (*first[:7], *first[-3:])]
    assert extended == sorted(extended)
    assert set(extended) == {False, True}


def test_a_failed_case_shows_a_command_that_runs_it(run_suite, monkeypatch):
    tests = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", tests)
    result, report = run_suite("failing:BACKEND", cases=(FOUND,))
    told = [line for line in result.outlines if line.startswith("reproduce: ")]
    assert len(told) == 3
    assert told[0].startswith(f"reproduce: PYTHONPATH={tests} python -m pytest --pyargs 'pagebind_conformance.suite.")
    failed = [case for case in report["cases"] if case["status"] == "failed"]
    assert [case["reproduce"] for case in failed][:3] == [line.removeprefix("reproduce: ") for line in told]
    command = shlex.split(told[0].partition(" python ")[2])
    again = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert "1 failed" in again.stdout, again.stdout + again.stderr


def test_a_failed_case_is_reported_with_its_call_and_the_cells_that_differ(run_suite):
    _, report = run_suite("failing:BACKEND", cases=(FOUND,))
    failed = next(case for case in report["cases"] if case["id"] == f"{FOUND}[own-i32i32]")
    assert failed["reason"].startswith("request_table [4, 6]: [2, 0] is 0, has to stay 7; outside the tensor")
    assert "\n" not in failed["reason"]
    assert failed["difference"]["call"]["operation"] == "assign"
    (grid,) = failed["difference"]["tensors"]
    assert grid["expected"][2].startswith("7 7")
    assert grid["actual"][2].startswith("0 7")
    assert all("difference" not in case for case in report["cases"] if case["status"] == "passed")


def test_a_generated_case_that_failed_tells_its_example(run_suite):
    _, report = run_suite("failing:BACKEND", cases=("assign.py",))
    failed = [case for case in report["cases"] if "test_generated" in case["id"] and case["status"] == "failed"]
    assert failed
    assert all("rng=Random" in case["reason"] and "Explanation" not in case["reason"] for case in failed)
    assert all(case["difference"]["call"] for case in failed)


def test_an_admitted_failure_tells_its_difference(run_suite, admitting):
    _, report = run_suite(admitting(known(f"{FOUND}[own-i32i32]")), cases=(FOUND,))
    (case,) = [case for case in report["cases"] if case["status"] == "known-failure"]
    assert case["difference"]["tensors"]


def test_every_case_tells_the_features_it_planned(run_suite):
    _, report = run_suite("outside:BACKEND", cases=("read_table.py", "read_stream.py", "bind.py"))
    of = {}
    for case in report["cases"]:
        of.setdefault(case["operation"], set()).update(case["features"])
    assert of["bind"] == set()
    assert of["read_table"] >= {"fill=sink", "fill=prefix", "form=page", "form=token", "windowed"}
    fills = {frozenset(f for f in case["features"] if f.startswith("fill=")) for case in report["cases"]}
    assert {frozenset(), frozenset({"fill=sink"}), frozenset({"fill=prefix"})} <= fills
    absent = {f for case in report["cases"] if case["status"] == "not-supported" for f in case["features"]}
    assert absent


def test_what_did_not_run_and_why_it_is_no_success_is_said(run_suite):
    result, _ = run_suite("outside:BACKEND", cases=("translate.py", "read_table.py", "graphs.py"))
    result.stdout.fnmatch_lines(
        ["skipped: * need mode gpu*", "success: no, it is incomplete: of the suite's modules *"]
    )


def test_a_case_of_an_entry_may_name_the_folder_of_the_suite(run_suite, admitting):
    result, _ = run_suite(admitting(known(f"suite/{OWN}"), sound=True), cases=(CASE,))
    assert result.ret == 1
