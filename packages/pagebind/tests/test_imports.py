"""Imports run one way, core imports no kernel library, and importing pagebind does nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pagebind
import pytest

ROOT = Path(__file__).parents[3]
CORE = Path(pagebind.__file__).parent
# errors and words at the bottom; each may import what stands before it, and its own folder.
ORDER = ["errors", "words", "operation", "ops", "backend", "config", "registry", "repeat", "plan", "pool", "cli"]
KERNEL_LIBRARIES = {"triton", "cupy", "numba", "cuda"}
BACKENDS = {"pagebind_cpu": "cpu", "pagebind_triton": "triton", "pagebind_cuda": "cuda"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def core_part(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "pagebind" and len(parts) > 1 else None


def sources(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no source in {folder}"
    return found


@pytest.mark.parametrize("path", sources(CORE), ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_run_one_way(path):
    own = path.relative_to(CORE).parts[0].removesuffix(".py")
    names = imported(path)
    assert not {name.split(".")[0] for name in names} & (KERNEL_LIBRARIES | set(BACKENDS))
    if own == "__init__":
        return
    assert own in ORDER, f"{own} has no place in the order of imports"
    for part in filter(None, map(core_part, names)):
        assert part in ORDER, f"{path} imports {part} through the package"
        assert ORDER.index(part) <= ORDER.index(own), f"{own} imports {part}, which stands above it"


@pytest.mark.parametrize("package", BACKENDS)
def test_backends_import_the_first_four_and_no_other_backend(package):
    allowed = {*ORDER[: ORDER.index("backend") + 1]}
    for path in sources(ROOT / "backends" / BACKENDS[package] / "src"):
        names = imported(path)
        for part in filter(None, map(core_part, names)):
            assert part in allowed, f"{path} imports pagebind.{part}"
        assert not {name.split(".")[0] for name in names} & (set(BACKENDS) - {package})


PEERS = {"bench/published.py": {"triton"}}  # kernels that are measured against, not backends; loaded when asked for


@pytest.mark.parametrize("folder", ["conformance/src", "packages/pagebind-bench/src"])
def test_suite_and_bench_import_no_backend(folder):
    for path in sources(ROOT / folder):
        allowed = PEERS.get("/".join(path.parts[-2:]), set())
        kernels = (KERNEL_LIBRARIES | set(BACKENDS)) - allowed
        assert not {name.split(".")[0] for name in imported(path)} & kernels, path


def test_oracle_imports_nothing_of_pagebind():
    for path in sources(ROOT / "conformance/src/pagebind_conformance/oracle"):
        tops = {name.split(".")[0] for name in imported(path) if not name.startswith("pagebind_conformance.oracle")}
        assert not tops & {"pagebind", "torch", "numpy", "pagebind_conformance"}, path


def test_importing_pagebind_reads_no_settings_and_starts_nothing():
    code = (
        "import sys, torch, pagebind\n"
        "loaded = {'pydantic', 'pydantic_settings', 'triton', 'cupy', 'typer', 'pagebind_cpu', 'pagebind_triton',"
        " 'pagebind_cuda'} & {name for name in sys.modules}\n"
        "assert not torch.cuda.is_initialized()\n"
        "print(sorted(loaded - before))\n"
    )
    code = code.replace("import sys, torch, pagebind", "import sys, torch\nbefore = set(sys.modules)\nimport pagebind")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
