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


def test_refreshed_tables_and_touched_rows_are_those_of_the_composed_forms():
    pytest.importorskip("triton", reason="triton is not installed")
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, Path(__file__).parent / "refreshes.py", "0", str(SEEDS), str(STEPS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert json.loads(run.stdout) == {"refresh": [2 * SEEDS * STEPS, []], "touch": [SEEDS, []]}


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
