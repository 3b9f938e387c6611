from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagebind_conformance.plugin import SUITE

pytest_plugins = ["pytester"]


@pytest.fixture
def run_suite(pytester: pytest.Pytester) -> Callable[..., tuple[pytest.RunResult, dict[str, Any]]]:
    """Run the suite, or the named cases of it, and return the result with the report."""

    def run(backend: str, *arguments: str, cases: tuple[str, ...] = ()) -> tuple[pytest.RunResult, dict[str, Any]]:
        report = pytester.path / "report.json"
        what = [f"{SUITE / case}" for case in cases] or ["--pyargs", "pagebind_conformance"]
        result = pytester.runpytest_inprocess(
            *what, "--backend", backend, "--device", "cpu", "--report", str(report), "-q", "-p", "no:cacheprovider",
            *arguments,
        )  # fmt: skip
        return result, json.loads(report.read_text()) if report.exists() else {}

    return run


@pytest.fixture
def here() -> Path:
    return Path(__file__).parent
