"""The recorder: a pytest plugin that gathers every case of a run, and writes the report.

Under pytest-xdist the cases run in worker processes. Each has a recorder, whose reports carry the case they are about;
the one that started them collects nothing itself, and puts together what they send: of a case its outcome, and at its
end what a worker collected. A case whose worker died has errored.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pagebind
import pytest
from pagebind import Operation

import pagebind_conformance
from pagebind_conformance import known, source
from pagebind_conformance.difference import Difference, found_in
from pagebind_conformance.reporting import report
from pagebind_conformance.reporting.report import Report
from pagebind_conformance.subject import NOT_SUPPORTED, Subject

SUITE = Path(__file__).parent / "suite"
LONGEST_REASON = 2000
MOST_REPRODUCED = 3
"""Failed cases the terminal shows a command for."""


WORKER = "pagebind"
"""Under which a worker hands over what it found in collecting, to the process that started it."""


class Recorder:
    """Gathers the cases of one run."""

    def __init__(self, config: pytest.Config, subject: Subject) -> None:
        self.config = config
        self.subject = subject
        self.package = source.package_of(subject.backend, subject.asked)
        self.known = known.load(source.folder_of(self.package), subject.mode)
        self.cases: dict[str, dict[str, Any]] = {}  # by node id, in the order collected
        self.stale: list[str] = []
        self.why_incomplete: str | None = None
        self.collected: dict[str, dict[str, Any]] = {}  # the same before they ran: what a worker hands over
        self.heard = False  # whether one has
        self.died: dict[str, str] = {}  # node id -> what is told of the worker that died while it ran that case
        self.lost = 0  # workers that died while they ran none
        self.started = time.time()

    # ---- collecting ----

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note every case of the suite; admitted failures become strict expectations."""
        modules = set()
        for item in items:
            if item.path.parent != SUITE:
                continue
            case = describe(item)
            modules.add(item.path.name)
            self.cases[item.nodeid], self.collected[item.nodeid] = case, dict(case)
            entry = self.known.get(case["id"])
            if entry is not None:
                item.add_marker(pytest.mark.xfail(reason=entry.told, strict=True))
        missing = {path.name for path in SUITE.glob("*.py")} - {"__init__.py"} - modules
        if missing and not self.why_incomplete:
            self.why_incomplete = f"of the suite's modules {', '.join(sorted(missing))} had no part in it"
        listed = {case["id"] for case in self.cases.values()}
        self.stale = sorted(set(self.known) - listed) if not missing and not self.why_incomplete else []

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """A run with deselected cases is incomplete."""
        if items:
            self.why_incomplete = f"{len(items)} case(s) were deselected"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected makes the run incomplete."""
        if report.failed:
            self.why_incomplete = f"{report.nodeid} could not be collected"

    # ---- running ----

    def pytest_runtest_logstart(self) -> None:
        """Forget the features of the case before."""
        self.subject.used.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hand on what a comparison found, while the exception that has it is at hand."""
        made = yield
        made.__dict__["case"] = self.cases.get(item.nodeid)
        made.__dict__["features"] = sorted(self.subject.used)
        error = call.excinfo.value if call.excinfo is not None else None
        found = found_in(error)
        made.__dict__["difference"] = found.record() if found is not None else None
        if isinstance(error, Difference):  # the call stands in the record, so the reason does without
            made.__dict__["complaint"] = "\n".join([error.complaint, *_example(error)])
        entry = self.known.get(self.cases.get(item.nodeid, {}).get("id", ""))
        if entry is not None and error is not None and hasattr(made, "wasxfail") and not entry.covers(error):
            told = f"admitted to fail by {entry.exception}, it failed by {type(error).__name__}"
            del made.wasxfail
            made.outcome, made.longrepr = "failed", f"{told}: {made.__dict__.get('complaint', error)}"
            made.__dict__["complaint"] = made.longrepr
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of a case: the worst of its three phases."""
        told = getattr(report, "case", None)
        if told is None:
            return
        case = self.cases.setdefault(report.nodeid, told)
        if report.when == "call":
            case["features"] = getattr(report, "features", [])
        if getattr(report, "difference", None) is not None:
            case["difference"] = report.difference
        if report.passed:
            if report.when == "call" and case["status"] is None:
                case["status"] = "passed"
        elif report.skipped:
            reason = _skip_reason(report)
            if hasattr(report, "wasxfail"):
                case["status"], case["reason"] = "known-failure", report.wasxfail or "admitted"
            elif reason.startswith(NOT_SUPPORTED):
                case["status"], case["reason"] = "not-supported", reason[len(NOT_SUPPORTED) :]
            else:
                case["status"], case["reason"] = "skipped", reason or "no reason was given"
        elif report.failed:
            case["status"] = "failed" if report.when == "call" else "errored"
            case["reason"] = (getattr(report, "complaint", None) or _crash(report))[:LONGEST_REASON]
            case["reproduce"] = self._reproduce_case(case)

    # ---- workers of pytest-xdist ----

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take over what a worker collected; every worker that came to its end collected the same."""
        found = getattr(node, "workeroutput", {}).get(WORKER)
        if found is not None:
            self.heard, self.collected, self.stale = True, found["collected"], found["stale"]
            self.why_incomplete = self.why_incomplete or found["why_incomplete"]
        self.lost += bool(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Note the case that a worker, which is gone already, was running."""
        self.died[crashitem] = str(report.longrepr)
        self.lost -= 1

    def _take_over(self) -> None:
        if self.heard:  # in the order collected; what else the workers ran is none of the suite's
            self.cases = {node: self.cases.get(node, case) for node, case in self.collected.items()}
        for node in self.died.keys() & self.cases.keys():
            case = self.cases[node]
            case["status"] = "errored"
            case["reason"] = f"the process that ran it died: {self.died[node]}"
            case["reproduce"] = self._reproduce_case(case)
        if not self.heard:
            self.why_incomplete = self.why_incomplete or "no worker came to its end"
        elif self.lost:
            self.why_incomplete = self.why_incomplete or f"{self.lost} worker(s) died outside of a case"

    # ---- the end ----

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a run with stale known failures, and write the report that was asked for."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            told = {"collected": self.collected, "stale": self.stale, "why_incomplete": self.why_incomplete}
            output[WORKER] = told
            return
        if self.config.pluginmanager.hasplugin("dsession"):
            self._take_over()
        if self.stale and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        unfinished = sum(case["status"] is None for case in self.cases.values())
        if unfinished:
            self.why_incomplete = f"{unfinished} of {len(self.cases)} cases did not run"
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self.why_incomplete:
            self.why_incomplete = "the run was interrupted"
        path = self.config.getoption("--report")
        if path is not None and not self.config.getoption("collectonly"):
            report.write(path, self.report())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how to run failed cases again, what did not run, where the report is, and what the run is worth."""
        for case in self.stale:
            terminalreporter.write_line(f"stale known failure: {case} is no case of the suite", red=True)
        if self.config.getoption("collectonly") or not self.cases:
            return
        failed = [case["reproduce"] for case in self.cases.values() if "reproduce" in case]
        for command in failed[:MOST_REPRODUCED]:
            terminalreporter.write_line(f"reproduce: {command}")
        for line in report.without_running(self.cases.values()):
            terminalreporter.write_line(line)
        why = None if failed else report.why_no_success(self._verdict())
        if why is not None:
            terminalreporter.write_line(f"success: no, {why}")
        path = self.config.getoption("--report")
        if path is not None:
            worth = f"incomplete: {self.why_incomplete}" if self.why_incomplete else "complete"
            terminalreporter.write_line(f"conformance report: {path} ({worth})")

    # ---- reporting ----

    def report(self) -> Report:
        """Return the report of the run as it stands; cases that did not run are left out, it is incomplete then."""
        backend, device = self.subject.backend, self.subject.device
        digest = source.digest(self.package)
        if digest is None:
            raise report.ReportError(f"the sources of {self.package} are not to be found; install it, then run again")
        return report.sealed(
            {
                "schema": report.SCHEMA_VERSION,
                "suite": {"distribution": "pagebind-conformance", "version": pagebind_conformance.__version__},
                "core": {"distribution": "pagebind", "version": pagebind.__version__},
                "backend": {
                    "name": backend.name,
                    "distribution": backend.distribution,
                    "version": backend.version,
                    "package": self.package,
                    "features": sorted(backend.features),
                    "planners": sorted(backend.planners),
                },
                "source": digest,
                "commit": self.config.getoption("--commit") or source.commit_here(),
                "environment": source.environment(),
                "device": {"type": device.type, "name": source.device_name(device)},
                "mode": self.subject.mode,
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
                "duration_seconds": round(time.time() - self.started, 3),
                "reproduce": self._reproduce(),
                **self._verdict(),
            }
        )

    def _verdict(self) -> Report:
        cases = [case for case in self.cases.values() if case["status"] is not None]
        levels = report.levels_of(cases)
        complete = self.why_incomplete is None
        return {
            "success": report.successful(levels, self.stale, complete),
            "levels": levels,
            "cases": cases,
            "stale_known_failures": self.stale,
            "footer": {"complete": complete, "total": len(cases), "why_incomplete": self.why_incomplete},
        }

    def _reproduce_case(self, case: Mapping[str, Any]) -> str:
        module, _, test = case["id"].partition(".py::")
        return self._reproduce(f"pagebind_conformance.suite.{module}::{test}")

    def _reproduce(self, what: str = "pagebind_conformance") -> str:
        asked = self.subject.asked
        kept = ("PAGEBIND_", "TRITON_INTERPRET", *(["PYTHONPATH"] if ":" in asked else []))
        variables = [f"{k}={shlex.quote(v)}" for k, v in sorted(os.environ.items()) if k.startswith(kept)]
        command = ["python", "-m", "pytest", "--pyargs", what]
        command += ["--backend", asked if ":" in asked else self.subject.backend.name]
        command += ["--device", self.subject.device.type]
        if self.subject.examples is not None:
            command += ["--examples", str(self.subject.examples)]
        return " ".join([*variables, shlex.join(command)])


def describe(item: pytest.Item) -> dict[str, Any]:
    """Return what the report says of a case before it ran: its id, the operation or group it is about, the level."""
    module = getattr(item, "module", None)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    about = parameters.get("operation") or getattr(module, "OPERATION", None)
    operation = about if isinstance(about, Operation) else None
    group = getattr(module, "GROUP", None)
    level = operation.level if operation else getattr(module, "LEVEL", "core")
    return {
        "id": f"{item.path.name}::{item.nodeid.split('::', 1)[1]}",
        "operation": group or (operation.name if operation else item.path.stem),
        "level": "extended" if item.get_closest_marker("extended") else level,
        "status": None,
        "reason": "",
        "composed": parameters.get("subject") == "composed",
        "features": [],
    }


def _example(error: BaseException) -> list[str]:
    # Hypothesis adds the failing example, and then the lines of code that ran, which tell nobody anything here.
    told = "\n".join(str(note) for note in getattr(error, "__notes__", ()))
    return [line for line in [told.partition("Explanation:")[0].strip()] if line]


def _skip_reason(report: pytest.TestReport) -> str:
    # A skip's long form is (file, line, "Skipped: reason").
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return told.removeprefix("Skipped: ")


def _crash(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr) or "it failed without a message"
