"""The installed backend passes pagebind's conformance suite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_suite_is_a_success(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    suite = [sys.executable, "-m", "pytest", "-q", "--pyargs", "pagebind_conformance", "--backend", "numpy"]
    few = ["--device", "cpu", "--examples", "2", "--report", str(report)]
    ran = subprocess.run([*suite, *few], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(report.read_text())["success"], ran.stdout
