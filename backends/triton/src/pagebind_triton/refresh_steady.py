"""The lanes of a refresh that are steady: as built, but for a column appended at most. Mostly all of them are.

    loads that wait for each other    row, length, words of `built`, epoch | version, id of the new column | its page

A launch of steady lanes takes as long as these loads, the fetch of its instructions and that of its arguments. So lanes
are a thread each, numbers have 32 bits, the kernel takes them two in an argument, and nothing that is rare is done
here: whatever is not found steady is judged anew. There a steady lane is found done.

A batch is padded by lanes of row NOTHING. They are steady too, with the words of a lane without a row; so are rows of a
table past its batch.

Lanes are *several* that appended more columns, FEW at most. Where all are steady or several, their owners write what is
left of them without a look at anything but lengths. FEW are no more than SMALL: a program that judges anew, because it
saw another lane before that lane's owner wrote it, finds a several lane small, and leaves it to its owner.
"""

from __future__ import annotations

import triton
import triton.language as tl
from pagebind.operation import INT32_MAX
from pagebind.ops.refresh_table import steady_span

from pagebind_triton.build import by_thread
from pagebind_triton.guards import BAD_ID, EPOCH, count_lanes
from pagebind_triton.lanes import high_half, low_half, pair
from pagebind_triton.refresh import (
    BUILT_END,
    BUILT_EPOCH,
    BUILT_FIRST,
    BUILT_ROW,
    BUILT_WORDS,
    NOTHING,
    VERSION,
    VERSION_WORDS,
    load_lane,
    load_two,
)
from pagebind_triton.refresh_cells import column_entries, column_ids

FURTHEST = tl.constexpr(2**32 - 1)
"""A start that no lane below a span reaches, whatever the page size."""

STEADY = tl.constexpr(0)
SEVERAL = tl.constexpr(1)
OTHER = tl.constexpr(2)
"""What lanes are, and what a launch is: the highest of its lanes."""


def narrow(
    bs: int, rows: int, num_rows: int, fitting: int, delta: int, strides: tuple[int, int], last_id: int, lanes: int
) -> tuple[int, int, int, int]:
    """Return the numbers that `write_steady` goes by, two in each: span and rows, num_rows and delta, strides, ids.

    A lane is steady only if its tokens are below `span`. Where other numbers need more bits no lane is: span is 0.
    """
    span = steady_span(fitting, delta)
    if max((rows + lanes) * BUILT_WORDS.value, *strides) > INT32_MAX:
        return 0, 0, 0, 0
    return pair(span, rows), pair(min(num_rows, INT32_MAX), delta), pair(*strides), pair(bs, last_id)


@triton.jit
def write_steady(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= rows, width], int32 or int64; written
    built: tl.tensor,  # [>= rows, BUILT_WORDS], int32; written
    versions: tl.tensor,  # [num_rows, VERSION_WORDS], int32
    live_pages: tl.tensor,  # [num_rows], int32; read with BORROWED
    state: tl.tensor,  # [32], int64
    span_and_rows: tl.tensor,  # as `narrow` returns them
    num_rows_and_delta: tl.tensor,
    strides: tl.tensor,
    bs_and_last_id: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    ONCE: tl.constexpr,  # whether there are LANES rows at most
    OWNERS: tl.constexpr,
    FEW: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Write what steady lanes append, each of them by its owner.

    Return what the lanes are, int32, and how many of the owner's have row NOTHING, as `by_thread` counts them.
    """
    span = low_half(span_and_rows)
    rows = high_half(span_and_rows)
    bs = low_half(bs_and_last_id) if SINK_FILL else rows
    last_id = high_half(bs_and_last_id)
    epoch = tl.load((state + EPOCH).to(tl.pointer_type(tl.int32)))
    highest = tl.where(span == 0, OTHER, STEADY)
    padded = by_thread(tl.arange(0, LANES) < 0, LANES)
    for base in range(0, LANES if ONCE else rows, LANES):
        lane = base + tl.arange(0, LANES)
        row, length, start = load_lane(req_rows, seq_lens, starts, lane, bs, WINDOWED)
        words = built + lane * BUILT_WORDS
        was_row, was_version = load_two(words + BUILT_ROW, lane < rows, ALIGNED)
        was_epoch, was_first = load_two(words + BUILT_EPOCH, lane < rows, ALIGNED)
        was_end, was_live = load_two(words + BUILT_END, lane < rows, ALIGNED)

        good, begin, end = extent(
            row, length, start, low_half(num_rows_and_delta), high_half(num_rows_and_delta), span,
            PAGE_SIZE, TOKEN_GRAIN, WINDOWED,
        )  # fmt: skip
        nothing = row == NOTHING
        appended = end.to(tl.uint32) - was_end.to(tl.uint32)
        appends = (begin < end) & (appended - 1 < FEW)
        mine = (lane & (OWNERS - 1)) == tl.program_id(0)
        version = tl.load(versions + product(row, VERSION_WORDS) + VERSION, mask=good, other=0)
        live = version * 0
        if BORROWED:
            live = tl.maximum(tl.load(live_pages + product(row, 1), mask=good, other=0), 0)
        ids = request_table + product(row, low_half(strides))
        held = column_ids(ids, end - 1, appends & mine, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN)

        entries, beyond = column_entries(
            held, end - 1, appends & mine, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN
        )
        # An id past the table is to be counted.
        same = (was_row == row) & (was_version == version) & (was_live == live) & (beyond == 0)
        same = same & (appends | (was_end == end)) & (good | nothing) & (was_epoch == tl.where(nothing, 0, epoch))
        if WINDOWED and not SINK_FILL:
            same = same & ((was_first == begin) | ((was_first < begin) & (begin < end)))
        else:
            same = same & (was_first == begin)
        # The page is on its way meanwhile.
        kind = tl.where(same, (appended > 1).to(tl.int32), OTHER)
        highest = tl.maximum(highest, tl.max(tl.where(lane < rows, kind, STEADY), 0))
        padded += by_thread(nothing & mine & (lane < bs), LANES)

        cells = out + product(lane, high_half(strides))
        tl.store(cells + (end - 1), entries.to(out.dtype.element_ty), mask=appends & mine & same)
        tl.store(words + BUILT_END, end, mask=appends & mine & same & (appended == 1))
        if WINDOWED and not SINK_FILL:
            tl.store(words + BUILT_FIRST, begin, mask=same & mine & (was_first < begin))
    return highest, padded


@triton.jit
def write_several(
    request_table: tl.tensor,  # as write_steady takes them
    req_rows: tl.tensor,
    seq_lens: tl.tensor,
    starts: tl.tensor,
    v2p: tl.tensor,
    out: tl.tensor,
    built: tl.tensor,
    state: tl.tensor,
    span_and_rows: tl.tensor,
    num_rows_and_delta: tl.tensor,
    strides: tl.tensor,
    bs_and_last_id: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    OWNERS: tl.constexpr,
    OWN: tl.constexpr,
    FEW: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Write what several lanes of this program append but for the last column, which `write_steady` wrote."""
    owned = tl.where(tl.program_id(0) < OWNERS, low_half(bs_and_last_id), 0)
    for base in range(0, low_half(bs_and_last_id), LANES):
        lane = (base + tl.program_id(0) + OWNERS * tl.arange(0, OWN))[:, None]
        row, length, start = load_lane(req_rows, seq_lens, starts, lane, owned, WINDOWED)
        good, begin, end = extent(
            row, length, start, low_half(num_rows_and_delta), high_half(num_rows_and_delta), low_half(span_and_rows),
            PAGE_SIZE, TOKEN_GRAIN, WINDOWED,
        )  # fmt: skip
        words = built + lane * BUILT_WORDS
        was_end = tl.load(words + BUILT_END, mask=good, other=0)
        # All threads have read where a lane ended before one of them notes where it does now.
        tl.debug_barrier()
        column = end - 2 - tl.arange(0, FEW)[None, :]
        fresh = (column >= was_end) & (column >= begin)
        ids = request_table + product(row, low_half(strides))
        held = column_ids(ids, column, fresh, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN)
        entries, beyond = column_entries(
            held, column, fresh, v2p, high_half(bs_and_last_id), PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN
        )
        cells = out + product(lane, high_half(strides))
        tl.store(cells + column, entries.to(out.dtype.element_ty), mask=fresh)
        tl.store(words + BUILT_END, end, mask=was_end < end)
        if COUNT:
            count_lanes(state, BAD_ID, beyond)


@triton.jit
def product(number: tl.tensor, times: tl.tensor) -> tl.tensor:
    """Return a product of numbers of [0, 2**31), int64; of others it is anything."""
    return (number.to(tl.uint32).to(tl.uint64) * tl.full((), times, tl.uint32).to(tl.uint64)).to(tl.int64)


@triton.jit
def extent(
    row: tl.tensor,  # int32 or int64
    length: tl.tensor,
    start: tl.tensor,
    num_rows: tl.tensor,
    delta: tl.tensor,
    span: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return whether lanes have a row and fit, and their extent, int32; 0 and 0 where it is empty or they do not."""
    if row.dtype == tl.int64:
        good = row.to(tl.uint64, bitcast=True) < num_rows.to(tl.uint64)
    else:
        good = row.to(tl.uint32, bitcast=True) < num_rows.to(tl.uint32)
    if length.dtype == tl.int64:
        asked = (length + delta).to(tl.uint64, bitcast=True)  # past 64 bits it is a long one still
        good = good & (asked < span.to(tl.uint64))
    else:
        asked = length.to(tl.uint32, bitcast=True) + delta.to(tl.uint32)
        good = good & (asked < span.to(tl.uint32))
    tokens = asked.to(tl.uint32)
    end = tokens if TOKEN_GRAIN else (tokens + (PAGE_SIZE - 1)) // PAGE_SIZE
    end = end.to(tl.int32)
    begin = end * 0
    some = good
    if WINDOWED:
        first = tl.maximum(start, 0)
        if start.dtype == tl.int64:
            first = tl.minimum(first, FURTHEST)
        first = first.to(tl.uint32)
        first = first if TOKEN_GRAIN else first // PAGE_SIZE
        some = good & (first < end.to(tl.uint32))
        begin = tl.where(some, first.to(tl.int32), 0)
    return good, begin, tl.where(some, end, 0)
