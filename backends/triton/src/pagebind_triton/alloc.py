"""alloc: programs read the tops, lane i takes the i-th page below them, the last program writes the new tops."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.alloc import AllocSpec
from pagebind.words import PageTables

from pagebind_triton.bind import bind_pairs
from pagebind_triton.guards import (
    BAD_BIND,
    HOLE_TOP,
    SINK,
    STARVED,
    TICKET,
    VIRTUAL_TOP,
    WATERMARK,
    count,
    is_last,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import PlannedLaunch, Variant, plan_grid


@triton.jit
def alloc_kernel(
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    state: tl.tensor,  # [32], int64; written
    ids: tl.tensor,  # [n], int32 or int64; written
    pages: tl.tensor,  # [n], int32 or int64; written
    asked: tl.tensor,  # [1], int64; pages asked for, with ON_DEVICE; n without
    n: tl.int64,
    num_virtual: tl.int64,
    num_physical: tl.int64,
    ON_DEVICE: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Take and bind one page a lane."""
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    top = within(tl.load(state + VIRTUAL_TOP), 0, num_virtual)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    watermark = within(tl.load(state + WATERMARK), 0, num_physical - 1)
    wanted = zero() + n
    if ON_DEVICE:
        wanted = tl.load(asked)
    # A free stack holds fewer than num_virtual ids, so where n is below `wanted` the lanes past n are all starved.
    lanes_asked = tl.minimum(wanted, n)
    found = tl.minimum(lanes_asked, tl.minimum(top, holes + (num_physical - 1 - watermark)))
    from_holes = tl.minimum(found, holes)

    bad = zeros(BLOCK)
    for first in range(program * BLOCK, lanes_asked, programs * BLOCK):
        lanes = first + tl.arange(0, BLOCK)
        served = lanes < found
        hole = lanes < from_holes
        v = tl.load(virtual_stack + (top - 1 - lanes), mask=served, other=SINK).to(tl.int64)
        p = tl.load(hole_stack + (holes - 1 - lanes), mask=hole, other=SINK).to(tl.int64)
        p = tl.where(hole, p, watermark + 1 + (lanes - holes))
        bound = bind_pairs(v, p, served, v2p, p2v, num_virtual, num_physical, BLOCK)
        tl.store(ids + lanes, tl.where(bound, v, SINK).to(ids.dtype.element_ty), mask=lanes < lanes_asked)
        tl.store(pages + lanes, tl.where(bound, p, SINK).to(pages.dtype.element_ty), mask=lanes < lanes_asked)
        if COUNT:
            bad += (served & ~bound).to(tl.int64)
    if COUNT:
        count(state, BAD_BIND, tl.sum(bad, 0))
    if is_last(state, programs):
        tl.store(state + TICKET, 0)
        tl.store(state + VIRTUAL_TOP, top - found)
        tl.store(state + HOLE_TOP, holes - from_holes)
        tl.store(state + WATERMARK, watermark + (found - from_holes))
        if COUNT:
            count(state, STARVED, wanted - found)


def alloc_variant(
    index_dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: torch.device,
    block: int,
    counted: bool,
    on_device: bool,
) -> Variant:
    """Fix the kernel; `on_device` reads how many pages are asked for from the device, as extend does."""
    return Variant(
        alloc_kernel,
        [index_dtype] * 4 + [torch.int64, out_dtype, out_dtype, torch.int64],
        {"ON_DEVICE": on_device, "COUNT": counted, "BLOCK": block},
        device,
    )


def plan(spec: AllocSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an allocation: one kernel, one variant."""
    grid = plan_grid(device, options)
    kernel = alloc_variant(spec.index_dtype, spec.id_dtype, device, grid.block, options.count, False)

    def alloc(tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor) -> None:
        v2p, p2v, virtual_stack, hole_stack, state = tables
        n = ids.shape[0]
        kernel(
            grid.lanes(n),
            v2p,
            p2v,
            virtual_stack,
            hole_stack,
            state,
            ids,
            pages,
            state,
            n,
            v2p.shape[0] - 1,
            p2v.shape[0] - 1,
        )

    return PlannedLaunch(alloc, [kernel], device)
