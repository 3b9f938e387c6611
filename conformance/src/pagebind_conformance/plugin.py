"""The pytest plugin: options, collection of the suite, the backend under test, and the report.

It is loaded in every pytest run of an environment that has the suite, and does nothing unless `--backend` is given or
the suite is what is being run. So nothing heavy is imported here before that is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pagebind_conformance.subject import Subject

SUITE = Path(__file__).parent / "suite"
CHOSEN: pytest.StashKey[Subject] = pytest.StashKey()
COMPOSED: pytest.StashKey[Subject] = pytest.StashKey()

# What the rest is built on comes first, so that the first failure shown is the nearest to its fault.
FIRST = ("bind", "unbind", "translate", "read_table", "contract", "compiling", "launching")
LAST = ("state_machine", "graphs", "large")

# Failing comparisons show their values: pytest rewrites assertions of test modules only, unless told here.
pytest.register_assert_rewrite(
    "pagebind_conformance.trial", "pagebind_conformance.suite", "pagebind_conformance.guarded"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("pagebind", "conformance of pagebind backends")
    group.addoption("--backend", metavar="NAME", help="backend under test: installed name, or module:attribute")
    group.addoption("--device", metavar="D", help="device it is tested on; left out, as configured")
    group.addoption("--report", metavar="FILE", type=Path, help="write the conformance report to FILE")
    group.addoption("--commit", metavar="SHA", help="commit the report names; left out, that of the working directory")
    group.addoption("--examples", metavar="N", type=int, help="generated cases per spec; left out, as the mode affords")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the backend, once, where the suite is to be run."""
    config.addinivalue_line("markers", "extended: the case needs extended operations, whatever its module is about")
    if not _asked_for(config):
        return
    from pagebind.errors import PagebindError

    from pagebind_conformance.recording import Recorder
    from pagebind_conformance.reporting import report
    from pagebind_conformance.subject import choose

    examples = config.getoption("--examples")
    if examples is not None and examples < 1:
        raise pytest.UsageError(f"--examples is {examples}; it must be at least 1")
    path = config.getoption("--report")
    try:
        if path is not None and not hasattr(config, "workerinput"):
            report.prepare(path)
        own, composed = choose(config.getoption("--backend"), config.getoption("--device"), examples)
        recorder = Recorder(config, own)
    except PagebindError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[CHOSEN], config.stash[COMPOSED] = own, composed
    config.pluginmanager.register(recorder, "pagebind-conformance-recorder")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is tested."""
    subject = config.stash.get(CHOSEN, None)
    if subject is None:
        return None
    backend = subject.backend
    return f"pagebind backend: {backend.name} {backend.version} on {subject.device}, mode {subject.mode}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the modules of the suite, whatever `python_files` says: they are named as the operations are."""
    if CHOSEN not in parent.config.stash or file_path.parent != SUITE or file_path.suffix != ".py":
        return None
    if file_path.name == "__init__.py" or parent.session.isinitpath(file_path):
        return None  # a module that is named on the command line pytest collects by itself
    return pytest.Module.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of an extended operation twice: with the backend's own planner, and composed from its core."""
    if "subject" not in metafunc.fixturenames or metafunc.definition.path.parent != SUITE:
        return
    operation = getattr(metafunc.module, "OPERATION", None)
    level = operation.level if operation is not None else getattr(metafunc.module, "LEVEL", "core")
    if level == "extended":
        metafunc.parametrize("subject", ["own", "composed"], indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the suite: the core, contracts, a backend's own extended operations, composed ones, then what uses all."""
    if CHOSEN in config.stash:
        items.sort(key=_tier)


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Any:
    """Return the backend under test on its device; composed forms stand in where the parameter says so."""
    chosen = request.config.stash.get(CHOSEN, None)
    if chosen is None:
        pytest.skip("no backend is under test: run pytest --pyargs pagebind_conformance --backend NAME")
    return request.config.stash[COMPOSED] if getattr(request, "param", "own") == "composed" else chosen


def _tier(item: pytest.Item) -> int:
    if item.path.parent != SUITE:
        return -1
    if item.path.stem in FIRST:
        return FIRST.index(item.path.stem)
    if item.path.stem in LAST:
        return len(FIRST) + 2 + LAST.index(item.path.stem)
    callspec = getattr(item, "callspec", None)
    return len(FIRST) + (callspec is not None and callspec.params.get("subject") == "composed")


def _asked_for(config: pytest.Config) -> bool:
    if config.getoption("--backend"):
        return True
    if config.getoption("pyargs") and any(arg.split("::")[0].startswith("pagebind_conformance") for arg in config.args):
        return True
    return any(_within_suite(arg, config.invocation_params.dir) for arg in config.args)


def _within_suite(argument: str, directory: Path) -> bool:
    path = (directory / argument.split("::", maxsplit=1)[0]).resolve()
    return path == SUITE or SUITE in path.parents
