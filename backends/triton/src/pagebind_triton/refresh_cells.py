"""The cells that a refresh changes: how they are counted, and how they are written or emptied.

k = 0, 1, ...  of a lane        columns [begin, low), [high, stop), [old_begin, begin), [end, old_end), side by side
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.guards import HOLE, SINK, TOMBSTONE


@triton.jit
def column_ids(
    ids: tl.tensor,  # pointers to rows of the request table
    column: tl.tensor,  # int32 or uint32
    live: tl.tensor,  # mask; nothing is read elsewhere
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
) -> tl.tensor:
    """Return what rows hold for columns, int32; holes where nothing is read."""
    if TOKEN_FORM == TOKEN_GRAIN or PAGE_SIZE == 1:
        at = ids + column.to(tl.int64)
    elif TOKEN_FORM:
        at = ids + column.to(tl.int64) * PAGE_SIZE
    else:
        at = ids + (column // PAGE_SIZE).to(tl.int64)
    return tl.load(at, mask=live, other=HOLE)


@triton.jit
def column_entries(
    held: tl.tensor,  # int32; as column_ids returns it
    column: tl.tensor,  # int32 or uint32; those of masked cells may be any
    live: tl.tensor,  # mask; others read as the sink
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    last_id: tl.tensor,  # int32; the highest one of the table
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the entries of columns, int64, and the mask of those whose id is past the table."""
    page = held
    if TOKEN_FORM:
        page = held // PAGE_SIZE
    # Negatives divide towards 0: the id itself tells a hole.
    known = live & (held >= 0) & (page <= last_id)
    physical = tl.load(v2p + page, mask=known, other=TOMBSTONE)
    entry = tl.maximum(physical, SINK).to(tl.int64) * MULTIPLIER
    if TOKEN_GRAIN:
        offset = held % PAGE_SIZE if TOKEN_FORM else column % PAGE_SIZE
        entry = tl.where(physical >= 0, entry * PAGE_SIZE + offset.to(tl.int64), SINK)
    return entry, live & (page > last_id)


@triton.jit
def write_changes(
    ids: tl.tensor,  # pointers to rows of the request table
    out: tl.tensor,  # pointers to rows of the read table; written
    k: tl.tensor,  # uint32; which of a lane's cells to change: of its head, its tail, and those to empty
    some: tl.tensor,  # mask
    begin: tl.tensor,  # int32; columns, all of them
    low: tl.tensor,
    high: tl.tensor,
    stop: tl.tensor,  # where the tail ends that is left to write
    end: tl.tensor,
    old_begin: tl.tensor,
    old_end: tl.tensor,
    v2p: tl.tensor,
    last_id: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    SINK_FILL: tl.constexpr,
) -> tl.tensor:
    """Write or empty cells of lanes; return the mask of those whose id is past the table."""
    head = (low - begin).to(tl.uint32)
    written = head + (stop - high).to(tl.uint32)
    # Sums wrap around where k is past a range, and are not looked at there.
    column = tl.where(k < head, begin.to(tl.uint32) + k, high.to(tl.uint32) + (k - head))
    live = some & (k < written)
    held = column_ids(ids, column, live, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN)
    # Without it the compiler reads the ids one after another, each with its page.
    tl.debug_barrier()
    entries, beyond = column_entries(held, column, live, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN)
    if SINK_FILL:
        before, behind_begin, behind = emptied(begin, end, old_begin, old_end)
        turn = written + before.to(tl.uint32)
        column = tl.where(k < written, column, old_begin.to(tl.uint32) + (k - written))
        column = tl.where(k < turn, column, behind_begin.to(tl.uint32) + (k - turn))
        live = some & (k < turn + behind.to(tl.uint32))
    tl.store(out + column.to(tl.int64), entries.to(out.dtype.element_ty), mask=live)
    return beyond


@triton.jit
def emptied(
    begin: tl.tensor, end: tl.tensor, old_begin: tl.tensor, old_end: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return how many columns of the old extent lie before the valid one, where those behind it begin, and how many."""
    before = tl.maximum(tl.minimum(old_end, begin) - old_begin, 0)
    behind_begin = tl.maximum(old_begin, end)
    return before, behind_begin, tl.maximum(old_end - behind_begin, 0)


@triton.jit
def cells_left(
    begin: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    stop: tl.tensor,
    end: tl.tensor,
    old_begin: tl.tensor,
    old_end: tl.tensor,
    SINK_FILL: tl.constexpr,
) -> tl.tensor:
    """Return how many cells of lanes `write_changes` has to change, int32."""
    left = (low - begin) + (stop - high)
    if SINK_FILL:
        before, _, behind = emptied(begin, end, old_begin, old_end)
        left += before + behind
    return left
