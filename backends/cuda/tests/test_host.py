"""The host build: barriers, warp operations and atomics are those of CUDA, and sanitizers see what a kernel does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pagebind.errors import BackendUnavailable, PagebindError
from pagebind_cuda import host
from pagebind_cuda.launch import PLANNED, Variant

KERNELS = Path(__file__).parent / "kernels"


def kernel(name):
    try:
        host.compiler()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return host.HostKernel(Variant(name, False, False, (1,) * len(PLANNED)), KERNELS)


@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (1, 64), (3, 96), (2, 1024)])
def test_barriers_shuffles_votes_and_atomics_are_honoured(blocks, threads):
    sums, votes = torch.full((2, blocks * threads), -7)
    totals, everything, last = torch.full((blocks,), -7), torch.zeros(1, dtype=torch.int64), torch.zeros(2).long()
    kernel("block")(blocks, threads, *(t.data_ptr() for t in (sums, totals, votes, everything, last)))
    values = torch.arange(blocks * threads).view(blocks, threads)
    assert torch.equal(sums.view(blocks, threads), values.cumsum(1) - values)
    assert torch.equal(totals, values.sum(1))
    assert set(votes.tolist()) == {0xAAAAAAAA}
    assert everything.item() == blocks * threads
    assert last.tolist() == [0, blocks * threads]


def test_threads_interleave_at_atomics_so_that_lost_updates_show():
    total, other = torch.zeros(2, 1, dtype=torch.int64)
    kernel("race")(1, 64, total.data_ptr(), other.data_ptr())
    assert other.item() == 64
    assert total.item() < 64


def test_a_barrier_that_not_every_thread_reaches_is_an_error_and_the_next_launch_works():
    stuck = kernel("stuck")
    cell = torch.ones(1, dtype=torch.int64)
    for _ in range(2):
        with pytest.raises(PagebindError, match=r"of 64 threads 32 wait at a block barrier, .* 32 have left"):
            stuck(1, 64, cell.data_ptr())
    test_barriers_shuffles_votes_and_atomics_are_honoured(1, 64)


def test_a_kernel_that_does_not_compile_is_reported_with_what_the_compiler_said(tmp_path):
    kernel("block")
    (tmp_path / "wrong.cu").write_text('#include "base.cuh"\nKERNEL(wrong)() { no_such_thing(); }\nHOST_ENTRY(wrong)\n')
    with pytest.raises(BackendUnavailable, match=r"wrong\.cu does not compile: (?s:.*)no_such_thing"):
        host.HostKernel(Variant("wrong", False, False, (1,) * len(PLANNED)), tmp_path).warmup()


def test_a_wrong_number_of_arguments_is_refused():
    with pytest.raises(PagebindError, match="1 arguments for a kernel of 5"):
        kernel("block")(1, 32, 0)


def test_a_write_one_past_a_tensor_is_reported_with_its_line():
    try:
        environment = host.sanitizer_environment()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    program = (
        "import torch\nfrom test_host import kernel\ncells = torch.zeros(100, dtype=torch.int32)\n"
        "kernel('past')(2, 64, cells.data_ptr(), 100)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    line = next(i for i, text in enumerate((KERNELS / "past.cu").read_text().splitlines(), 1) if "the fault" in text)
    assert ran.returncode != 0
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert f"past.cu:{line}" in ran.stderr


def test_the_command_prints_the_environment_or_what_is_missing(monkeypatch, capsys):
    try:
        environment = host.sanitizer_environment()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assert host.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}={value}" for name, value in environment.items()]
    monkeypatch.setenv("CXX", "no-such-compiler")
    host.compiler.cache_clear()
    assert host.main([]) == 2
    assert "'no-such-compiler' (from CXX) is not on PATH" in capsys.readouterr().err
    assert host.main(["--json"]) == 0
    assert '"environment": {}' in capsys.readouterr().out
    host.compiler.cache_clear()
