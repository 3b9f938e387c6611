"""`new-backend` writes a distribution that is found by its name, is clean, and passes the core; it refuses the rest."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pagebind import Backend, cli
from pagebind.errors import InvalidArgument
from pagebind.ops import OPERATIONS
from pagebind.registry import get_backend
from pagebind.words import API_VERSION
from typer.testing import CliRunner

import pagebind_conformance
from pagebind_conformance.known import tomllib
from pagebind_conformance.new_backend import command
from pagebind_conformance.new_backend.command import LONGEST_NAME

ROOT = Path(__file__).parents[2]
CORE = ("bind", "unbind", "translate", "read_table", "beside", "contract", "awkward")
LONGEST = "a" * (LONGEST_NAME // 2) + "-" + "b" * (LONGEST_NAME - LONGEST_NAME // 2 - 1)


def suite_command(name):
    return ["-m", "pytest", "-q", "--pyargs", "pagebind_conformance", "--backend", name]


def run(*arguments):
    return CliRunner().invoke(cli.build(), ["conformance", "new-backend", *map(str, arguments)])


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Write a backend and offer it as an installer does: its folder on the path, its entry point beside it."""

    def make(name: str) -> Path:
        folder = tmp_path / "new"
        done = run(name, folder)
        assert done.exit_code == 0, done.output
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
        points = project["entry-points"]["pagebind.backends"]
        lines = ["[pagebind.backends]", *(f"{point} = {value}" for point, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(folder / "src"))
        return folder

    yield make
    for module in [module for module in sys.modules if module.startswith("pagebind_made")]:
        del sys.modules[module]


def test_it_is_found_by_its_name_and_passes_the_core(made, run_suite):
    made("made-here")
    cases = tuple(f"{module}.py" for module in CORE)
    result, report = run_suite("made-here", "--examples", "8", "-k", "not composed", cases=cases)
    core = [case for case in report["cases"] if case["level"] == "core"]
    assert {case["operation"] for case in core} >= {"bind", "unbind", "translate", "read_table", "contract"}
    assert {case["status"] for case in core} == {"passed"}
    assert {case["status"] for case in report["cases"] if case["id"].startswith("beside.py")} >= {"passed"}
    assert not {case["status"] for case in report["cases"]} & {"failed", "errored"}
    assert result.ret == 0
    assert report["backend"]["distribution"] == "pagebind-made-here"
    assert report["backend"]["version"] == "0.1.0"


def test_its_record_declares_the_core_and_every_feature_of_it(made):
    made("made_there")
    backend = get_backend("made_there", device="cpu")
    assert set(backend.planners) == {name for name, operation in OPERATIONS.items() if operation.level == "core"}
    forms = {f"{kind}={unit}" for kind in ("form", "granularity") for unit in ("token", "page")}
    assert backend.features == forms | {"fill=prefix", "fill=sink", "windowed", "beside", "context_parallel"}
    assert backend.api_version == API_VERSION
    assert backend.reason_against("cpu") is None


def test_a_later_core_refuses_its_record(made):
    folder = made("made-later")
    record = folder / "src/pagebind_made_later/__init__.py"
    record.write_text(record.read_text().replace(f"api_version={API_VERSION}", f"api_version={API_VERSION - 1}"))
    namespace: dict[str, Backend] = {}
    exec(compile(record.read_text(), str(record), "exec"), namespace)
    assert "made for backend API" in (namespace["backend"].reason_against("cpu") or "")


@pytest.mark.parametrize("name", ["a", "made-here", LONGEST])
def test_what_is_written_is_clean_by_its_own_settings_and_by_ours(made, name):
    folder = made(name)
    for settings in (folder, ROOT):
        for action in (["check"], ["format", "--check"]):
            ruff = [sys.executable, "-m", "ruff", *action, "--no-cache", "--config", str(settings / "pyproject.toml")]
            ran = subprocess.run(ruff, cwd=folder, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("verdict", ["success", "failure", "crash"])
def test_its_test_passes_only_where_the_suite_is_a_success(made, monkeypatch, tmp_path, verdict):
    """The suite is stood in for by what the test starts: what it asks for, and what it makes of the answer."""
    folder = made("made-here")
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(compile((folder / "tests/test_conformance.py").read_text(), "test_conformance.py", "exec"), namespace)
    asked = []

    def suite(command, **_):
        asked.extend(command)
        report = Path(command[command.index("--report") + 1])
        report.write_text(json.dumps({"success": verdict != "failure"}))
        return subprocess.CompletedProcess(command, int(verdict == "crash"), "", "")

    monkeypatch.setattr(subprocess, "run", suite)
    with nullcontext() if verdict == "success" else pytest.raises(AssertionError):
        namespace["test_the_suite_is_a_success"](tmp_path)
    assert asked[1:8] == suite_command("made-here")


def test_its_session_runs_the_suite_with_a_report(made, monkeypatch):
    folder = made("made-here")
    # Nox starts the tests, and is not installed where they run.
    nox = SimpleNamespace(options=SimpleNamespace(), session=lambda venv_backend: lambda function: function)
    monkeypatch.setitem(sys.modules, "nox", nox)
    ran = []
    session = SimpleNamespace(posargs=["-x"], run=lambda *command, external: ran.append(command))
    runpy.run_path(str(folder / "noxfile.py"))["suite"](session)
    asked = (*suite_command("made-here"), "--device", "cpu", "--report", "out/made-here.json", "-x")
    assert ran == [(sys.executable, *asked)]
    assert nox.options.sessions == ["suite"]


def test_it_tells_what_it_wrote_and_what_to_do_next(tmp_path):
    told = run("told", tmp_path / "new").output
    written = sorted(str(path) for path in (tmp_path / "new").rglob("*") if path.is_file())
    assert sorted(told.partition("\n\n")[0].splitlines()) == written
    assert f"pip install -e {tmp_path / 'new'}\n" in told
    assert "--backend told --device cpu\n" in told


def test_every_template_is_packaged():
    table = tomllib.loads((ROOT / "conformance/pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = Path(pagebind_conformance.__file__).parent / "new_backend"
    packaged = {path for pattern in table["pagebind_conformance.new_backend"] for path in package.glob(pattern)}
    files = {path for path in (package / "templates").rglob("*") if path.is_file()}
    assert len(files) == 11
    assert packaged == files


@pytest.mark.parametrize("name", ["", "Mine", "1mine", "my--own", "mine-", "my own", "mine:backend", "../mine", "é"])
def test_a_name_that_no_backend_can_have_is_refused(tmp_path, name):
    refused(run(name, tmp_path / "new"), f"backend name {name!r} (from NAME)", "for example my-backend")
    assert not (tmp_path / "new").exists()


def test_a_name_that_is_too_long_is_refused(tmp_path):
    refused(run(LONGEST + "c", tmp_path / "new"), f"{LONGEST_NAME} characters at most")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["cpu", "cuda", "triton"])
def test_the_name_of_a_backend_that_exists_is_refused(tmp_path, name):
    refused(run(name, tmp_path / "new"), f"{name!r} (from NAME) is taken", "cpu, cuda, triton")
    assert not (tmp_path / "new").exists()


def test_the_name_of_an_installed_backend_from_outside_is_refused(made, tmp_path):
    made("made-here")
    refused(run("made-here", tmp_path / "other"), "is taken", "made-here")
    refused(run("made_here", tmp_path / "other"), "pagebind-made-here", "installed already")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["cpu", "cuda", "triton"])
def test_the_name_of_a_known_backend_that_is_not_installed_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(command, "entry_points", lambda group: EntryPoints(()))
    with pytest.raises(InvalidArgument, match="taken: cpu, cuda, triton"):
        command.need_free(name)


def test_what_another_distribution_or_package_is_called_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "pagebind_half_there-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: Pagebind_half.there\nVersion: 1.0\n")
    (tmp_path / "pagebind_other_half.py").touch()
    for name in ("half-there", "other-half"):
        with pytest.raises(InvalidArgument, match="installed already"):
            command.need_free(name)
    command.need_free("third-half")


@pytest.mark.parametrize(("name", "why"), [("auto", "best usable backend"), ("conformance", "installed already")])
def test_a_name_that_means_something_else_is_refused(tmp_path, name, why):
    refused(run(name, tmp_path / "new"), f"{name!r} (from NAME)", why)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "kept").write_text("mine")
    refused(run("fresh", tmp_path), f"{tmp_path} (from DIR) exists and is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / "kept").write_text("mine")
    refused(run("fresh", tmp_path / "kept"), "exists and is a file")
    assert (tmp_path / "kept").read_text() == "mine"


def test_an_empty_folder_is_taken(tmp_path):
    assert run("fresh", tmp_path).exit_code == 0
    assert (tmp_path / "src/pagebind_fresh/__init__.py").is_file()


def refused(done, *told: str) -> None:
    message = " ".join(done.stderr.split())
    assert done.exit_code == 2
    assert message.startswith("error: ")
    for part in told:
        assert part in message
