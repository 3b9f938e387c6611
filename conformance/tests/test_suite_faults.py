"""Each fault of a real backend is found by the case meant for it, in every mode that this machine has."""

from __future__ import annotations

import ast
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from faults import BACKENDS, WITH_GPU, WITHOUT_GPU, copy_of, load, package_of
from faults.__main__ import Kills, jobs_of, read_matrix, rows_of, tell, write_matrix
from faults.runner import Job, Outcome, run

from pagebind_conformance.reporting import coverage

FAULTS = load()
HAS_GPU = torch.cuda.is_available()
MODES = [*WITHOUT_GPU.values(), *([WITH_GPU] if HAS_GPU else [])]
JOBS = jobs_of(FAULTS, MODES)
AT_ONCE = min(os.cpu_count() or 1, 12)


def missing(job: Job) -> str | None:
    """Return why a backend does not run here in the mode of a job, or None."""
    if job.mode == "interpreter":  # which this process itself is not run in
        return None if find_spec("triton") else "triton is not installed"
    return import_module(package_of(job.backend)).backend.probe("cuda" if job.mode == WITH_GPU else "cpu")


@pytest.fixture(scope="module")
def outcomes():
    """Run all faults that this machine can show."""
    able = [job for _, job in JOBS.values() if missing(job) is None]
    return {outcome.job.name: outcome for outcome in run(able, AT_ONCE)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", JOBS)
def test_a_fault_of_a_backend_is_found_by_the_case_meant_for_it(outcomes, name):
    fault, job = JOBS[name]
    if missing(job) is not None:
        pytest.skip(f"{job.backend} in mode {job.mode}: {missing(job)}")
    assert outcomes[name].failed(fault.case), tell(fault, outcomes[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_replaces_a_text_that_stands_once_in_its_source(tmp_path, backend):
    package = copy_of(backend, tmp_path)
    for fault in (one for one in FAULTS if one.backend == backend):
        path = package / fault.file
        text = path.read_text()
        fault.apply(package)
        if path.suffix == ".py":
            ast.parse(path.read_text(), fault.id)
        path.write_text(text)


def test_a_text_that_a_source_has_not_or_twice_is_refused(tmp_path):
    fault = FAULTS[0]
    package = copy_of(fault.backend, tmp_path)
    fault.apply(package)
    with pytest.raises(ValueError, match=f"{fault.id}.* 0 times"):
        fault.apply(package)
    (package / fault.file).write_text(2 * fault.old)
    with pytest.raises(ValueError, match=f"{fault.id}.* 2 times"):
        fault.apply(package)


def test_faults_have_names_reasons_modes_of_their_backend_and_cases_that_there_are():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    cases = coverage.cases()
    for fault in FAULTS:
        assert fault.reason, fault.id
        assert fault.modes, fault.id
        assert set(fault.modes) <= {WITHOUT_GPU[fault.backend], WITH_GPU}, fault.id
        assert fault.case in cases, fault.id


def test_a_sound_backend_is_not_found_faulty(tmp_path):
    cases = tuple(sorted({fault.case for fault in FAULTS if "cpu" in fault.modes}))
    (outcome,) = run([Job("sound", "cpu", "cpu", cases)])
    assert not outcome.trouble
    assert outcome.cases == dict.fromkeys(cases, "passed")


def test_a_backend_that_hangs_or_dies_is_told_apart_from_one_that_fails():
    def endless(package):
        (package / "__init__.py").write_text("import time\ntime.sleep(60)\n")

    def deadly(package):
        (package / "__init__.py").write_text("import os\nos._exit(9)\n")

    case = ("unbind.py::test_awkward_sizes",)
    jobs = [Job("endless", "cpu", "cpu", case, endless), Job("deadly", "cpu", "cpu", case, deadly)]
    told = {outcome.job.name: outcome for outcome in run(jobs, limit=20)}
    assert "still running after 20 s" in told["endless"].trouble
    assert "ended with code 9" in told["deadly"].trouble
    assert not told["endless"].failed(case[0])
    assert not told["deadly"].failed(case[0])


def ending(how):
    """Return a patch of the cpu backend that ends the process where an unbinding is given an id it may not unbind."""
    old = "            if options.count:\n"

    def patch(package):
        path = package / "unbind.py"
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, f"            import os, signal\n            {how}\n{old}"))

    return patch


SOUND = "bind.py::test_case_04_tables_of_another_size_than_the_owner_of_the_ids"
REPEATED = "unbind.py::test_case_11_the_same_id_twice_in_one_call_comes_back_once"
OUTSIDE = "unbind.py::test_the_sink_and_ids_outside_are_dropped_and_counted"


@pytest.mark.parametrize(
    ("how", "code"),
    [("os._exit(3)", 3), ("os._exit(0)", 0), ("os.kill(os.getpid(), signal.SIGSEGV)", -11)],
    ids=["exit", "exit0", "segfault"],
)
def test_a_case_that_the_process_does_not_survive_has_failed(how, code):
    (outcome,) = run([Job("dies", "cpu", "cpu", (SOUND, REPEATED, OUTSIDE), ending(how))])
    assert outcome.cases == {SOUND: "passed", REPEATED: "failed"}
    assert outcome.reasons == {REPEATED: f"the process that ran it ended with code {code}"}
    assert f"ended with code {code}" in outcome.trouble


def test_a_process_that_somebody_else_ended_says_nothing_about_its_case():
    (outcome,) = run([Job("killed", "cpu", "cpu", (SOUND, REPEATED), ending("os.kill(os.getpid(), signal.SIGKILL)"))])
    assert outcome.cases == {SOUND: "passed"}
    assert "ended with code -9" in outcome.trouble


@pytest.mark.parametrize(("meant", "becomes"), [(OUTSIDE, "failed"), (SOUND, "passed")], ids=["faulty", "sound"])
def test_where_the_process_dies_before_the_case_meant_for_a_fault_that_case_runs_alone(meant, becomes):
    patch = ending("os._exit(3)")
    alone = Job("dies", "cpu", "cpu", (meant,), patch, only="i64", stops=True)
    (outcome,) = run([Job("dies", "cpu", "cpu", (REPEATED, meant), patch, alone=alone)])
    assert outcome.cases == {REPEATED: "failed", meant: becomes}
    assert "ended with code 3" in outcome.trouble


def test_a_run_of_whole_modules_has_the_job_of_the_case_meant_for_the_fault():
    whole = jobs_of(FAULTS, MODES, whole=True)
    assert whole.keys() == JOBS.keys()
    for name, (fault, job) in whole.items():
        assert (job.cases, job.only, job.alone) == (fault.modules, "", JOBS[name][1])
        assert (job.alone.cases, job.alone.only, job.alone.stops) == ((fault.case,), fault.only, True)


@pytest.mark.parametrize("mode", ["cpu", "host", "interpreter"])
def test_the_readme_tells_what_the_filed_matrices_show(mode):
    folder = Path(__file__).parent
    kills = Kills.of(read_matrix(folder / f"faults/kills-{mode}.csv"))
    figures = [len(kills.ran), len(kills.cases), len(kills.finding), len(kills.alone), len(kills.enough())]
    text = (folder.parent / "README.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| [kills-{mode}.csv]")]
    assert [int(cell) for cell in row.split("|")[2:-1]] == figures
    assert f"{kills.generated} of the {len(kills.ran)}" in " ".join(text.split())


def test_a_matrix_is_read_as_it_was_written(tmp_path):
    fault, job = next(iter(JOBS.values()))
    others = {"a.py::alone": "failed", "a.py::sound": "passed", "a.py::else": "skipped"}
    rows = rows_of([(fault, Outcome(job, cases={fault.case: "passed", **others}))])
    write_matrix(tmp_path / "kills.csv", rows)
    kills = Kills.of(read_matrix(tmp_path / "kills.csv"))
    assert kills == Kills.of(rows)
    assert kills.cases == {fault.case, "a.py::alone", "a.py::sound"}
    assert kills.finding == kills.alone == {"a.py::alone"} == set(kills.enough())
