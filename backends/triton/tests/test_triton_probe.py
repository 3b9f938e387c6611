"""What the record says before a kernel runs: it is lazy, and its reasons name the mend."""

import os
import subprocess
import sys

import pagebind_triton
import pytest
from pagebind_triton import backend

PROBE = "from pagebind_triton import backend; print(backend.probe({device!r}))"


def answer(code, interpret):
    """Run code in a fresh interpreter, with TRITON_INTERPRET=1 or without it, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout.strip()


@pytest.fixture
def _triton():
    pytest.importorskip("triton", reason="triton is not installed")


def test_loading_the_record_imports_no_triton():
    loaded = "print('triton' in sys.modules)"
    code = f"import sys, torch, pagebind; {loaded}; import pagebind_triton; {loaded}"
    before, after = answer(code, interpret=False).split()
    assert after == before


def test_without_triton_the_reason_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(pagebind_triton, "find_spec", lambda name: None)
    for device in ("cpu", "cuda"):
        assert "pip install triton" in backend.probe(device)


@pytest.mark.usefixtures("_triton")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cpu_needs_the_interpreter_and_the_gpu_refuses_it(device):
    reason = answer(PROBE.format(device=device), interpret=device == "cuda")
    assert "TRITON_INTERPRET" in reason
    assert "start again" in reason


@pytest.mark.usefixtures("_triton")
def test_the_interpreter_makes_the_cpu_usable():
    assert answer(PROBE.format(device="cpu"), interpret=True) == "None"


@pytest.mark.usefixtures("_triton")
def test_setting_the_variable_after_triton_was_imported_is_too_late_and_says_so():
    code = "import os, triton; os.environ['TRITON_INTERPRET'] = '1'; " + PROBE.format(device="cpu")
    assert "start again" in answer(code, interpret=False)
