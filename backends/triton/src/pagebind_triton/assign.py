"""assign: programs share out a lane's ids and copy them to the head of its row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.assign import AssignSpec

from pagebind_triton.guards import BAD_ROW, CLIPPED, HOLE, count, share_of_rows, wait_for_previous, within, zero
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def assign_kernel(
    request_table: tl.tensor,  # [num_rows, width], int32; written
    req_rows: tl.tensor,  # [bs], int32 or int64
    ids: tl.tensor,  # [capacity], int32
    indptr: tl.tensor,  # [bs + 1], int32 or int64; cells
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    width: tl.int64,
    request_stride: tl.int64,
    capacity: tl.int64,
    shared: tl.int64,  # programs to a row
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Copy every lane's ids to the head of its row."""
    if DEPENDENT:
        wait_for_previous()
    first_lane, part, step = share_of_rows(shared)
    clipped = zero()
    bad_row = zero()
    for lane in range(first_lane, bs, step):
        row = tl.load(req_rows + lane).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        low_asked = tl.load(indptr + lane).to(tl.int64)
        high_asked = tl.load(indptr + lane + 1).to(tl.int64)
        low = within(low_asked, 0, capacity)
        high = within(high_asked, 0, capacity)
        cells = tl.where(good, within(high - low, 0, width), 0)
        cut = (low != low_asked) | (high != high_asked) | (cells != high - low)
        clipped += (good & cut).to(tl.int64)
        bad_row += (~good).to(tl.int64)
        for first in range(part * BLOCK, cells, shared * BLOCK):
            cell = first + tl.arange(0, BLOCK)
            held = tl.load(ids + low + cell, mask=cell < cells, other=HOLE)
            tl.store(request_table + row * request_stride + cell, held, mask=cell < cells)
    if COUNT and part == 0:
        count(state, CLIPPED, clipped)
        count(state, BAD_ROW, bad_row)


def plan(spec: AssignSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an assignment: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        assign_kernel,
        [torch.int32, spec.row_dtype, torch.int32, spec.indptr_dtype, torch.int64],
        {"COUNT": options.count, "BLOCK": grid.block},
        device,
    )

    def assign(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        ids: torch.Tensor,
        indptr: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        bs = req_rows.shape[0]
        capacity = ids.shape[0]
        programs, shared = grid.rows(bs, capacity)
        kernel(
            programs,
            request_table,
            req_rows,
            ids,
            indptr,
            lost if state is None else state,
            bs,
            request_table.shape[0],
            request_table.shape[1],
            request_table.stride(0),
            capacity,
            shared,
        )

    return PlannedLaunch(assign, [kernel], device)
