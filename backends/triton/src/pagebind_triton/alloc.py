"""alloc: programs read the positions, lane i takes the i-th page from there, the last program writes the new ones.

    borrowed ids   [ 7 | 0 | 4 | -1 | 9 ]      0 and holes ask for nothing
    rank             0       1        2        the page a lane takes; a program counts the lanes before its own itself

Nobody waits: the last program is the one that draws the last ticket.
"""

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
    HOLE,
    HOLE_TOP,
    SEAT,
    SINK,
    STARVED,
    TICKET,
    VIRTUAL_TOP,
    WATERMARK,
    count,
    count_lanes,
    is_last_of,
    wait_for_previous,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import Grid, PlannedLaunch, Variant, plan_grid
from pagebind_triton.span import chain_of, read_span

WIDER = tl.constexpr(8)
"""Times a block: ids that are counted at once, so that many reads are under way in each thread."""


@triton.jit
def count_asking(
    ids: tl.tensor,  # [>= end], int32 or int64
    begin: tl.tensor,
    end: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return how many of the lanes from `begin` to `end` ask for a page."""
    asking = zeros(BLOCK * WIDER)
    for first in range(begin, end, BLOCK * WIDER):
        lanes = first + tl.arange(0, BLOCK * WIDER).to(tl.int64)
        asking += (tl.load(ids + lanes, mask=lanes < end, other=HOLE) > SINK).to(tl.int64)
    return tl.sum(asking, 0)


@triton.jit
def page_of_rank(
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    rank: tl.tensor,  # [BLOCK]; of the lane among those that ask
    served: tl.tensor,  # [BLOCK], mask; there is a page for it
    holes: tl.tensor,
    seat: tl.tensor,
    watermark: tl.tensor,
    up: tl.tensor,
) -> tl.tensor:
    """Return the page that a served lane takes, int64: holes first, then pages above the span, then below it."""
    hole = served & (rank < holes)
    p = tl.load(hole_stack + (holes - 1 - rank), mask=hole, other=SINK).to(tl.int64)
    grown = rank - holes
    fresh = tl.where(grown < up, seat + watermark + 1 + grown, seat - (grown - up))
    return tl.where(hole, p, fresh)


@triton.jit
def move_positions(
    state: tl.tensor,  # [32], int64; written
    found: tl.tensor,  # pages taken
    top: tl.tensor,
    holes: tl.tensor,
    seat: tl.tensor,
    watermark: tl.tensor,
    up: tl.tensor,
    BORROWED: tl.constexpr,
) -> None:
    """Write the positions after `found` pages were taken, once every program has read the ones before."""
    from_holes = tl.minimum(found, holes)
    grown_by = found - from_holes
    if not BORROWED:
        tl.store(state + VIRTUAL_TOP, top - found)
    tl.store(state + HOLE_TOP, holes - from_holes)
    tl.store(state + WATERMARK, watermark + grown_by)
    tl.store(state + SEAT, seat - tl.maximum(grown_by - up, 0), mask=grown_by > 0)


@triton.jit
def alloc_kernel(
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    state: tl.tensor,  # [32], int64; written
    chain: tl.tensor,  # [sub_pools, 32], int64; `state` is a row of it; with CHAINED
    ids: tl.tensor,  # [n], int32 or int64; written, or read with BORROWED
    pages: tl.tensor,  # [n], int32 or int64; written
    asked: tl.tensor,  # [1], int64; pages asked for, with ON_DEVICE; n without
    n: tl.int64,
    share: tl.int64,  # lanes of a program
    num_virtual: tl.int64,
    num_physical: tl.int64,
    sub_pools: tl.int64,
    place: tl.int64,  # of the sub-pool in its chain
    CHAINED: tl.constexpr,
    BORROWED: tl.constexpr,
    ON_DEVICE: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Take and bind one page a lane that asks."""
    if DEPENDENT:
        wait_for_previous()
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    top = within(tl.load(state + VIRTUAL_TOP), 0, num_virtual)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    seat, watermark, up, down, _, _ = read_span(state, chain, sub_pools, place, num_physical, CHAINED)
    most = holes + up + down
    if not BORROWED:
        most = tl.minimum(most, top)
    wanted = zero() + n
    if ON_DEVICE:
        wanted = tl.load(asked)
    # A free stack holds no more than num_virtual ids, so where n is below `wanted` the lanes past n are all starved.
    listed = tl.minimum(wanted, n)
    if BORROWED:
        wanted = zero()

    # Each program has lanes in a row, so that those that ask before it are counted once.
    if ON_DEVICE and listed > programs * share:  # more than the host could expect: what asks for them overlaps
        share = (listed + programs * BLOCK - 1) // (programs * BLOCK) * BLOCK
    begin = tl.minimum(program * share, listed)
    end = tl.minimum(begin + share, listed)
    before = zero()  # lanes that ask before the block at hand
    if BORROWED and programs > 1:
        before += count_asking(ids, zero(), begin, BLOCK)
    for first in range(begin, end, BLOCK):
        lanes = first + tl.arange(0, BLOCK)
        inside = lanes < end
        asking = inside
        rank = lanes
        if BORROWED:
            v = tl.load(ids + lanes, mask=inside, other=HOLE).to(tl.int64)
            asking = v > SINK
            rank = before + tl.cumsum(asking.to(tl.int64), 0) - 1
            here = tl.sum(asking.to(tl.int64), 0)
            wanted += here
            before += here
        served = asking & (rank < most)
        if not BORROWED:
            v = tl.load(virtual_stack + (top - 1 - rank), mask=served, other=SINK).to(tl.int64)
        p = page_of_rank(hole_stack, rank, served, holes, seat, watermark, up)
        bound = bind_pairs(v, p, served, v2p, p2v, num_virtual, num_physical, BLOCK)
        if not BORROWED:
            tl.store(ids + lanes, tl.where(bound, v, SINK).to(ids.dtype.element_ty), mask=inside)
        tl.store(pages + lanes, tl.where(bound, p, SINK).to(pages.dtype.element_ty), mask=inside)
        if COUNT:
            count_lanes(state, BAD_BIND, served & ~bound)
    last, asking_all = is_last_of(state, programs, wanted if BORROWED else zero())
    if last:
        if BORROWED:
            wanted = asking_all
        found = tl.minimum(tl.minimum(wanted, n), most)
        tl.store(state + TICKET, 0)
        move_positions(state, found, top, holes, seat, watermark, up, BORROWED)
        if COUNT:
            count(state, STARVED, wanted - found)


def lanes_each(n: int, programs: int, block: int) -> int:
    """Return how many of n lanes each program has: whole blocks."""
    return -(-n // (programs * block)) * block


def alloc_variants(
    index_dtype: torch.dtype,
    id_dtype: torch.dtype,
    device: torch.device,
    block: int,
    *,
    counted: bool,
    borrowed: bool = False,
    on_device: bool = False,
) -> tuple[Variant, Variant]:
    """Fix the kernel without a chain and with one; `on_device` reads how many pages are asked for, as extend does."""

    def variant(chained: bool) -> Variant:
        return Variant(
            alloc_kernel,
            [index_dtype] * 4 + [torch.int64, torch.int64, id_dtype, id_dtype, torch.int64],
            {"CHAINED": chained, "BORROWED": borrowed, "ON_DEVICE": on_device, "COUNT": counted, "BLOCK": block},
            device,
        )

    return variant(False), variant(True)


def take_pages(
    kernels: tuple[Variant, Variant],
    grid: Grid,
    tables: PageTables,
    ids: torch.Tensor,
    pages: torch.Tensor,
    asked: torch.Tensor,
    room: int,
    most: int,
) -> None:
    """Launch a kernel of `alloc_variants` for as many programs as `most` pages take, of `room` that ids have."""
    v2p, p2v, virtual_stack, hole_stack, state = tables[:5]
    chain, sub_pools, place = chain_of(tables)
    programs = grid.lanes(most)
    kernels[tables.chain is not None](
        programs,
        v2p,
        p2v,
        virtual_stack,
        hole_stack,
        state,
        chain,
        ids,
        pages,
        asked,
        room,
        lanes_each(most, programs, grid.block),
        v2p.shape[0] - 1,
        p2v.shape[0] - 1,
        sub_pools,
        place,
    )


def plan(spec: AllocSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an allocation: one kernel, for tables without a chain and with one."""
    grid = plan_grid(device, options)
    kernels = alloc_variants(
        spec.index_dtype, spec.id_dtype, device, grid.block, counted=options.count, borrowed=spec.borrowed
    )

    def alloc(tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor) -> None:
        take_pages(kernels, grid, tables, ids, pages, tables.state, ids.shape[0], ids.shape[0])

    return PlannedLaunch(alloc, kernels, device)
