"""free: unbind, and push at the lane's own index; the last program closes the gaps and writes the tops (gaps.py)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.free import FreeSpec
from pagebind.words import PageTables

from pagebind_triton.gaps import push, settle
from pagebind_triton.guards import EPOCH, HOLE, HOLE_TOP, SINK, VIRTUAL_TOP, few, wait_for_previous, within, zero
from pagebind_triton.launch import NO_COUNT, Grid, PlannedLaunch, Variant, plan_grid
from pagebind_triton.unbind import unbind_ids


@triton.jit
def free_kernel(
    ids: tl.tensor,  # [n], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64; written, but for BORROWED
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    state: tl.tensor,  # [32], int64; written
    freed: tl.tensor,  # [n], int32 or int64; written
    asked: tl.tensor,  # [1], int64; ids there are, with ON_DEVICE; n without
    n: tl.int64,
    expected: tl.int64,  # the host's count of pages that come back; negative where it has none
    num_virtual: tl.int64,
    num_physical: tl.int64,
    ON_DEVICE: tl.constexpr,
    BORROWED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Unbind every id that is bound and push what was released."""
    if DEPENDENT:
        wait_for_previous()
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    step = programs * BLOCK
    # Ids are read ahead of their block, so that the first ones do not wait for the tops.
    lanes = program * BLOCK + tl.arange(0, BLOCK)
    ahead = tl.load(ids + lanes, mask=lanes < n, other=HOLE)
    top = within(tl.load(state + VIRTUAL_TOP), 0, num_virtual)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    listed = zero() + n
    if ON_DEVICE:
        listed = tl.minimum(tl.load(asked), n)
    unserved = few(BLOCK)
    doubles = few(BLOCK)
    bads = few(BLOCK)
    for first in range(program * BLOCK, n, step):
        lanes = first + tl.arange(0, BLOCK)
        v = tl.where(lanes < listed, ahead, HOLE).to(tl.int64)
        ahead = tl.load(ids + lanes + step, mask=lanes + step < n, other=HOLE)
        page, double, bad = unbind_ids(v, v2p, p2v, num_virtual, num_physical, BORROWED, BLOCK)
        tl.store(freed + lanes, page.to(freed.dtype.element_ty), mask=lanes < n)
        served = page > SINK
        if not BORROWED:
            push(virtual_stack, top + lanes, v, served, num_virtual)
        push(hole_stack, holes + lanes, page, served, num_physical)
        unserved += ((lanes < listed) & ~served).to(tl.int32)
        if COUNT:
            doubles += double.to(tl.int32)
            bads += bad.to(tl.int32)
    settle(
        ids,
        freed,
        v2p,
        virtual_stack,
        hole_stack,
        state,
        unserved,
        doubles,
        bads,
        listed,
        top,
        holes,
        expected,
        num_virtual,
        num_physical,
        BORROWED,
        COUNT,
        BLOCK,
    )
    if not ON_DEVICE and program == 0:
        # truncate and release leave the epoch: their rows say what changed.
        tl.atomic_add(state + EPOCH, 1, sem="relaxed")


def free_variant(
    index_dtype: torch.dtype,
    ids_dtype: torch.dtype,
    freed_dtype: torch.dtype,
    device: torch.device,
    block: int,
    *,
    counted: bool,
    borrowed: bool = False,
    on_device: bool = False,
) -> Variant:
    """Fix the kernel; `on_device` reads the number of ids from the device and leaves the epoch, as truncate does."""
    return Variant(
        free_kernel,
        [ids_dtype] + [index_dtype] * 4 + [torch.int64, freed_dtype, torch.int64],
        {"ON_DEVICE": on_device, "BORROWED": borrowed, "COUNT": counted, "BLOCK": block},
        device,
    )


def give_back(
    kernel: Variant,
    grid: Grid,
    tables: PageTables,
    ids: torch.Tensor,
    freed: torch.Tensor,
    asked: torch.Tensor,
    n: int,
    pages: int | None,
) -> None:
    """Launch the kernel of `free_variant` for n ids at most."""
    v2p, p2v, virtual_stack, hole_stack, state = tables[:5]
    expected = NO_COUNT if pages is None else pages
    sizes = n, expected, v2p.shape[0] - 1, p2v.shape[0] - 1
    kernel(grid.lanes(n), ids, v2p, p2v, virtual_stack, hole_stack, state, freed, asked, *sizes)


def plan(spec: FreeSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a free: one kernel, one variant."""
    grid = plan_grid(device, options)
    kernel = free_variant(
        spec.index_dtype,
        spec.id_dtype,
        spec.id_dtype,
        device,
        grid.block,
        counted=options.count,
        borrowed=spec.borrowed,
    )

    def free(ids: torch.Tensor, tables: PageTables, *, freed: torch.Tensor, pages: int | None = None) -> None:
        give_back(kernel, grid, tables, ids, freed, tables.state, ids.shape[0], pages)

    return PlannedLaunch(free, [kernel], device)
