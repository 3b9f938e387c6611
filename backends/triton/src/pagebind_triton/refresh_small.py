"""The small lanes of a refresh: those with few cells to change, which their owner writes at once.

Columns at the end of a row are read before it is known whether they are new, as those of a step's new tokens are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, EPOCH, count_lanes, within
from pagebind_triton.refresh import (
    BUILT_WORDS,
    judge,
    load_built,
    load_lane,
    load_now,
    open_lane,
    store_built,
)
from pagebind_triton.refresh_cells import cells_left, column_entries, column_ids, write_changes


@triton.jit
def write_small(
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
    COUNT: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    OWNERS: tl.constexpr,
    OWN: tl.constexpr,
    FEW: tl.constexpr,
    SMALL: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tensor:
    """Write the small lanes that this program owns; return whether a lane is large, as int32."""
    any_large = tl.zeros((LANES,), tl.int32)
    for base in range(0, rows, LANES):
        # What does not wait for anything is read first, for the owner's lanes and for everybody's.
        lane = tl.arange(0, LANES)
        mine = (tl.program_id(0) + OWNERS * tl.arange(0, OWN))[:, None]
        mine = tl.where(tl.program_id(0) < OWNERS, mine, LANES)
        rows_here = tl.minimum(rows - base, LANES).to(tl.int32)
        bs_here = within(bs - base, 0, LANES).to(tl.int32)
        owned = mine < rows_here
        words = built + base * BUILT_WORDS
        epoch = tl.load(state + EPOCH).to(tl.int32)
        my_asked, my_length, my_start = load_lane(
            req_rows + base, seq_lens + base, starts + base, mine, bs_here, WINDOWED
        )
        asked, length, start = load_lane(req_rows + base, seq_lens + base, starts + base, lane, bs_here, WINDOWED)
        was_row, was_version, was_epoch, was_first, was_end, was_live = load_built(words, mine, owned, ALIGNED)
        row_was, version_was, epoch_was, first_was, end_was, live_was = load_built(
            words, lane, lane < rows_here, ALIGNED
        )

        # Then what waits for the row: the ids of its last columns, before it is known which are new, and its words.
        my_row, begin, end, has_row, clipped = open_lane(
            my_asked, my_length, my_start, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
        )
        ids = request_table + my_row.to(tl.int64) * request_stride
        column = end - 1 - tl.arange(0, FEW)[None, :]
        held = column_ids(ids, column, column >= begin, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN)
        # All threads have read a lane's words before one of them writes new ones.
        tl.debug_barrier()
        my_version, my_changed, my_live = load_now(versions, live_pages, my_row, has_row, BORROWED, ALIGNED)
        row, first, last, good, _cut = open_lane(
            asked, length, start, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
        )
        version, changed, live = load_now(versions, live_pages, row, good, BORROWED, ALIGNED)
        # It always is, but no compiler knows: behind a branch it waits for loads only when all are on their way.
        if base + width > 0:
            low, high, old_begin, old_end, cells = judge(
                my_row, begin, end, has_row, my_version, my_changed, my_live, epoch,
                was_row, was_version, was_epoch, was_first, was_end, was_live, width,
                PAGE_SIZE, TOKEN_GRAIN, SINK_FILL, BORROWED,
            )  # fmt: skip
            small = owned & (cells <= SMALL)
            fresh = small & (column >= high) & (column >= begin)
            entries, beyond = column_entries(
                held, column, fresh, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN
            )
            _, _, _, _, cells_of_all = judge(
                row, first, last, good, version, changed, live, epoch,
                row_was, version_was, epoch_was, first_was, end_was, live_was, width,
                PAGE_SIZE, TOKEN_GRAIN, SINK_FILL, BORROWED,
            )  # fmt: skip
            any_large = tl.maximum(any_large, (cells_of_all > SMALL).to(tl.int32))
            my_cells = out + (base + mine) * out_stride
            tl.store(my_cells + column, entries.to(out.dtype.element_ty), mask=fresh)

            store_built(words, mine, small, has_row, my_row, my_version, epoch, begin, end, my_live)
            if COUNT:
                count_lanes(state, CLIPPED, clipped)
                count_lanes(state, BAD_ROW, (mine < bs_here) & (has_row == 0))
                count_lanes(state, BAD_ID, beyond)
            stop = tl.maximum(high, end - FEW)
            left = tl.where(small, cells_left(begin, low, high, stop, end, old_begin, old_end, SINK_FILL), 0)
            if tl.max(left) > 0:
                past_too = write_changes(
                    ids, my_cells, tl.arange(0, SMALL)[None, :].to(tl.uint32), left > 0,
                    begin, low, high, stop, end, old_begin, old_end, v2p, last_id,
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, SINK_FILL,
                )  # fmt: skip
                if COUNT:
                    count_lanes(state, BAD_ID, past_too)
    return tl.max(any_large, 0)
