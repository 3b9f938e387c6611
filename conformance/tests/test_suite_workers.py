"""Runs under pytest-xdist: the report is that of a run in one process, and one that lost a worker is no evidence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed")

KILLER = """
import os
import pytest

def pytest_runtest_call(item):
    if "test_case_12" in item.nodeid and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)
"""


def run(folder: Path, *args: str) -> dict:
    path = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "pagebind_conformance"]
    command += [
        "--backend",
        "cpu",
        "--device",
        "cpu",
        "--report",
        str(path),
        "-k",
        "(unbind or case_02) and not composed",
        *args,
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_report_is_that_of_one_process(tmp_path):
    alone, shared = run(tmp_path), run(tmp_path, "-n", "2")
    assert len(alone["cases"]) > 20
    assert any(case["features"] for case in alone["cases"])
    changing = ("started", "duration_seconds")
    for one in (alone, shared):
        assert one["footer"].pop("seal")
        for name in changing:
            one.pop(name)
    assert shared == alone


def test_a_run_that_lost_a_worker_is_incomplete(tmp_path):
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")
    report = run(tmp_path, "-n", "2", "-p", "killer", "--max-worker-restart", "0")
    assert not report["footer"]["complete"]
    assert not report["success"]
    lost = [case["id"] for case in report["cases"] if "test_case_12" in case["id"] and case["status"] == "passed"]
    assert lost == []
