"""refresh_table and touch by kernels do what their composed forms do, to the bit, whatever their words hold."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pagebind import LaunchOptions
from pagebind.ops import RefreshTableSpec

SEEDS, STEPS = 8, 5
MOST = 2**31 - 1


def interpreted(script, *arguments):
    pytest.importorskip("triton", reason="triton is not installed")
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, Path(__file__).parent / script, *map(str, arguments)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_refreshed_tables_and_touched_rows_are_those_of_the_composed_forms():
    found = interpreted("refreshes.py", 0, SEEDS, STEPS)
    assert found == {"refresh": [2 * SEEDS * STEPS, []], "touch": [SEEDS, []]}


def test_launches_of_steady_and_padded_lanes_look_no_further_and_those_of_others_do():
    built, appended = ["right"], ["right"] * 4
    several = ["further", "right"]  # no more columns at once than are written without a look at more than lengths
    others = ["further", "right"] * 6  # more of them, another version, epoch, row and extent, a lane that pads or did
    assert interpreted("steady.py") == {" ".join([*built, *appended, *several, *others, "right"]): 12}


@pytest.mark.parametrize("fitting", [0, 1, 100, MOST, 2**40])
@pytest.mark.parametrize("delta", [0, 1, -1, -100, MOST, -MOST])
def test_lanes_that_fit_32_bits_are_below_the_span_and_no_others(delta, fitting):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton.refresh_steady import narrow

    span = narrow(8, 8, 8, fitting, delta, (9, 9), 7, 8)[0] & 2**32 - 1
    around = (-MOST - 1, -delta, 0, fitting - delta, MOST - delta, MOST)
    lengths = {length + near for length in around for near in (-1, 0, 1)}
    for length in lengths:
        if -MOST - 1 <= length <= MOST:
            below = (length + delta) % 2**32 < span
            assert below == (0 <= length + delta <= min(fitting, MOST - 1)), length


@pytest.mark.parametrize("large", [{"rows": 2**28}, {"strides": (2**31, 9)}, {"strides": (9, 2**31)}])
def test_no_lane_is_steady_where_a_number_needs_more_than_32_bits(large):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton.refresh_steady import narrow

    sizes = {"bs": 8, "rows": 8, "num_rows": 2**33, "fitting": 100, "delta": -3, "strides": (9, 9), "last_id": -1}
    pairs = narrow(**sizes, lanes=8)
    assert [(two % 2**32, two >> 32) for two in pairs] == [(101, 8), (MOST, -3), (9, 9), (8, -1)]
    assert narrow(**sizes | large, lanes=8) == (0, 0, 0, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("options", [LaunchOptions(), LaunchOptions(threads=32, programs=1), LaunchOptions(programs=7)])
@pytest.mark.parametrize("max_width", [0, 1, 200, 2**31 - 1])
@pytest.mark.parametrize("max_bs", [0, 1, 64, 65, 1024, 10**6])
def test_programs_own_all_lanes_that_they_judge_and_write_small_ones_at_once(max_bs, max_width, options, device):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton.launch import plan_grid
    from pagebind_triton.refresh_table import GPU_BLOCK, GPU_PROGRAMS, plan_sizes

    grid = plan_grid(torch.device(device), options, GPU_BLOCK, GPU_PROGRAMS, GPU_PROGRAMS)
    spec = RefreshTableSpec(max_bs=max_bs, max_width=max_width, page_size=1, num_physical=9)
    sizes = plan_sizes(spec, grid)
    assert 1 <= sizes.programs <= grid.most
    assert sizes.lanes <= sizes.programs * sizes.own
    assert sizes.own <= 16
    assert sizes.few <= sizes.small
    assert sizes.own * sizes.small <= max(grid.block, sizes.own * sizes.few)
    for size in (sizes.own, sizes.few, sizes.small, sizes.lanes):
        assert size & (size - 1) == 0
