"""free: unbind, and push at the lane's own index; the last program closes the gaps that holes and faults left.

    lanes          0   1   2   3        lane 1 was a hole or a fault
    pushed at   [ v0 |   | v2 | v3 ]    by the programs that served them, above the old top
    gaps closed [ v0 | v2 | v3 ]        by the last program, in lane order, in the rare call that has gaps

Nobody waits: the last program is the one that draws the last ticket.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.free import FreeSpec
from pagebind.words import PageTables

from pagebind_triton.guards import (
    EPOCH,
    HOLE,
    HOLE_TOP,
    SCRATCH,
    SINK,
    TICKET,
    TOMBSTONE,
    VIRTUAL_TOP,
    count,
    is_last,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import PlannedLaunch, Variant, plan_grid
from pagebind_triton.unbind import count_frees, unbind_ids


@triton.jit
def push(
    stack: tl.tensor,  # [capacity], int32 or int64; written
    at: tl.tensor,  # [BLOCK], int64; cells, not negative
    ids: tl.tensor,  # [BLOCK], int64
    served: tl.tensor,  # [BLOCK], mask
    capacity: tl.tensor,
) -> None:
    """Write ids to cells of a stack, as far as it reaches."""
    tl.store(stack + at, ids.to(stack.dtype.element_ty), mask=served & (at < capacity))


@triton.jit
def close_gaps(
    ids: tl.tensor,  # [n], int32 or int64
    freed: tl.tensor,  # [n], int32 or int64; written by any program of this launch
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64; written
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    n: tl.tensor,
    top: tl.tensor,
    holes: tl.tensor,
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Push again what the launch released, in lane order and without gaps."""
    tl.debug_barrier()
    before = zero()
    for first in range(0, n, BLOCK):
        lanes = first + tl.arange(0, BLOCK).to(tl.int64)
        # From the cache that all multiprocessors share: another one wrote it a moment ago.
        page = tl.load(freed + lanes, mask=lanes < n, other=TOMBSTONE, cache_modifier=".cg").to(tl.int64)
        v = tl.load(ids + lanes, mask=lanes < n, other=HOLE).to(tl.int64)
        served = page > SINK
        place = before + tl.cumsum(served.to(tl.int64), 0) - 1
        push(virtual_stack, top + place, v, served, num_virtual)
        push(hole_stack, holes + place, page, served, num_physical)
        before += tl.sum(served.to(tl.int64), 0)


@triton.jit
def free_kernel(
    ids: tl.tensor,  # [n], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64; written
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    state: tl.tensor,  # [32], int64; written
    freed: tl.tensor,  # [n], int32 or int64; written
    asked: tl.tensor,  # [1], int64; ids there are, with ON_DEVICE; n without
    n: tl.int64,
    num_virtual: tl.int64,
    num_physical: tl.int64,
    ON_DEVICE: tl.constexpr,
    EPOCHS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Unbind every id that is bound and push what was released."""
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    top = within(tl.load(state + VIRTUAL_TOP), 0, num_virtual)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    listed = zero() + n
    if ON_DEVICE:
        listed = tl.minimum(tl.load(asked), n)

    unserved = zeros(BLOCK)
    doubles = zeros(BLOCK)
    bads = zeros(BLOCK)
    for first in range(program * BLOCK, n, programs * BLOCK):
        lanes = first + tl.arange(0, BLOCK)
        v = tl.load(ids + lanes, mask=lanes < listed, other=HOLE).to(tl.int64)
        page, double, bad = unbind_ids(v, v2p, p2v, num_virtual, num_physical, BLOCK)
        tl.store(freed + lanes, page.to(freed.dtype.element_ty), mask=lanes < n)
        served = page > SINK
        push(virtual_stack, top + lanes, v, served, num_virtual)
        push(hole_stack, holes + lanes, page, served, num_physical)
        unserved += ((lanes < listed) & ~served).to(tl.int64)
        if COUNT:
            doubles += double.to(tl.int64)
            bads += bad.to(tl.int64)
    gaps = tl.sum(unserved, 0)
    if COUNT:
        count_frees(state, doubles, bads)
    if programs > 1:
        count(state, SCRATCH, gaps)
    if is_last(state, programs):
        if programs > 1:
            gaps = tl.atomic_xchg(state + SCRATCH, zero(), sem="acq_rel")
        if gaps > 0:
            close_gaps(ids, freed, virtual_stack, hole_stack, listed, top, holes, num_virtual, num_physical, BLOCK)
        tl.store(state + TICKET, 0)
        tl.store(state + VIRTUAL_TOP, tl.minimum(top + listed - gaps, num_virtual))
        tl.store(state + HOLE_TOP, tl.minimum(holes + listed - gaps, num_physical))
        tl.store(state + EPOCH, tl.load(state + EPOCH) + EPOCHS)


def free_variant(
    index_dtype: torch.dtype,
    ids_dtype: torch.dtype,
    freed_dtype: torch.dtype,
    device: torch.device,
    block: int,
    counted: bool,
    on_device: bool,
) -> Variant:
    """Fix the kernel; `on_device` reads the number of ids from the device and leaves the epoch, as truncate does."""
    return Variant(
        free_kernel,
        [ids_dtype] + [index_dtype] * 4 + [torch.int64, freed_dtype, torch.int64],
        {"ON_DEVICE": on_device, "EPOCHS": 0 if on_device else 1, "COUNT": counted, "BLOCK": block},
        device,
    )


def plan(spec: FreeSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a free: one kernel, one variant."""
    grid = plan_grid(device, options)
    kernel = free_variant(spec.index_dtype, spec.id_dtype, spec.id_dtype, device, grid.block, options.count, False)

    def free(ids: torch.Tensor, tables: PageTables, *, freed: torch.Tensor) -> None:
        v2p, p2v, virtual_stack, hole_stack, state = tables
        n = ids.shape[0]
        kernel(
            grid.lanes(n),
            ids,
            v2p,
            p2v,
            virtual_stack,
            hole_stack,
            state,
            freed,
            state,
            n,
            v2p.shape[0] - 1,
            p2v.shape[0] - 1,
        )

    return PlannedLaunch(free, [kernel], device)
