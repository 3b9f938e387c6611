"""Runs under pytest-xdist: the report is that of one process, and a case that killed its worker has errored."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed")

MODULES = ("pagebind_conformance.suite.unbind", "pagebind_conformance.suite.read_table")

KILLER = """
import os
import pytest

def pytest_runtest_call(item):
    if "test_case_12" in item.nodeid and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
"""

KILLING = """
import os
import signal
from dataclasses import replace

import outside
from pagebind.operation import NoWarmup

def unbind(spec, device, options):
    planned = outside.unbind(spec, device, options)

    def run(*tensors, **named):
        if not options.count:
            {end}
        planned(*tensors, **named)

    return NoWarmup(run)

BACKEND = replace(outside.BACKEND, name="killing", planners={{**outside.PLANNERS, "unbind": unbind}})
"""


def run(folder: Path, *args: str, backend: str = "cpu", others: tuple[str, ...] = ()) -> dict:
    path = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others]
    command += ["--pyargs", *MODULES, "--backend", backend, "--device", "cpu", "--report", str(path)]
    command += ["-k", "(unbind or case_02) and not composed", *args]
    modules = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(modules)}
    subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
    return json.loads(path.read_text(encoding="utf-8"))


def lasting(report: dict) -> dict:
    """Return what two runs of one thing have in common."""
    changing = ("started", "duration_seconds")
    footer = {name: value for name, value in report["footer"].items() if name != "seal"}
    return {name: value for name, value in report.items() if name not in changing} | {"footer": footer}


def test_the_report_is_that_of_one_process(tmp_path):
    alone, shared = run(tmp_path), run(tmp_path, "-n", "2")
    assert len(alone["cases"]) > 20
    assert any(case["features"] for case in alone["cases"])
    assert lasting(shared) == lasting(alone)


def test_tests_of_others_beside_the_suite_are_none_of_its_cases(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "test_mine.py").write_text("def test_unbind():\n    pass\n", encoding="utf-8")
    alone, beside = run(tmp_path), run(tmp_path, "-n", "2", others=("mine",))
    assert lasting(beside) == lasting(alone)


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)"], ids=["exit", "segfault"])
def test_a_case_that_kills_its_worker_has_errored_and_the_others_ran(tmp_path, end):
    (tmp_path / "killing.py").write_text(KILLING.format(end=end), encoding="utf-8")
    alone, shared = run(tmp_path, backend="outside:BACKEND"), run(tmp_path, "-n", "2", backend="killing:BACKEND")
    wrong = [case for case in shared["cases"] if case["status"] not in ("passed", "skipped")]
    assert [case["id"] for case in wrong] == ["unbind.py::test_counting_off_changes_no_value_and_no_counter"]
    assert wrong[0]["status"] == "errored"
    assert wrong[0]["reason"].startswith("the process that ran it died: worker 'gw")
    assert wrong[0]["reproduce"].endswith("--backend killing:BACKEND --device cpu")
    assert "pagebind_conformance.suite.unbind::test_counting_off" in wrong[0]["reproduce"]
    assert [case["id"] for case in shared["cases"]] == [case["id"] for case in alone["cases"]]
    assert shared["footer"]["why_incomplete"] == alone["footer"]["why_incomplete"]
    assert shared["levels"]["core"]["status"] == "failed"


def test_a_run_that_lost_a_worker_is_incomplete(tmp_path):
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    report = run(tmp_path, "-n", "2", "-p", "killer", "--max-worker-restart", "0")
    assert not report["footer"]["complete"]
    assert not report["success"]
    killers = {case["status"] for case in report["cases"] if "test_case_12" in case["id"]}
    assert killers == {"errored"}
