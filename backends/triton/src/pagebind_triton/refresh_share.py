"""How the large lanes of a refresh are shared out: their cells are one list, each program has a piece of it.

    cells left    lane 0: 500   lane 1: 3, small   lane 2: 300        two programs, shares of 416 cells
    list          0 .. 499      -                  500 .. 799
    program 0     0 .. 415      program 1          416 .. 799: the end of lane 0, all of lane 2

The list is nowhere in memory: a program keeps where the lanes' parts of it end, and finds a cell's lane by counting.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.build import by_thread
from pagebind_triton.guards import zero
from pagebind_triton.refresh import find
from pagebind_triton.refresh_cells import cells_left, write_changes

SECTOR = tl.constexpr(32)
"""Cells that shares are multiples of, so that no two programs write a sector of the cache, or few."""


@triton.jit
def quotient_up(total: tl.tensor, parts: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """Return ceil(total / parts), int64; neither is negative. A division of 64 bits takes long."""
    if WIDE:
        share = (total + parts - 1) // parts
    else:
        share = ((total.to(tl.uint32) + parts.to(tl.uint32) - 1) // parts.to(tl.uint32)).to(tl.int64)
    return share


@triton.jit
def write_share(
    request_table: tl.tensor,
    req_rows: tl.tensor,
    seq_lens: tl.tensor,
    starts: tl.tensor,
    v2p: tl.tensor,
    out: tl.tensor,
    built: tl.tensor,
    versions: tl.tensor,
    live_pages: tl.tensor,
    state: tl.tensor,
    bs: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    fitting: tl.tensor,
    num_rows: tl.tensor,
    request_stride: tl.tensor,
    out_stride: tl.tensor,
    last_id: tl.tensor,
    seq_len_delta: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    SMALL: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Write this program's share of the large lanes' cells; return how many ids are past the table, by thread.

    The cells of LANES lanes are one list, shared out in equal pieces that lie side by side; then come those of the next
    LANES. A turn of the loop opens a list, or writes BLOCK cells of one lane at most.
    """
    at = tl.arange(0, BLOCK)
    past = by_thread(at < 0, BLOCK)
    base = zero() - LANES
    ends = tl.zeros((LANES,), tl.int64 if WIDE else tl.int32)  # where the cells of each lane end in the list
    place = zero()  # the next cell in the list
    share_end = place
    lane_begin = place  # of the lane that the next cell is of
    lane_end = place
    ids = request_table
    cells = out
    begin = tl.full((), 0, tl.int32)
    end = begin
    low = begin
    high = begin
    old_begin = begin
    old_end = begin
    while (place < share_end) | (base + LANES < rows):
        if place >= share_end:
            base += LANES
            _, first, last, low_of, high_of, old_first, old_last, most, _, _, _, _ = find(
                req_rows, seq_lens, starts, built, versions, live_pages, tl.arange(0, LANES), base, bs, rows, state,
                width, num_rows, seq_len_delta, fitting,
                PAGE_SIZE, TOKEN_GRAIN, WINDOWED, SINK_FILL, BORROWED, ALIGNED, LANES,
            )  # fmt: skip
            left = cells_left(first, low_of, high_of, last, last, old_first, old_last, SINK_FILL)
            ends = tl.cumsum(tl.where(most > SMALL, left, 0).to(ends.dtype), 0)
            total = tl.max(ends, 0).to(tl.int64)
            share = (quotient_up(total, tl.num_programs(0), WIDE) + (SECTOR - 1)) // SECTOR * SECTOR
            place = tl.minimum(tl.program_id(0) * share, total)
            share_end = tl.minimum(place + share, total)
            lane_end = place
        else:
            if place >= lane_end:
                before = ends <= place
                lane_begin = tl.max(tl.where(before, ends, 0), 0).to(tl.int64)
                lane = tl.sum(before.to(tl.int32), 0)
                row, begin, end, low, high, old_begin, old_end, _, _, _, _, _ = find(
                    req_rows, seq_lens, starts, built, versions, live_pages, lane, base, bs, rows, state,
                    width, num_rows, seq_len_delta, fitting,
                    PAGE_SIZE, TOKEN_GRAIN, WINDOWED, SINK_FILL, BORROWED, ALIGNED, LANES,
                )  # fmt: skip
                lane_end = lane_begin + cells_left(begin, low, high, end, end, old_begin, old_end, SINK_FILL)
                ids = request_table + row.to(tl.int64) * request_stride
                cells = out + (base + lane) * out_stride
            piece = tl.minimum(tl.minimum(lane_end, share_end) - place, BLOCK).to(tl.int32)
            beyond = write_changes(
                ids, cells, (place - lane_begin).to(tl.uint32) + at.to(tl.uint32), at < piece,
                begin, low, high, end, end, old_begin, old_end, v2p, last_id,
                PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, SINK_FILL,
            )  # fmt: skip
            past += by_thread(beyond, BLOCK)
            place += piece
    return past
