"""The record and its probes: what importing it does, and what the reasons name."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch
from pagebind import LaunchOptions
from pagebind.errors import InvalidArgument
from pagebind.ops import BIND, OPERATIONS, BindSpec
from pagebind_cuda import backend, host


@pytest.fixture
def _fresh_compiler():
    host.compiler.cache_clear()
    yield
    host.compiler.cache_clear()


def test_loading_the_record_imports_no_cupy_and_starts_no_cuda():
    program = (
        "import sys; from importlib.metadata import entry_points; import torch\n"
        "points = [p for p in entry_points(group='pagebind.backends') if p.name == 'cuda']\n"
        "assert points[0].load().name == 'cuda'\n"
        "print('cupy' in sys.modules, torch.cuda.is_initialized())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_the_record_has_a_planner_for_every_operation_and_every_feature():
    assert [p.name for p in entry_points(group="pagebind.backends") if p.value == "pagebind_cuda:backend"] == ["cuda"]
    assert set(OPERATIONS) <= set(backend.planners)
    assert dict(backend.modes) == {"cuda": "gpu", "cpu": "host"}


def test_torch_without_cuda_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is built without CUDA" in backend.reason_against("cuda")


def test_no_device_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no CUDA device" in backend.reason_against("cuda")


@pytest.mark.parametrize(("cuda", "extra"), [("12.8", "cuda12"), ("13.0", "cuda13")])
def test_a_missing_cupy_is_named_with_the_extra_of_torchs_cuda(monkeypatch, cuda, extra):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert f"pip install 'pagebind-cuda[{extra}]'" in backend.reason_against("cuda")


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_missing_compiler_is_named_with_where_its_name_came_from(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    assert "'no-such-compiler' (from CXX) is not on PATH" in backend.reason_against("cpu")


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiler_without_cxx20_is_named_with_what_it_said(monkeypatch, tmp_path):
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho \"error: unrecognized option '-std=c++20'\" >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    reason = backend.reason_against("cpu")
    assert "needs C++20" in reason
    assert "unrecognized option" in reason


def test_more_threads_than_a_block_can_have_are_refused():
    bind = backend.planners[BIND.name]
    with pytest.raises(InvalidArgument, match=r"options\.threads is 1025; a block has at most 1024"):
        bind(BindSpec(max_items=1), torch.device("cpu"), LaunchOptions(threads=1025))
    bind(BindSpec(max_items=1), torch.device("cpu"), LaunchOptions(threads=1024))
