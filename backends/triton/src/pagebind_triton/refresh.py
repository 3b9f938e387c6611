"""What a refresh finds of lanes: the columns that are kept, and those to write or to empty.

    begin ... low | low ... high | high ... end        old_begin ... begin, end ... old_end
       written    |     kept     |   written                emptied, with sink fill

A lane is *large* where it may have more than SMALL cells to change. Programs judge a small lane before, amid and after
its owner notes in `built` what it wrote. They all find it small, whatever words of it are old and new, because each new
word makes what `judge` counts less or leaves it as it is:

    row, epoch, version   as they are now: more is kept, or as much
    first, end            begin and end: they cut nothing of what is kept, and make their part of the emptied 0
    live                  as it is now: cuts nothing
    without a row         nothing is written; first and end are 0, as begin and end are

That is why the emptied count as if they reached up to what is valid: of [1000, 1010) before and [0, 10) now, somebody
may see [0, 1010), and takes the lane for large; so has its owner to.

The functions take one lane, lanes `[LANES]`, or lanes `[OWN, 1]`: int32, counted from where their pointers point to.
"""

from __future__ import annotations

import triton
import triton.language as tl
from pagebind.ops import refresh_table as words
from pagebind.ops import touch

from pagebind_triton.guards import EPOCH, within
from pagebind_triton.lanes import MOST, extent, has_row

NOTHING = tl.constexpr(words.NOTHING)
BUILT_WORDS = tl.constexpr(words.BUILT_WORDS)
BUILT_ROW = tl.constexpr(words.BUILT_ROW)
BUILT_VERSION = tl.constexpr(words.BUILT_VERSION)
BUILT_EPOCH = tl.constexpr(words.BUILT_EPOCH)
BUILT_FIRST = tl.constexpr(words.BUILT_FIRST)
BUILT_END = tl.constexpr(words.BUILT_END)
BUILT_LIVE = tl.constexpr(words.BUILT_LIVE)
VERSION_WORDS = tl.constexpr(touch.VERSION_WORDS)
VERSION = tl.constexpr(touch.VERSION)
CHANGED = tl.constexpr(touch.CHANGED)


@triton.jit
def load_two(
    at: tl.tensor,  # pointers to int32
    listed: tl.tensor,  # mask; zeros are read elsewhere
    ALIGNED: tl.constexpr,  # whether pointers are aligned to 8 bytes
) -> tuple[tl.tensor, tl.tensor]:
    """Return two words that lie side by side, int32, by one access if that may be."""
    if ALIGNED:
        both = tl.load(at.to(tl.pointer_type(tl.int64)), mask=listed, other=0)
        low = both.to(tl.int32)
        high = (both >> 32).to(tl.int32)
    else:
        low = tl.load(at, mask=listed, other=0)
        high = tl.load(at + 1, mask=listed, other=0)
    return low, high


@triton.jit
def load_built(
    built: tl.tensor,  # [rows, BUILT_WORDS], int32
    lane: tl.tensor,
    listed: tl.tensor,  # mask; zeros are read elsewhere
    ALIGNED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return what a lane's words were: row, version, epoch, first, end, live; int32."""
    at = built + lane * BUILT_WORDS
    row, version = load_two(at + BUILT_ROW, listed, ALIGNED)
    epoch, first = load_two(at + BUILT_EPOCH, listed, ALIGNED)
    end, live = load_two(at + BUILT_END, listed, ALIGNED)
    return row, version, epoch, first, end, live


@triton.jit
def store_built(
    built: tl.tensor,  # [rows, BUILT_WORDS], int32; written
    lane: tl.tensor,
    chosen: tl.tensor,  # mask
    good: tl.tensor,  # mask; lanes that have a row
    row: tl.tensor,
    version: tl.tensor,
    epoch: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    live: tl.tensor,
) -> None:
    """Note what lanes hold from now on."""
    at = built + lane * BUILT_WORDS
    tl.store(at + BUILT_ROW, tl.where(good, row.to(tl.int32), NOTHING), mask=chosen)
    tl.store(at + BUILT_VERSION, version, mask=chosen)
    tl.store(at + BUILT_EPOCH, tl.where(good, epoch, 0), mask=chosen)
    tl.store(at + BUILT_FIRST, begin, mask=chosen)
    tl.store(at + BUILT_END, end, mask=chosen)
    tl.store(at + BUILT_LIVE, live, mask=chosen)
    for unnamed in tl.static_range(BUILT_LIVE + 1, BUILT_WORDS):
        tl.store(at + unnamed, begin * 0, mask=chosen)


@triton.jit
def load_lane(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    lane: tl.tensor,
    bs: tl.tensor,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return what a batch says of lanes, as it is: row, length and start; NOTHING, 0 and 0 past it."""
    row = tl.load(req_rows + lane, mask=lane < bs, other=NOTHING)
    length = tl.load(seq_lens + lane, mask=lane < bs, other=0)
    start = length
    if WINDOWED:
        start = tl.load(starts + lane, mask=lane < bs, other=0)
    return row, length, start


@triton.jit
def open_lane(
    row: tl.tensor,  # int32 or int64; as load_lane returns them
    length: tl.tensor,
    start: tl.tensor,
    num_rows: tl.tensor,
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,  # tokens that fit both tables
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return a lane's row, its extent, int32, 0 and 0 if it is empty, if its row is good, and if it is clipped."""
    first, last, clipped = extent(length, start, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED)
    good = has_row(row, num_rows)
    some = good & (first < last)
    begin = tl.where(some, first, 0)
    return tl.where(good, row, 0), begin, tl.where(some, last, 0), good, good & clipped


@triton.jit
def load_now(
    versions: tl.tensor,  # [num_rows, VERSION_WORDS], int32
    live_pages: tl.tensor,  # [num_rows], int32; with BORROWED
    row: tl.tensor,
    good: tl.tensor,  # mask; zeros are read elsewhere
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return what rows say of themselves: version, the lowest changed token and the first live page; int32."""
    row = row.to(tl.int64)
    at = versions + row * VERSION_WORDS
    version, changed = load_two(at + VERSION, good, ALIGNED)
    live = version * 0
    if BORROWED:
        live = tl.maximum(tl.load(live_pages + row, mask=good, other=0), 0)
    return version, changed, live


@triton.jit
def judge(
    row: tl.tensor,  # int32 or int64
    begin: tl.tensor,  # int32; columns, all of them
    end: tl.tensor,
    good: tl.tensor,  # mask; lanes that have a row
    version: tl.tensor,  # int32
    changed: tl.tensor,
    live: tl.tensor,
    epoch: tl.tensor,
    was_row: tl.tensor,  # int32; as load_built returns them
    was_version: tl.tensor,
    was_epoch: tl.tensor,
    was_first: tl.tensor,
    was_end: tl.tensor,
    was_live: tl.tensor,
    width: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return low, high, old_begin and old_end, within the width, and the cells to change at most; int32."""
    low = tl.maximum(begin, was_first)
    high = tl.minimum(end, was_end)
    unit: tl.constexpr = 1 if TOKEN_GRAIN else PAGE_SIZE
    one_ahead = version.to(tl.uint32, bitcast=True) - was_version.to(tl.uint32, bitcast=True) == 1
    limit = tl.where(one_ahead, tl.maximum(changed, 0) // unit, 0)
    high = tl.where(version == was_version, high, tl.minimum(high, limit))
    if BORROWED:
        of_page: tl.constexpr = PAGE_SIZE if TOKEN_GRAIN else 1
        moved = tl.minimum(tl.maximum(live, was_live).to(tl.int64) * of_page, MOST).to(tl.int32)
        low = tl.where(live == was_live, low, tl.maximum(low, moved))
    kept = good & (row == was_row) & (epoch == was_epoch) & (low < high)
    low = tl.where(kept, low, begin)
    high = tl.where(kept, high, begin)
    # No sum is above the width: where both parts of the emptied are more than 0, [begin, end) lies in the old extent.
    cells = (low - begin) + (end - high)
    old_begin = begin
    old_end = begin
    if SINK_FILL:
        widest = width.to(tl.int32)
        old_begin = tl.minimum(tl.maximum(was_first, 0), widest)
        old_end = tl.minimum(tl.maximum(was_end, 0), widest)
        cells += tl.maximum(begin - old_begin, 0) + tl.maximum(old_end - end, 0)
    return low, high, old_begin, old_end, cells


@triton.jit
def find(
    req_rows: tl.tensor,
    seq_lens: tl.tensor,
    starts: tl.tensor,
    built: tl.tensor,
    versions: tl.tensor,
    live_pages: tl.tensor,
    lane: tl.tensor,  # counted from `base` on
    base: tl.tensor,  # int64
    bs: tl.tensor,
    rows: tl.tensor,
    state: tl.tensor,
    width: tl.tensor,
    num_rows: tl.tensor,
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Return row, begin, end, low, high, old_begin, old_end, cells, good, version, epoch and live of lanes."""
    epoch = tl.load(state + EPOCH).to(tl.int32)
    rows_here = tl.minimum(rows - base, LANES).to(tl.int32)
    bs_here = within(bs - base, 0, LANES).to(tl.int32)
    asked, length, start = load_lane(req_rows + base, seq_lens + base, starts + base, lane, bs_here, WINDOWED)
    words = built + base * BUILT_WORDS
    was_row, was_version, was_epoch, was_first, was_end, was_live = load_built(words, lane, lane < rows_here, ALIGNED)
    row, begin, end, good, _ = open_lane(
        asked, length, start, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
    )
    version, changed, live = load_now(versions, live_pages, row, good, BORROWED, ALIGNED)
    low, high, old_begin, old_end, cells = judge(
        row, begin, end, good, version, changed, live, epoch,
        was_row, was_version, was_epoch, was_first, was_end, was_live, width,
        PAGE_SIZE, TOKEN_GRAIN, SINK_FILL, BORROWED,
    )  # fmt: skip
    return row, begin, end, low, high, old_begin, old_end, cells, good, version, epoch, live
