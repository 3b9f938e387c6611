"""What builds of a read table are made of: a lane's columns, tiles of entries, and how long rows are shared out.

    a tile: BLOCK columns of one row, its last one cut      lane 0  [ 0 ][ 1 ][ 2 ][ 3]
                                                            lane 1  [ 0 ]
    past the first tile of each lane there is left          lane 2  [ 0 ][ 1]
    a list of tiles, shared out evenly:  0: 1 2 3   2: 1

The list is nowhere in memory: a program keeps where the lanes' parts of it end, and finds a tile's lane by counting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from pagebind.operation import INT32_MAX, LaunchOptions
from pagebind.ops.beside import SecondTable
from pagebind.ops.read_stream import ReadStreamSpec
from pagebind.ops.read_table import ReadTableSpec

from pagebind_triton.guards import HOLE, SINK, TOMBSTONE
from pagebind_triton.lanes import open_lane
from pagebind_triton.launch import GPU_MOST, MOST_WARPS, WARP

MOST_LANES = 4096
"""Lanes of a launch at most: a program counts the tiles of all of them."""


MOST_THREADS = tl.constexpr(MOST_WARPS * WARP)
SHIFT = 30
RECIPROCAL_BITS = tl.constexpr(SHIFT)


def reciprocal_of(divisor: int) -> int:
    """Return what `quotient` multiplies by, below 2**31; it is exact for program numbers below 2**15.

    With `m = 2**30 // d + 1` and `m * d = 2**30 + e`, `e <= d`: `n * m / 2**30 = n / d + n * e / (d * 2**30)`, too much
    by less than 1 / d where `n * e < 2**30`. For `d > 2**15` both are below 1, because m is 2**15 at most.
    """
    return (1 << SHIFT) // divisor + 1


def pointers(spec: ReadTableSpec) -> Sequence[torch.dtype]:
    """Return the dtypes of what kernels that build a table point to: what the first loads need comes first."""
    lengths = spec.length_dtype
    return [spec.row_dtype, lengths, torch.int32, spec.index_dtype, spec.out_dtype, torch.int64, lengths]


def pointed(table: SecondTable, seq_lens: torch.Tensor, lost: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what the last four of them point to; without starts nobody reads them, without a state counts are lost."""
    v2p, out, starts, state = table
    return v2p, out, lost if state is None else state, seq_lens if starts is None else starts


def constants(spec: ReadTableSpec | ReadStreamSpec, options: LaunchOptions) -> dict[str, int]:
    """Return the constants that those kernels share."""
    return {
        "PAGE_SIZE": spec.page_size,
        "MULTIPLIER": spec.multiplier,
        "TOKEN_FORM": spec.form == "token",
        "TOKEN_GRAIN": spec.granularity == "token",
        "WINDOWED": spec.windowed,
        "COUNT": options.count,
    }


def lane_constants(max_bs: int, max_width: int, block: int) -> dict[str, int]:
    """Return LANES, a power of two that covers a launch's lanes, and WIDE, whether tiles are counted in 64 bits."""
    lanes = 1 << (min(max(max_bs, 1), MOST_LANES) - 1).bit_length()
    # The shares of all programs may come to more than there is, by less than a tile each.
    return {"LANES": lanes, "WIDE": lanes * -(-max_width // block) + GPU_MOST > INT32_MAX}


@triton.jit
def quotient(program: tl.tensor, reciprocal: tl.tensor) -> tl.tensor:
    """Return `program // divisor`, int64; a product instead of a division, which everything would wait for."""
    return (program.to(tl.int64) * reciprocal) >> RECIPROCAL_BITS


@triton.jit
def tiles_for(cells: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return how many tiles hold that many cells, int32."""
    return ((cells.to(tl.uint32) + (BLOCK - 1)) // BLOCK).to(tl.int32)


@triton.jit
def lane_tiles(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    lanes: tl.tensor,  # [LANES], int32
    listed: tl.tensor,  # [LANES], mask
    num_rows: tl.tensor,
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return how many tiles lanes have, int32 `[LANES]`."""
    _row, first, last, _clipped, _bad_row = open_lane(
        req_rows, seq_lens, starts, lanes, listed, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
    )
    return tiles_for(last - first, BLOCK)


@triton.jit
def tile_ids(
    ids: tl.tensor,  # [tokens or pages], int32; one row of the request table
    column: tl.tensor,  # int64; the tile's first
    live: tl.tensor,  # [BLOCK], mask; nothing is read elsewhere
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return what a row holds for the columns of a tile, int32; holes where nothing is read."""
    at = tl.arange(0, BLOCK)
    if TOKEN_FORM == TOKEN_GRAIN or PAGE_SIZE == 1:
        cells = ids + column + at
    elif TOKEN_FORM:
        cells = ids + column * PAGE_SIZE + at.to(tl.int64) * PAGE_SIZE
    else:
        cells = ids + column // PAGE_SIZE + offsets(column, PAGE_SIZE, BLOCK) // PAGE_SIZE
    return tl.load(cells, mask=live, other=HOLE)


@triton.jit
def offsets(column: tl.tensor, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Return the columns of a tile, which are tokens, counted from the start of its first page; uint32."""
    # Both are below 2**31.
    return (column % PAGE_SIZE).to(tl.uint32) + tl.arange(0, BLOCK).to(tl.uint32)


@triton.jit
def tile_entries(
    held: tl.tensor,  # [BLOCK], int32; as tile_ids returns it
    column: tl.tensor,  # int64; the tile's first
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    last_id: tl.tensor,  # int32; the highest one of the table
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the entries of a tile, int64, and the mask of those whose id is past the table."""
    page = held
    if TOKEN_FORM:
        page = held // PAGE_SIZE
    # Negatives divide towards 0: the id itself tells a hole.
    known = (held >= 0) & (page <= last_id)
    physical = tl.load(v2p + page, mask=known, other=TOMBSTONE)
    entry = tl.maximum(physical, SINK).to(tl.int64) * MULTIPLIER
    if TOKEN_GRAIN:
        offset = held % PAGE_SIZE if TOKEN_FORM else offsets(column, PAGE_SIZE, BLOCK) % PAGE_SIZE
        entry = tl.where(physical >= 0, entry * PAGE_SIZE + offset.to(tl.int64), SINK)
    return entry, page > last_id


@triton.jit
def tile_at(
    first: tl.tensor,  # int32; columns
    last: tl.tensor,  # int32
    tile: tl.tensor,  # int32; counted from `first` on; past the last one by a row's tiles at most
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first column of a tile, int64, and the mask of its columns that lie below `last`."""
    # Unsigned: twice the widest row still fits.
    begin = tile.to(tl.uint32) * BLOCK
    live = begin + tl.arange(0, BLOCK).to(tl.uint32) < (last - first).to(tl.uint32)
    return first.to(tl.int64) + begin.to(tl.int64), live


@triton.jit
def read_tile(
    ids: tl.tensor,  # [tokens or pages], int32; one row of the request table
    first: tl.tensor,  # int32; columns
    last: tl.tensor,  # int32
    tile: tl.tensor,  # int32; counted from `first` on
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return what a row holds for a tile, int32; holes past its last column."""
    column, live = tile_at(first, last, tile, BLOCK)
    return tile_ids(ids, column, live, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)


@triton.jit
def write_tile(
    held: tl.tensor,  # [BLOCK], int32; as read_tile returns it
    cells: tl.tensor,  # [width], int32 or int64; the row of the read table; written
    first: tl.tensor,  # int32; columns
    last: tl.tensor,  # int32
    tile: tl.tensor,  # int32; counted from `first` on
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    last_id: tl.tensor,  # int32; the highest one of the table
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Write the entries of a tile; return how many ids are past the table, as `by_thread` counts them."""
    column, live = tile_at(first, last, tile, BLOCK)
    entries, beyond = tile_entries(held, column, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
    tl.store(cells + column + tl.arange(0, BLOCK), entries.to(cells.dtype.element_ty), mask=live)
    return by_thread(beyond, BLOCK)


@triton.jit
def by_thread(mask: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return how many cells of a mask each thread holds, int32: no thread waits for another one to count."""
    THREADS: tl.constexpr = BLOCK if BLOCK < MOST_THREADS else MOST_THREADS
    return tl.sum(tl.reshape(mask.to(tl.int32), (BLOCK // THREADS, THREADS)), 0)


@triton.jit
def count_cells(
    state: tl.tensor,  # [32], int64
    WORD: tl.constexpr,
    cells: tl.tensor,  # as by_thread returns them
) -> None:
    """Add cells to a counter; threads without any do nothing."""
    tl.atomic_add(state + WORD + cells * 0, cells.to(tl.int64), mask=cells > 0, sem="relaxed")


@triton.jit
def share_of(total: tl.tensor, program: tl.tensor, programs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the first tile of a program's even share of a list, and the one past its last."""
    share = (total + (programs - 1)) // programs
    begin = program * share
    return tl.minimum(begin, total), tl.minimum(begin + share, total)


@triton.jit
def lane_of_tile(
    tile: tl.tensor,
    ends: tl.tensor,  # [LANES]; where the tiles of each lane end in the list of all
) -> tuple[tl.tensor, tl.tensor]:
    """Return the lane of a tile, int32, and how many tiles of that lane come before it, int32."""
    before = ends <= tile
    begin = tl.max(tl.where(before, ends, 0), 0)
    return tl.sum(before.to(tl.int32), 0), (tile - begin).to(tl.int32)
