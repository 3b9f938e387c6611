"""Launch sizes, what is compiled when, and that results do not depend on how many programs share the work."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from pagebind.errors import CaptureError
from pagebind.operation import LaunchOptions
from pagebind_triton.launch import GPU_MOST, Grid, PlannedLaunch, plan_grid

CUDA = torch.device("cuda", 0)


class Recorded:
    """A variant that notes what is done with it."""

    def __init__(self):
        self.ready = False
        self.compiled = 0

    def compile(self):
        self.ready = True
        self.compiled += 1


@pytest.fixture
def _capturing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.usefixtures("_capturing")
def test_a_call_that_would_compile_inside_a_capture_is_refused_before_it_launches():
    launched = []
    variant = Recorded()
    planned = PlannedLaunch(lambda: launched.append(1), [variant], CUDA)
    with pytest.raises(CaptureError, match=r"warmup\(\)"):
        planned()
    assert not launched
    assert not variant.compiled
    planned.warmup()
    planned()
    assert launched == [1]
    assert variant.compiled == 1


@pytest.mark.usefixtures("_capturing")
def test_a_kernel_that_another_plan_compiled_may_be_launched_inside_a_capture():
    launched = []
    variant = Recorded()
    variant.ready = True
    PlannedLaunch(lambda: launched.append(1), [variant], CUDA)()
    assert launched == [1]


@pytest.mark.parametrize(
    ("bs", "programs", "shared"), [(1, 257, 257), (64, 1024, 16), (256, 1024, 4), (600, 1200, 2), (100_000, 16384, 1)]
)
def test_a_gpu_gets_about_1024_programs_and_no_more_than_the_width_can_use(bs, programs, shared):
    assert plan_grid(CUDA, LaunchOptions()).rows(bs, 131_073) == (programs, shared)


@pytest.mark.parametrize("programs", [1, 3, 5, 64])
def test_options_bound_the_programs_and_every_row_has_as_many(programs):
    grid = plan_grid(CUDA, LaunchOptions(threads=100, programs=programs))
    assert grid.block == 64
    for rows in (1, 2, 7, 1000):
        launched, shared = grid.rows(rows, 10_000)
        assert 1 <= launched <= programs
        assert launched % shared == 0
    assert grid.lanes(10**9) == programs


def test_empty_widths_still_launch_one_program():
    assert Grid(16, 4, 4).rows(3, 0) == (3, 1)
    assert Grid(16, 4, 4).lanes(0) == 1


def interpreted(script):
    """Run a script of this folder in the interpreter and return what it prints."""
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, Path(__file__).parent / script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_frees_with_gaps_agree_over_blocks_and_programs_and_leave_no_ticket():
    answers = interpreted("free_with_gaps.py")
    assert len(answers["states"]) == 6
    for state, virtual, holes in answers["states"]:
        assert virtual[:5] == [5, 4, 3, 2, 1]
        assert virtual[5:] == answers["served"]
        assert holes == [100 - v for v in answers["served"]]
        assert state[16:] == [0] * 16
    assert answers["compiled"] == 0


def test_borrowed_ids_are_taken_freed_and_evicted_alike_over_blocks_and_programs():
    for answers, right in interpreted("borrowed.py").values():
        assert answers == [right] * 6


def test_tables_are_right_whichever_way_their_rows_are_finished():
    assert interpreted("tables.py") == {"right": 45, "wrong": []}


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 132, 1055, 1056, 16384, 65535, 65536, 2**31 - 1, 2**40])
def test_a_reciprocal_divides_every_program_number(divisor):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton.build import SHIFT, reciprocal_of

    programs = range(GPU_MOST)
    assert [n * reciprocal_of(divisor) >> SHIFT for n in programs] == [n // divisor for n in programs]


@pytest.mark.parametrize(
    ("max_bs", "max_width", "constants"),
    [
        (0, 0, {"LANES": 1, "WIDE": False}),
        (1, 2**31 - 1, {"LANES": 1, "WIDE": False}),
        (1024, 2**31 - 1, {"LANES": 1024, "WIDE": True}),
        (65, 131_072, {"LANES": 128, "WIDE": False}),
        (10**6, 2**20, {"LANES": 4096, "WIDE": False}),
        (10**6, 2**31 - 1, {"LANES": 4096, "WIDE": True}),
    ],
)
def test_lanes_are_a_power_of_two_and_tiles_are_counted_wide_where_they_have_to(max_bs, max_width, constants):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton.build import lane_constants

    assert lane_constants(max_bs, max_width, 1024) == constants


def test_kernels_read_spans_as_core_defines_them_whatever_the_words_hold():
    assert interpreted("spans.py") == {"agreed": 600, "wrong": []}
