"""Run cases of the suite on a patched backend, each patch in a process of its own, several at a time.

A process is forked from one that has torch and the suite loaded, and so begins in a tenth of a second; the backend, and
what it compiles with, is imported in the process itself, from the copy.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults import WITH_GPU, copy_of, package_of
from pagebind_conformance.plugin import SUITE

LIMIT = 300.0
"""Seconds that a patched backend has: a fault may make a loop endless."""

PRELOADED = ["torch", "hypothesis", "pytest", "pydantic_settings", "pydantic.dataclasses"]
SLOW_FIRST = {"host": 0, WITH_GPU: 1, "interpreter": 2, "cpu": 3}

WORST = ("passed", "skipped", "errored", "failed")
RUNNING = "running"
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that somebody else ended: no fault of a backend."""

Patch = Callable[[Path], None]


@dataclass(frozen=True)
class Job:
    """A backend to patch, and what to run on it."""

    name: str
    backend: str
    mode: str
    cases: tuple[str, ...]
    """Modules of the suite, or `module.py::test`."""
    patch: Patch | None = None
    """Changes a copy of the backend's package; None leaves it as it is."""
    only: str = ""
    """pytest's -k expression."""
    stops: bool = False
    """Whether the first failure ends it."""
    alone: Job | None = None
    """The case meant for the fault, by itself: run where the process of all cases ends before that case has failed."""


@dataclass
class Outcome:
    """What became of a job."""

    job: Job
    cases: dict[str, str] = field(default_factory=dict)
    """`module.py::test` -> `failed` where one of its parameters did, else `passed`, `errored` or `skipped`."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of failed cases, the first line of the first failure."""
    trouble: str = ""
    """Why it did not come to its end; empty where it did."""
    seconds: float = 0.0

    def add(self, case: str, status: str, reason: str) -> None:
        """Note what became of one parameter of a case; the worst of them is what became of the case."""
        known = self.cases.get(case, status)
        # A case of which some parameters run and others are skipped ran.
        ran = {known, status} - {"skipped"}
        self.cases[case] = max(ran, key=WORST.index) if ran else "skipped"
        if status in ("failed", "errored"):
            self.reasons.setdefault(case, reason)

    def failed(self, case: str) -> bool:
        """Whether a case failed."""
        return self.cases.get(case) == "failed"


def run(jobs: Sequence[Job], at_once: int = 2, limit: float = LIMIT) -> Iterator[Outcome]:
    """Run jobs, and yield what became of each as it ends."""
    context = multiprocessing.get_context("forkserver")
    suite = [f"pagebind_conformance.suite.{module.name}" for module in pkgutil.iter_modules([str(SUITE)])]
    context.set_forkserver_preload([*PRELOADED, "pagebind_conformance.recording", *suite])
    ordered = sorted(jobs, key=lambda job: SLOW_FIRST[job.mode])
    with ThreadPoolExecutor(at_once) as pool:
        for ended in as_completed([pool.submit(_run_one, context, job, limit) for job in ordered]):
            yield ended.result()


def _run_one(context: Any, job: Job, limit: float) -> Outcome:
    outcome = _once(context, job, limit)
    if job.alone is not None and outcome.trouble and not any(map(outcome.failed, job.alone.cases)):
        alone = _once(context, job.alone, limit)
        for case, status in alone.cases.items():
            outcome.add(case, status, alone.reasons.get(case, ""))
        outcome.seconds += alone.seconds
    return outcome


def _once(context: Any, job: Job, limit: float) -> Outcome:
    outcome = Outcome(job)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pagebind-fault-") as name:
        folder = Path(name)
        package = copy_of(job.backend, folder)
        if job.patch is not None:
            job.patch(package)
        plain = (job.backend, job.mode, job.cases, job.only, job.stops)
        process = context.Process(target=_play, args=(name, *plain))
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
            outcome.trouble = f"it was still running after {limit:.0f} s"
        unfinished = _read(folder, outcome)
        if not outcome.trouble and not (folder / "whole").exists():
            said = (folder / "log").read_text(errors="replace").strip().splitlines()[-30:]
            outcome.trouble = f"the process ended with code {process.exitcode}:\n" + "\n".join(said)
            if unfinished and process.exitcode not in FROM_OUTSIDE:
                outcome.add(unfinished, "failed", f"the process that ran it ended with code {process.exitcode}")
    outcome.seconds = time.monotonic() - began
    return outcome


def _read(folder: Path, outcome: Outcome) -> str:
    """Gather what the process wrote down, a line a case, and return the case that it was running at its end, if any."""
    path = folder / "cases"
    unfinished = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        case, status, reason = json.loads(line)
        unfinished = case if status == RUNNING else ""
        if status != RUNNING:
            outcome.add(case, status, reason)
    return unfinished


class _Collector:
    """Writes down which case begins, and what becomes of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._write(item.nodeid, RUNNING)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        status = {"passed": "passed", "skipped": "skipped"}.get(report.outcome, "failed")
        if report.when != "call":
            if report.passed:
                return
            status = "errored" if report.failed else "skipped"
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = (crash.message if crash else str(report.longrepr or "")).strip().splitlines()[:1]
        self._write(report.nodeid, status, "".join(reason)[:300])

    def _write(self, node: str, status: str, reason: str = "") -> None:
        module, _, test = node.rpartition("/")[2].partition("::")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([f"{module}::{test.partition('[')[0]}", status, reason]) + "\n")


def _play(name: str, backend: str, mode: str, cases: tuple[str, ...], only: str, stops: bool) -> None:
    """Run the suite in this process, on the copy in a folder."""
    folder = Path(name)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = name  # where libraries of the host build are kept: gone with the copy
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    if mode == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, name)
    import hypothesis
    import torch

    torch.set_num_threads(1)  # several processes share the cores
    # Whether a generated case fails is all that counts: its input stays as large as it was found.
    hypothesis.settings.register_profile("faults", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
    hypothesis.settings.load_profile("faults")
    (folder / "pytest.ini").write_text("[pytest]\n")
    # A backend's own planners are what is patched; what core composes over others has runs of its own.
    chosen = "not composed" + (f" and ({only})" if only else "")
    options = ["--backend", f"{package_of(backend)}:backend", "--device", "cuda" if mode == WITH_GPU else "cpu"]
    options += [
        "-q",
        "--tb=short",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:unraisableexception",
        "-c",
        "pytest.ini",
    ]
    options += ["--rootdir", str(SUITE.parent), "-k", chosen]
    options += ["-x"] if stops else []
    code = pytest.main([*(str(SUITE / case) for case in cases), *options], plugins=[_Collector(folder / "cases")])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        (folder / "whole").touch()
