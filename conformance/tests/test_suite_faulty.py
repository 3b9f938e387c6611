"""The suite is tested: a sound backend from outside passes the core, each faulty one fails by the case meant for it."""

from __future__ import annotations

import faulty
import faulty_refresh  # noqa: F401  (its faults are listed when it is imported)
import pytest


def test_a_backend_kept_outside_passes_the_core_and_all_that_is_composed_from_it(run_suite):
    result, report = run_suite("outside:BACKEND", "--examples", "2")
    core, extended = report["levels"]["core"], report["levels"]["extended"]
    assert report["success"], [case for case in report["cases"] if case["status"] in ("failed", "errored")]
    assert core["status"] == "passed"
    assert extended["status"] == "partial"
    assert extended["not-supported"] > 100
    assert report["backend"]["package"] == "outside"
    assert report["footer"]["complete"]
    assert report["footer"]["total"] == len(report["cases"])
    assert result.ret == 0
    composed = {case["operation"] for case in report["cases"] if case["composed"] and case["status"] == "passed"}
    assert composed >= {"read_stream", "alloc", "free", "extend", "truncate", "release", "assign", "state machine"}


@pytest.mark.parametrize("name", faulty.FAULTS)
def test_a_fault_is_found_by_the_case_meant_for_it(run_suite, name):
    fault = faulty.FAULTS[name]
    case = fault.case
    result, report = run_suite(f"{fault.run.__module__}:{name}", cases=(case,))
    failed = {one["id"].partition("[")[0] for one in report["cases"] if one["status"] == "failed"}
    assert failed == {case}
    assert result.ret == 1
    assert not report["success"]
    assert {one["status"] for one in report["cases"]} <= {"failed", "passed"}


def test_the_cases_meant_for_faults_pass_without_them(run_suite):
    cases = sorted({fault.case for fault in faulty.FAULTS.values()})
    result, report = run_suite("outside:BACKEND", cases=tuple(cases))
    assert result.ret == 0
    assert {one["status"] for one in report["cases"]} == {"passed", "not-supported"}
