"""Sessions of pagebind: `nox` runs the default ones, `nox -s NAME -- ARGS` one of them, `nox -l` lists all.

The default sessions share one environment, made once and kept in `.nox/shared`; with `--no-venv` they run in the
current one and install nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nox

ROOT = Path(__file__).parent
TORCH = "torch==2.13.0"
DISTRIBUTIONS = {
    "pagebind": "packages/pagebind",
    "pagebind-cpu": "backends/cpu",
    "pagebind-triton": "backends/triton",
    "pagebind-cuda": "backends/cuda",
    "pagebind-conformance": "conformance",
    "pagebind-bench": "packages/pagebind-bench",
}
TOOLS = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "playwright"]
TOOLS += ["mypy", "ruff", "pandas-stubs", "types-jsonschema"]
PARALLEL = ("-n", "auto", "--dist", "worksteal")
# Of each worker's threads of OpenMP, those without work sleep: they would take the core of another worker by waiting.
SHARING = {"OMP_WAIT_POLICY": "PASSIVE"}
TESTS = [f"{folder}/tests" for folder in DISTRIBUTIONS.values()]
FAULTS = ROOT / "conformance/tests"  # where the package `faults` lies
MUTATION = "cosmic-ray==8.7.0"
OUT = ROOT / "out"

SHARED = ROOT / ".nox" / "shared"
IN_PLACE = "--no-venv" in sys.argv  # a session cannot tell `--no-venv` from a backend of its own choice

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", "tests", "cpu", "triton", "cuda", "examples", "report"]

# Nox makes an environment for each session; these have none of their own and run in the shared one (see _install).
shared = nox.session(venv_backend="none")


@shared
def cpu(session: nox.Session) -> None:
    """Run the conformance suite on the torch-CPU backend."""
    _install(session)
    _conformance(session, "cpu", "--device", "cpu")


@shared
def triton(session: nox.Session) -> None:
    """Run the conformance suite on the Triton backend: on the GPU where there is one, else in the interpreter."""
    _install(session)
    if _has_gpu():
        _conformance(session, "triton", "--device", "cuda")
    else:
        _conformance(session, "triton", "--device", "cpu", env={"TRITON_INTERPRET": "1"})


@shared
def cuda(session: nox.Session) -> None:
    """Run the conformance suite on the CUDA backend: on the GPU, else its sources built for the host and sanitized."""
    _install(session)
    if _has_gpu():
        _conformance(session, "cuda", "--device", "cuda")
        return
    host = json.loads(_ask("-m", "pagebind_cuda.host", "--json"))
    if host["missing"]:
        session.skip(f"no GPU, and {host['missing']}")
    _conformance(session, "cuda", "--device", "cpu", env=host["environment"])


@shared
def tests(session: nox.Session) -> None:
    """Run the unit tests of every distribution, the suite's own among them."""
    _install(session)
    # A module's tests stay together: some share what took long to make.
    _run(session, "pytest", "-q", "-n", "auto", "--dist", "loadfile", *(session.posargs or TESTS), env=SHARING)


@shared
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; `nox -s lint -- --fix` mends what it can."""
    _install(session)
    _run(session, "ruff", "check", *session.posargs, ".")
    _run(session, "ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), ".")


@shared
def types(session: nox.Session) -> None:
    """Check every package with mypy, strictly."""
    _install(session)
    for folder in DISTRIBUTIONS.values():
        _run(session, "mypy", *session.posargs, f"{folder}/src")


@shared
def examples(session: nox.Session) -> None:
    """Check the example of a backend from outside: types and suite; and a new backend's types, as it is generated."""
    _install(session)
    new = OUT / "new-backend"
    shutil.rmtree(new, ignore_errors=True)
    _run(session, "pagebind.cli", "conformance", "new-backend", "fresh", str(new))
    example = ROOT / "conformance/examples/numpy/src"
    _run(session, "mypy", str(example), str(new / "src"))
    # The core and all that it has itself; what is composed is the same for every backend.
    most = ("--examples", "4", "-k", "not composed and not pool_machine")
    path = {"PYTHONPATH": str(example)}
    suite = ("pytest", "-q", *PARALLEL, "--pyargs", "pagebind_conformance", "--backend", "pagebind_numpy:backend")
    _run(session, *suite, "--device", "cpu", *(session.posargs or most), env=SHARING | path)


@shared
def report(session: nox.Session) -> None:
    """Check that the README's matrix is what the filed reports render to; `-- --write` renders it anew."""
    _install(session)
    reports = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "conformance/reports").rglob("*.json"))
    action = session.posargs or ["--check"]
    _run(session, "pagebind.cli", "conformance", "matrix", *action, "--readme", "README.md", *reports)


@shared
def demo(session: nox.Session) -> None:
    """Replay a generated trace through the best usable backend, every step verified, and say where the page is."""
    _install(session)
    OUT.mkdir(exist_ok=True)
    page = OUT / "replay.html"
    _run(session, "pagebind.cli", "replay", "--verify", "every", "--html", str(page), *session.posargs)
    session.log(f"the page is {page}")


@nox.session(default=False)
@nox.parametrize("distribution", list(DISTRIBUTIONS))
def isolation(session: nox.Session, distribution: str) -> None:
    """Install one distribution in a clean environment and import all of it: it declares what it needs."""
    session.install(TORCH)
    needed = {"pagebind", distribution}
    if distribution == "pagebind-bench":
        needed |= {"pagebind-conformance"}
    session.install(*(f"{ROOT / DISTRIBUTIONS[name]}" for name in DISTRIBUTIONS if name in needed))
    session.run("python", str(ROOT / "packages/pagebind/tests/import_all.py"), distribution, *session.posargs)


@nox.session(venv_backend="none", default=False)
def faults(session: nox.Session) -> None:
    """Patch the backends fault by fault, and write which cases of the suite find each; `-- --mode gpu` on a GPU."""
    _install(session)
    OUT.mkdir(exist_ok=True)
    matrix = () if "--matrix" in session.posargs else ("--matrix", str(OUT / "faults.csv"))
    _run(session, "faults", *matrix, *session.posargs, env={"PYTHONPATH": str(FAULTS)})


@nox.session(venv_backend="none", default=False)
def mutants(session: nox.Session) -> None:
    """Mutate modules of the cpu backend (`-- unbind entries`) with cosmic-ray, and list what the suite lets pass."""
    _install(session)
    if not IN_PLACE:
        _run(session, "pip", "install", "--quiet", "--disable-pip-version-check", MUTATION)
    modules = session.posargs or ["unbind", "translate", "bind", "touch"]
    _run(session, "faults.mutants", *modules, env={"PYTHONPATH": str(FAULTS)})


@nox.session(venv_backend="none", default=False)
def inputs(session: nox.Session) -> None:
    """Put generated inputs through every backend that runs here and compare: 200,000 on a GPU, else some thousands."""
    _install(session)
    OUT.mkdir(exist_ok=True)

    def compare(device: str, *backends: str, record: str, env: dict[str, str] | None = None, **counts: int) -> None:
        named = [word for name in backends for word in ("--backend", name)]
        asked = [word for option, count in counts.items() for word in (f"--{option}", str(count))]
        where = ("--device", device, "--json", str(OUT / f"inputs-{record}.json"))
        _run(session, "pagebind_conformance.inputs", *named, *where, *asked, *session.posargs, env=env)

    if _has_gpu():
        compare("cuda", "cpu", "cuda", "triton", record="gpu", processes=min(os.cpu_count() or 1, 14))
        return
    compare("cpu", "cpu", record="cpu", inputs=200, oracle=20_000)
    compare("cpu", "cpu", "triton", record="interpreter", env={"TRITON_INTERPRET": "1"}, inputs=5, oracle=100)
    host = json.loads(_ask("-m", "pagebind_cuda.host", "--json"))
    if host["missing"]:
        session.skip(f"the cuda backend: no GPU, and {host['missing']}")
    compare("cpu", "cpu", "cuda", record="host", env=host["environment"], inputs=50, oracle=1000)


def _python() -> str:
    """Return the python that sessions run: the shared environment's, or the current one with `--no-venv`."""
    return sys.executable if IN_PLACE else str(SHARED / ("Scripts" if os.name == "nt" else "bin") / "python")


def _install(session: nox.Session) -> None:
    """Bring the shared environment up to date, unless nothing that it is made from has changed."""
    if IN_PLACE:
        return
    sources = [ROOT / "noxfile.py", *(ROOT / folder / "pyproject.toml" for folder in DISTRIBUTIONS.values())]
    digest = hashlib.sha256(b"".join([sys.version.encode(), *(path.read_bytes() for path in sources)])).hexdigest()
    stamp = SHARED / "made-from"
    if stamp.exists() and stamp.read_text() == digest:
        return
    session.log(f"making the shared environment in {SHARED}")
    venv.create(SHARED, with_pip=True, clear=True)
    wanted = {"packages/pagebind": "[cli]", "backends/cuda": "[cuda13]" if shutil.which("nvidia-smi") else ""}
    editable = [f"./{folder}{wanted.get(folder, '')}" for folder in DISTRIBUTIONS.values()]
    pip = ("pip", "install", "--quiet", "--disable-pip-version-check")
    _run(session, *pip, TORCH, "numpy")
    _run(session, *pip, *TOOLS, *(part for folder in editable for part in ("-e", folder)))
    stamp.write_text(digest)


def _conformance(session: nox.Session, backend: str, *args: str, env: dict[str, str] | None = None) -> None:
    """Run the suite on a backend and leave a report in `out`."""
    OUT.mkdir(exist_ok=True)
    report = () if "--report" in session.posargs else ("--report", str(OUT / f"{backend}.json"))
    suite = ("pytest", "-q", *PARALLEL, "--pyargs", "pagebind_conformance", "--backend", backend)
    _run(session, *suite, *args, *report, *session.posargs, env=SHARING | (env or {}))


def _has_gpu() -> bool:
    return _ask("-c", "import torch; print(torch.cuda.is_available())").strip() == "True"


def _run(session: nox.Session, module: str, *args: str, env: dict[str, str] | None = None) -> None:
    """Run a module with the session's python."""
    session.run(_python(), "-m", module, *args, env=env, external=True)


def _ask(*args: str) -> str:
    """Return what the session's python prints."""
    return subprocess.run([_python(), *args], check=True, capture_output=True, text=True).stdout
