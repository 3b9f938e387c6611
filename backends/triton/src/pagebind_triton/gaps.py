"""What a launch that frees does besides: pushes at the lane's own index, and what its last program mends and writes.

    lanes          0   1   2   3        lane 1 was a hole or a fault
    pushed at   [ v0 |   | v2 | v3 ]    by the programs that served them, above the old top
    gaps closed [ v0 | v2 | v3 ]        by the last program, in lane order, in the rare call that has gaps

Nobody waits: the last program is the one that draws the last ticket.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.guards import (
    DOUBLE_FREE,
    HOLE,
    HOLE_TOP,
    SINK,
    TICKET,
    TOMBSTONE,
    VIRTUAL_TOP,
    count,
    count_mismatch,
    is_last_of,
    zero,
    zeros,
)
from pagebind_triton.unbind import count_frees

RELEASED = tl.constexpr(SINK + 1)
"""Marks rows of released ids for a while: a page, and so in no row of an id that was looked up and not released.

Where an id was released there is such a page."""


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
def lanes_again(
    ids: tl.tensor,  # [n], int32 or int64
    freed: tl.tensor,  # [n], int32 or int64
    first: tl.tensor,
    n: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the ids and freed pages of a block of lanes, which any program of this launch may have written."""
    lanes = first + tl.arange(0, BLOCK).to(tl.int64)
    # From the cache that all multiprocessors share: another one wrote them a moment ago.
    page = tl.load(freed + lanes, mask=lanes < n, other=TOMBSTONE, cache_modifier=".cg").to(tl.int64)
    v = tl.load(ids + lanes, mask=lanes < n, other=HOLE, cache_modifier=".cg").to(tl.int64)
    return v, page


@triton.jit
def close_gaps(
    ids: tl.tensor,  # [n], int32 or int64
    freed: tl.tensor,  # [n], int32 or int64
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64; written, but for BORROWED
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    n: tl.tensor,
    top: tl.tensor,
    holes: tl.tensor,
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BORROWED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Push again what the launch released, in lane order and without gaps."""
    tl.debug_barrier()
    before = zero()
    for first in range(0, n, BLOCK):
        v, page = lanes_again(ids, freed, first, n, BLOCK)
        served = page > SINK
        place = before + tl.cumsum(served.to(tl.int64), 0) - 1
        if not BORROWED:
            push(virtual_stack, top + place, v, served, num_virtual)
        push(hole_stack, holes + place, page, served, num_physical)
        before += tl.sum(served.to(tl.int64), 0)


@triton.jit
def count_repeats(
    ids: tl.tensor,  # [n], int32 or int64
    freed: tl.tensor,  # [n], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; as before afterwards
    state: tl.tensor,  # [32], int64
    n: tl.tensor,
    num_virtual: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Count the lanes that name an id which another lane released: mark its row, look at it, take the mark away."""
    element = v2p.dtype.element_ty
    for first in range(0, n, BLOCK):
        v, page = lanes_again(ids, freed, first, n, BLOCK)
        tl.store(v2p + v, tl.full((BLOCK,), RELEASED, element), mask=page > SINK)
    tl.debug_barrier()
    repeats = zeros(BLOCK)
    for first in range(0, n, BLOCK):
        v, page = lanes_again(ids, freed, first, n, BLOCK)
        unserved = (page <= SINK) & (v > SINK) & (v < num_virtual)
        row = tl.load(v2p + v, mask=unserved, other=TOMBSTONE, cache_modifier=".cg")
        repeats += (row == RELEASED).to(tl.int64)
    count(state, DOUBLE_FREE, tl.sum(repeats, 0))
    tl.debug_barrier()
    for first in range(0, n, BLOCK):
        v, page = lanes_again(ids, freed, first, n, BLOCK)
        tl.store(v2p + v, tl.full((BLOCK,), TOMBSTONE, element), mask=page > SINK)


@triton.jit
def settle(
    ids: tl.tensor,  # [listed], int32 or int64
    freed: tl.tensor,  # [listed], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64; written, but for BORROWED
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    state: tl.tensor,  # [32], int64; written
    unserved: tl.tensor,  # [BLOCK], int32; listed lanes of this program that released nothing
    doubles: tl.tensor,  # [BLOCK], int32; faults of this program: of unserved lanes alone
    bads: tl.tensor,  # [BLOCK], int32; the same
    listed: tl.tensor,  # lanes of the launch
    top: tl.tensor,
    holes: tl.tensor,
    expected: tl.tensor,  # the host's count of pages that come back; negative where it has none
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BORROWED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Count a program's faults; the last program closes the gaps and writes the new tops."""
    programs = tl.num_programs(0).to(tl.int64)
    gaps = tl.sum(unserved, 0)
    if COUNT and gaps > 0:
        if BORROWED:
            # Of several blocks one may look a repeated id up too late; the last program counts for all then.
            doubles = tl.where(listed > BLOCK, 0, doubles)
        count_frees(state, doubles, bads)
    last, gaps = is_last_of(state, programs, gaps.to(tl.int64))
    if last:
        if gaps > 0:
            close_gaps(
                ids, freed, virtual_stack, hole_stack, listed, top, holes, num_virtual, num_physical, BORROWED, BLOCK
            )
        if BORROWED and COUNT:
            late = (listed > BLOCK) & (gaps > 0) & (gaps < listed)
            count_repeats(ids, freed, v2p, state, tl.where(late, listed, 0), num_virtual, BLOCK)
        served = listed - gaps
        tl.store(state + TICKET, 0)
        if not BORROWED:
            tl.store(state + VIRTUAL_TOP, tl.minimum(top + served, num_virtual), mask=listed > 0)
        tl.store(state + HOLE_TOP, tl.minimum(holes + served, num_physical), mask=listed > 0)
        if COUNT:
            count_mismatch(state, expected, served)
