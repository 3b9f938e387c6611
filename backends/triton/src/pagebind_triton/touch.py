"""touch: rows that changed, told to the tables that follow them: one lane a row, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import INT32_MAX, LaunchOptions
from pagebind.ops.touch import CHANGED as CHANGED_WORD
from pagebind.ops.touch import VERSION as VERSION_WORD
from pagebind.ops.touch import VERSION_WORDS as WORDS
from pagebind.ops.touch import TouchSpec

from pagebind_triton.guards import BAD_ROW, HOLE, count, wait_for_previous, within, zeros
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid

VERSION_WORDS = tl.constexpr(WORDS)
VERSION = tl.constexpr(VERSION_WORD)
CHANGED = tl.constexpr(CHANGED_WORD)
MOST_CHANGED = tl.constexpr(INT32_MAX)


@triton.jit
def touch_kernel(
    versions: tl.tensor,  # [num_rows, VERSION_WORDS], int32; written
    req_rows: tl.tensor,  # [bs], int32 or int64
    tokens: tl.tensor,  # [bs], int32 or int64
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Raise the version of every lane's row, and note where it changed."""
    if DEPENDENT:
        wait_for_previous()
    bad = zeros(BLOCK)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, bs, step):
        lanes = first + tl.arange(0, BLOCK)
        row = tl.load(req_rows + lanes, mask=lanes < bs, other=HOLE).to(tl.int64)
        changed = tl.load(tokens + lanes, mask=lanes < bs, other=0)
        good = (row >= 0) & (row < num_rows)
        words = versions + row * VERSION_WORDS
        # A row may stand in several lanes, and rises by as many.
        tl.atomic_add(words + VERSION, tl.full((BLOCK,), 1, tl.int32), mask=good, sem="relaxed")
        tl.store(words + CHANGED, within(changed, 0, MOST_CHANGED).to(tl.int32), mask=good)
        if COUNT:
            bad += ((lanes < bs) & (good == 0)).to(tl.int64)
    if COUNT:
        count(state, BAD_ROW, tl.sum(bad, 0))


def plan(spec: TouchSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a touch: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        touch_kernel,
        [torch.int32, spec.row_dtype, spec.length_dtype, torch.int64],
        {"COUNT": options.count, "BLOCK": grid.block},
        device,
    )

    def touch(
        versions: torch.Tensor,
        req_rows: torch.Tensor,
        tokens: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        bs = req_rows.shape[0]
        kernel(
            grid.lanes(bs),
            versions,
            req_rows,
            tokens,
            lost if state is None else state,
            bs,
            versions.shape[0],
        )

    return PlannedLaunch(touch, [kernel], device)
