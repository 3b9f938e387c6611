from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from pagebind.cli import build
from typer.testing import CliRunner

from pagebind_conformance.plugin import SUITE

pytest_plugins = ["pytester"]

# A run within the run forgets what it imported; what is loaded here stays loaded, and a run costs tenths of a second.
import_module("pagebind_conformance.recording")
for module in pkgutil.iter_modules([str(SUITE)]):
    import_module(f"pagebind_conformance.suite.{module.name}")


@pytest.fixture
def run_suite(pytester: pytest.Pytester) -> Callable[..., tuple[pytest.RunResult, dict[str, Any]]]:
    """Run the suite, or the named cases of it, and return the result with the report."""

    def run(backend: str, *arguments: str, cases: tuple[str, ...] = ()) -> tuple[pytest.RunResult, dict[str, Any]]:
        report = pytester.path / "report.json"
        what = [f"{SUITE / case}" for case in cases] or ["--pyargs", "pagebind_conformance"]
        options = ["--backend", backend, "--device", "cpu", "--report", str(report), "-q", "--tb=line"]
        result = pytester.runpytest_inprocess(*what, *options, "-p", "no:cacheprovider", *arguments)
        return result, json.loads(report.read_text()) if report.exists() else {}

    return run


@pytest.fixture
def command() -> Callable[..., Any]:
    """Run `pagebind conformance` with arguments, and return its result."""
    return lambda *arguments: CliRunner().invoke(build(), ["conformance", *map(str, arguments)])
