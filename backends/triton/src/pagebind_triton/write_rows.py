"""What a read table with prefix fill is built by: every row's first tiles at once, then what is left of longer rows.

    program   0 | 1 | 2 | 3 | 4 | 5         two programs a row, three rows abreast: `done` is 2
    tile      0   0   0   1   1   1
    row       0   1   2   0   1   2         then: rows alike -> each goes on in its row, every `done`-th tile
                                                  one long   -> a list of all tiles left, a piece for each program

How many programs there are follows from planned sizes and the tensors' own, so a captured grid is right for every
length. Which way rows are finished, each program finds from the lengths of all, which all of them read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from pagebind.ops.beside import SecondTable

from pagebind_triton.build import (
    count_cells,
    lane_of_tile,
    lane_tiles,
    quotient,
    read_tile,
    reciprocal_of,
    share_of,
    tiles_for,
    write_tile,
)
from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, count
from pagebind_triton.lanes import high_half, last_id_of, low_half, open_lane, pair
from pagebind_triton.launch import Grid


def share_rows(grid: Grid, bs: int, delta: int, fitting: int, table: SecondTable) -> tuple[int, tuple[int, ...]]:
    """Return the programs of a table, and what `write_rows` is told of it: three pairs, fitting and the stride."""
    programs, done = grid.rows(bs, table.out.shape[1])
    abreast = programs // done
    lanes = pair(reciprocal_of(abreast), delta), pair(abreast, done), pair(bs, last_id_of(table.v2p))
    return programs, (*lanes, fitting, table.out.stride(0))


@triton.jit
def count_lane(
    state: tl.tensor,  # [32], int64
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    lane: tl.tensor,
    num_rows: tl.tensor,
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> None:
    """Count what is wrong with a lane that has no program of its own."""
    _row, _first, _last, clipped, bad_row = open_lane(
        req_rows, seq_lens, starts, lane, True, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
    )
    count(state, CLIPPED, clipped.to(tl.int64))
    count(state, BAD_ROW, bad_row.to(tl.int64))


@triton.jit
def write_rows(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= bs, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    reciprocal_and_delta: tl.tensor,  # of abreast; added to lengths
    abreast_and_done: tl.tensor,  # lanes that have programs of their own, programs of each of them
    bs_and_last_id: tl.tensor,  # the highest id of the table
    fitting: tl.tensor,  # tokens that fit both tables
    out_stride: tl.tensor,
    num_rows: tl.tensor,
    request_stride: tl.tensor,
    program: tl.tensor,  # this one, of those that build the table
    programs: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent."""
    bs = low_half(bs_and_last_id)
    last_id = high_half(bs_and_last_id)
    abreast = low_half(abreast_and_done)
    done = high_half(abreast_and_done)
    seq_len_delta = high_half(reciprocal_and_delta)
    part = quotient(program, low_half(reciprocal_and_delta)).to(tl.int32)
    lane = program - part * abreast

    # What does not need one another is read together: the lane's words and everybody's lengths.
    row, first, last, clipped, bad_row = open_lane(
        req_rows, seq_lens, starts, lane, True, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
    )
    lanes = tl.arange(0, LANES)
    tiles = lane_tiles(
        req_rows, seq_lens, starts, lanes, lanes < bs, num_rows, seq_len_delta, fitting,
        PAGE_SIZE, TOKEN_GRAIN, WINDOWED, BLOCK,
    )  # fmt: skip
    ids = request_table + row * request_stride
    cells = out + lane.to(tl.int64) * out_stride
    held = read_tile(ids, first, last, part, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
    held_next = read_tile(ids, first, last, part + done, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
    longest = tl.max(tiles, 0)  # while the ids are on their way
    past = write_tile(
        held, cells, first, last, part, v2p, last_id,
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK,
    )  # fmt: skip
    if COUNT:
        if part == 0:
            count(state, CLIPPED, clipped.to(tl.int64))
            count(state, BAD_ROW, bad_row.to(tl.int64))
        for later in range(abreast + program, bs, programs):
            count_lane(
                state, req_rows, seq_lens, starts, later, num_rows, seq_len_delta, fitting,
                PAGE_SIZE, TOKEN_GRAIN, WINDOWED,
            )  # fmt: skip

    if (longest > done) | (bs > abreast):
        left = tl.where(lanes < abreast, tl.maximum(tiles - done, 0), tiles)
        if WIDE:
            left = left.to(tl.int64)
        total = tl.sum(left, 0)
        # In its own row a program has (longest - done) / done tiles to go at most, of the list total / programs, and
        # searching the list takes about as long as one more.
        alike = (longest - done).to(tl.int64) * abreast <= total + programs
        if alike & (bs <= abreast):
            tile = part
            for _ in range(part + done, tiles_for(last - first, BLOCK), done):
                tile += done
                held = held_next
                held_next = read_tile(ids, first, last, tile + done, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
                past += write_tile(
                    held, cells, first, last, tile, v2p, last_id,
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK,
                )  # fmt: skip
        else:
            places = tl.cumsum(left, 0)
            begin, end = share_of(total, program, programs)
            tile = part
            last = first  # nothing is left of this lane
            for place in range(begin, end):
                if tile >= tiles_for(last - first, BLOCK):
                    lane, tile = lane_of_tile(place, places)
                    tile += tl.where(lane < abreast, done, 0)
                    row, first, last, clipped, bad_row = open_lane(
                        req_rows, seq_lens, starts, lane, True, num_rows, seq_len_delta, fitting,
                        PAGE_SIZE, TOKEN_GRAIN, WINDOWED,
                    )  # fmt: skip
                    ids = request_table + row * request_stride
                    cells = out + lane.to(tl.int64) * out_stride
                held = read_tile(ids, first, last, tile, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
                past += write_tile(
                    held, cells, first, last, tile, v2p, last_id,
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK,
                )  # fmt: skip
                tile += 1
    if COUNT:
        count_cells(state, BAD_ID, past)
