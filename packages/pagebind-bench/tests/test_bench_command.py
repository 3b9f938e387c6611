"""`pagebind bench` as a user meets it; and that no speed is shown without a green report of the same build."""

import csv
import json
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from pagebind import get_backend
from pagebind.cli import build
from pagebind.words import VIRTUAL_TOP
from pagebind_bench.bench import command, evidence, limits, runner
from pagebind_bench.bench.cases import FREE, TABLE
from pagebind_bench.bench.evidence import NoEvidence, filed_reports, need_report
from pagebind_bench.bench.kinds import AdvanceCase, RefreshCase
from pagebind_bench.bench.lab import Fault, Lab
from pagebind_bench.bench.limits import Limits
from pagebind_bench.bench.record import Recorder, environment
from pagebind_bench.bench.timing import CpuTimer, GpuTimer, Round, Times
from pagebind_conformance import source
from pagebind_conformance.reporting import report as reports
from typer.testing import CliRunner

CPU = torch.device("cpu")
HERE, OTHER = "ab" * 32, "cd" * 32
CASE = {"operation": "bind", "level": "core", "status": "passed", "reason": "", "composed": False}


def report(**changes):
    """A report that the suite could have written for the CPU backend, with some values changed."""
    distribution = {"distribution": "pagebind", "version": "0.1.0"}
    cases = [{**CASE, "id": "bind.py::test_a"}, {**CASE, "id": "free.py::test_b", "level": "extended"}]
    if changes.pop("failing", False):
        cases[0] |= {"status": "failed", "reason": "it is wrong"}
    complete = changes.pop("complete", True)
    levels = reports.levels_of(cases)
    made = {
        "schema": 1,
        "suite": distribution,
        "core": distribution,
        "backend": {
            "name": "cpu",
            "distribution": "pagebind-cpu",
            "version": "0.1.0",
            "package": "pagebind_cpu",
            "features": [],
            "planners": [],
        },
        "source": HERE,
        "commit": "c0ffee",
        "environment": {"python": "3", "platform": "x", "torch": "2"},
        "device": {"type": "cpu", "name": "x"},
        "mode": "cpu",
        "started": "2026-11-30T00:00:00Z",
        "duration_seconds": 1.0,
        "reproduce": "pytest",
        "success": reports.successful(levels, [], complete),
        "levels": levels,
        "cases": cases,
        "stale_known_failures": [],
        "footer": {"complete": complete, "total": len(cases), "why_incomplete": None if complete else "it was cut"},
    }
    return made | changes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout whose sources have the digest HERE, with nothing filed in it, as the working directory."""
    monkeypatch.setattr(source, "digest", lambda _: HERE)
    monkeypatch.setattr(source, "folder_of", lambda _: None)
    monkeypatch.setitem(limits.COPIED, "cpu", 4096)
    for name in ("BACKEND", "DEVICE", "CHECKS", "INDEX_DTYPE"):
        monkeypatch.delenv(f"PAGEBIND_{name}", raising=False)
    (tmp_path / "conformance/reports/0.1.0").mkdir(parents=True)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return tmp_path


@pytest.fixture
def green(folder):
    """A green report of this build, filed in the checkout."""
    path = folder / "conformance/reports/0.1.0/cpu.json"
    reports.write(path, report())
    return path


@pytest.fixture
def invoke():
    app, testing = build(), CliRunner()
    return lambda *words: testing.invoke(app, ["bench", *map(str, words)])


COMMON = ("--backend", "cpu", "--device", "cpu", "--repeats", 3)


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    flat = " ".join(result.output.split())
    for part in parts:
        assert part in flat, flat
    return flat


def need(*paths):
    return need_report(get_backend("cpu"), "cpu", "cpu", paths)


def test_a_green_report_of_the_same_build_is_evidence_and_says_where_it_is(green):
    found = need(green)
    assert (found.path, found.source, found.commit) == (green, HERE, "c0ffee")
    assert filed_reports() == [green]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source": OTHER}, "is of another build (commit c0ffee): sources cdcdcdcdcdcd, here abababababab"),
        ({"mode": "interpreter"}, "is of mode 'interpreter', here it is 'cpu'"),
        ({"failing": True}, "is not green: 1 case(s) failed"),
        ({"complete": False}, "is incomplete"),
        ({"success": False}, "does not agree with itself"),
        ({"duration_seconds": -1}, "is no conformance report"),
    ],
)
def test_any_other_report_is_none(folder, changes, why):
    path = folder / "r.json"
    path.write_text(json.dumps(report(**changes)))
    with pytest.raises(NoEvidence) as refusal:
        need(path)
    message = str(refusal.value)
    assert why in message
    assert "python -m pytest --pyargs pagebind_conformance --backend cpu --device cpu --report report.json" in message


def test_reports_of_others_and_files_that_are_none_are_passed_over(folder, green):
    (folder / "a.json").write_text("[1, 2]")
    (folder / "b.json").write_text("no json")
    (folder / "c.json").write_text(json.dumps(report(backend={"name": "cuda"})))
    with pytest.raises(NoEvidence, match="none of it was found"):
        need(folder / "a.json", folder / "b.json", folder / "c.json", folder / "missing.json")
    assert need(folder / "a.json", folder / "c.json", green).path == green


def test_a_mode_that_exists_for_tests_is_never_timed(folder):
    backend = replace(get_backend("cpu"), modes={"cpu": "interpreter"})
    with pytest.raises(NoEvidence, match="its times there say nothing"):
        need_report(backend, "cpu", "cpu", [])


@pytest.mark.parametrize(
    "more", [(), ("--quick",), ("--promised",), ("--grid-sweep",), ("--op", "free", "--case", "n1-")]
)
def test_without_a_report_nothing_is_measured_and_nothing_written(folder, invoke, monkeypatch, more):
    monkeypatch.setattr(runner, "measure_limits", lambda *_, **__: pytest.fail("it measured"))
    refused(
        invoke(*COMMON, "--csv", folder / "a.csv", *more), "has no green conformance report", "so no speed is shown"
    )
    assert not (folder / "a.csv").exists()


def test_a_run_is_told_recorded_and_says_how_to_repeat_it(green, folder, invoke):
    path = folder / "a.csv"
    result = invoke(*COMMON, "--op", "free", "--op", "alloc", "--case", "/n16-", "--csv", path, "--commit", "beef")
    assert result.exit_code == 0, result.output
    for part in (
        "alloc: medians",
        "free: medians",
        "ceiling, copy",
        "green report",
        "c0ffee",
        "reproduce: pagebind bench",
    ):
        assert part in result.output
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    timed = [row for row in rows if row["groups"] != "limit"]
    assert {(row["op"], row["contender"]) for row in timed} >= {("free", "cpu"), ("alloc", "cpu")}
    for row in timed:
        assert float(row["p50"]) > 0
        assert row["commit"] == "beef"
        if row["contender"] == "cpu":
            assert (row["source"], row["report_commit"]) == (HERE, "c0ffee")
            assert float(row["percent_of_ceiling"]) > 0
    drawn = invoke("plot", path)
    assert drawn.exit_code == 0, drawn.output
    assert "not drawn: skew: no batch of uneven lengths in it" in drawn.output
    words = shlex.split(rows[0]["reproduce"])
    assert words[:2] == ["pagebind", "bench"]
    again = invoke(*words[2:], "--csv", path)
    assert again.exit_code == 0, again.output
    with path.open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 2 * len(rows)


@pytest.mark.parametrize(("option", "group"), [("--quick", "quick"), ("--promised", "promise")])
def test_quick_takes_the_quick_cases_and_promised_those_of_promises(green, invoke, monkeypatch, option, group):
    seen = []
    monkeypatch.setattr(runner.Run, "case", lambda self, case, told: seen.append(case))
    assert invoke(*COMMON, option).exit_code == 0
    assert len(seen) >= 8
    assert all(group in case.groups for case in seen)
    refused(invoke(*COMMON, "--quick", "--promised"), "each choose the cases: pass one of them")


def test_a_time_limit_leaves_cases_out_and_says_so(green, invoke):
    result = invoke(*COMMON, "--op", "free", "--time-limit", 0)
    assert result.exit_code == 0
    assert "13 case(s) were left out" in result.output


def test_bad_input_is_one_clear_message_and_exit_code_2(green, folder, invoke):
    refused(invoke("--op", "fre"), "--op is 'fre'", "did you mean 'free'?")
    refused(invoke(*COMMON, "--case", "bs9"), "no case of this set has 'bs9' in its name")
    refused(invoke(*COMMON, "--peer", "vllm"), "--peer", "'sglang', 'published'")
    refused(invoke(*COMMON, "--peer", "published"), "needs Triton and a GPU")
    refused(invoke(*COMMON, "--sglang", folder / "no.whl"), "neither a wheel nor a folder")
    refused(invoke(*COMMON, "--grid-sweep"), "--grid-sweep needs a GPU")
    refused(invoke(*COMMON, "--report", folder / "no.json"), "--report is", "does not exist")
    refused(invoke(*COMMON, "--report-dir", folder / "no"), "--report-dir is", "is no folder")
    refused(invoke(*COMMON, "--csv", folder / "no" / "a.csv"), "--csv is", "there is no folder")
    refused(invoke("plot", folder / "none.csv"), "cannot be read as a CSV")
    refused(invoke("plot", folder / "none.csv", "--kind", "gif"), "--kind is 'gif'")
    refused(invoke("plot", folder / "none.csv", "--out", folder / "no"), "--out is", "is no folder")


def test_reports_can_be_named_one_by_one_or_by_their_folder(folder, invoke):
    (folder / "mine").mkdir()
    reports.write(folder / "mine/r.json", report())
    small = ("--op", "free", "--case", "/n1-")
    for option, value in (("--report", folder / "mine/r.json"), ("--report-dir", folder / "mine")):
        result = invoke(*COMMON, *small, option, value)
        assert result.exit_code == 0, result.output
        assert f"{option} {value}" in result.output


def run_of(tmp_path, **changes):
    lab = Lab(CPU, (get_backend("cpu"),))
    recorder = Recorder(None, environment(CPU, None, "x"))
    found = evidence.Evidence(tmp_path, HERE, None, "now")
    return runner.Run(lab, CpuTimer(3, 0.0), recorder, {"cpu": found}, Limits({}, 1e9), **changes)


class TurningTimer(CpuTimer, GpuTimer):
    """A timer of the CPU that takes host times as one of a GPU does, by calling everybody once a turn."""

    def host(self, calls, times=32):
        for one in calls:
            if isinstance(one, Round) and one.rewind is not None:
                one.rewind()
            for call in one.first(times) if isinstance(one, Round) else [one]:
                call()
        return [Times(1.0, 2.0 + place, 9.0, 3, times, "host-loop") for place in range(len(calls))]


def test_host_times_are_taken_in_turns_with_a_bare_launch(tmp_path, monkeypatch):
    called = []
    run = run_of(tmp_path)
    run.timer = TurningTimer(3, 0.0)
    run.lab.bare = {"other": lambda: called.append("other"), "cpu": lambda: called.append("cpu")}
    monkeypatch.setattr(run, "_allocated", lambda: 0)
    run.case(replace(TABLE, bs=2, length=30, width=32, memory=0))
    rows = {row["contender"]: row for row in run.recorder.rows if row["metric"] == "host"}
    assert called == ["other", "cpu"]
    assert (rows["cpu"]["p50"], rows["cpu"]["bare_us"]) == (2.0, 5.0)  # of two contenders and two bare launches
    assert rows["index_select"]["bare_us"] is None


def test_host_times_of_decode_steps_are_of_steps_that_take_pages(tmp_path, monkeypatch):
    run = run_of(tmp_path)
    run.timer = TurningTimer(3, 0.0)
    made = []
    maker = runner.MAKERS["advance"]

    def seen(case, lab):
        [own] = maker(case, lab)
        return [own._replace(make=lambda: made.append(own.make()) or made[0])]

    monkeypatch.setitem(runner.MAKERS, "advance", seen)
    monkeypatch.setattr(run, "_allocated", lambda: 0)
    run.case(AdvanceCase(bs=2, length=200, width=256, memory=0))
    [work] = made
    work.need_sound()
    left = work.turns.calls[32 + runner.ALLOCATING_CALLS :]
    assert work.state[VIRTUAL_TOP] == 2 * len(left)


def test_a_round_is_what_is_timed(tmp_path):
    run = run_of(tmp_path)
    run.case(RefreshCase(bs=2, length=200, width=256, memory=0))
    [row] = run.recorder.rows
    assert (row["op"], row["refresh"], row["pool"]) == ("refresh_table", "steady", 564)
    assert row["p50"] > 0


def test_a_contender_that_is_wrong_ends_the_run(tmp_path, monkeypatch):
    run = run_of(tmp_path)
    maker = runner.MAKERS["read_table"]

    def spoiled(case, lab):
        [own, *_] = maker(case, lab)

        def make():
            work = own.make()
            return replace(work, result=lambda: work.result() + 1)

        return [own, own._replace(name="other", make=make)]

    monkeypatch.setitem(runner.MAKERS, "read_table", spoiled)
    with pytest.raises(Fault, match=r"other on read_table bs2.*: its result is not that of the contenders before it"):
        run.case(replace(TABLE, bs=2, length=30, width=32, memory=0))
    assert [row["contender"] for row in run.recorder.rows] == ["cpu"]


def test_what_cannot_be_measured_here_has_a_row_with_the_reason(tmp_path, monkeypatch):
    run = run_of(tmp_path)
    run.case(replace(FREE, l2="cold"))
    monkeypatch.setattr(runner, "_memory", lambda _: 1000)
    run.case(FREE)
    monkeypatch.undo()
    bare = replace(get_backend("cpu"), features=frozenset())
    run.lab.backends = (bare,)
    run.case(replace(TABLE, bs=2, length=30, width=32, memory=0))
    told = [(row["contender"], row["reason"]) for row in run.recorder.rows if row.get("p50") is None]
    assert [reason.split(",")[0] for _, reason in told[:2]] == [
        "a cold second-level cache is measured on a GPU only",
        "it takes about 0.0 GiB",
    ]
    assert "does not declare fill=prefix" in told[2][1]


def test_a_sweep_times_the_shipped_launch_and_every_other_and_finds_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SWEEP_THREADS", (64, 128))
    monkeypatch.setattr(runner, "SWEEP_PROGRAMS", (256, 512))
    run = run_of(tmp_path)
    run.sweep(replace(FREE, pages=8, holes=0, pool=64))
    rows = run.recorder.rows
    assert [(row["threads"], row["programs"]) for row in rows] == [
        (None, None),
        *((threads, programs) for threads in (64, 128) for programs in (256, 512)),
    ]
    [(fastest, shipped)] = runner.best(rows)
    assert shipped is rows[0]
    assert fastest["p50"] == min(row["p50"] for row in rows[1:])
    assert run.lab.options.threads is None


def test_measuring_imports_neither_pandas_nor_matplotlib_nor_triton():
    code = (
        "import sys\n"
        "from pagebind_bench.bench import command, cases, limits, makers, promises, record, runner, tell\n"
        "print(sorted({'pandas', 'matplotlib', 'triton', 'cupy', 'jinja2'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_command_is_listed_and_explains_itself(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    for option in ("--op", "--backend", "--peer", "--grid-sweep", "--quick", "--promised", "--csv", "--report", "plot"):
        assert option in result.output
    assert command.app.registered_commands
