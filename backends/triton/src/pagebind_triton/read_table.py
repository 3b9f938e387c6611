"""read_table: every row's first tiles at once; only where a row is longer, what is left is shared out evenly.

    program   0 | 1 | 2 | 3 | 4 | 5         two programs a row, three rows abreast: `done` is 2
    tile      0   0   0   1   1   1
    row       0   1   2   0   1   2         then: rows alike -> each goes on in its row, every `done`-th tile
                                                  one long   -> a list of all tiles left, a piece for each program

How many programs there are follows from planned sizes and the tensors' own, so a captured grid is right for every
length. Which way rows are finished, each program finds from the lengths of all, which all of them read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton import build
from pagebind_triton.build import (
    MOST_LANES,
    constants,
    count_cells,
    lane_constants,
    lane_of_tile,
    lane_tiles,
    pointers,
    quotient,
    read_tile,
    reciprocal_of,
    share_of,
    tiles_for,
    write_tile,
)
from pagebind_triton.fill_table import plan_fill
from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, count
from pagebind_triton.lanes import high_half, last_id_of, low_half, open_lane, pair
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid

# Cells of a program, and programs that a GPU runs at once: 4 to 8 on each of the 132 multiprocessors of an H200.
GPU_BLOCK, GPU_SPLIT, GPU_MOST = 1024, 528, 1056


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
def read_table_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= bs, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    reciprocal_and_delta: tl.int64,  # of abreast; added to lengths
    abreast_and_done: tl.int64,  # lanes that have programs of their own, programs of each of them
    bs_and_last_id: tl.int64,  # the highest id of the table
    fitting: tl.int64,  # tokens that fit both tables
    num_rows: tl.int64,
    request_stride: tl.int64,
    out_stride: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    APART: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent."""
    bs = low_half(bs_and_last_id)
    last_id = high_half(bs_and_last_id)
    abreast = low_half(abreast_and_done)
    done = high_half(abreast_and_done)
    seq_len_delta = high_half(reciprocal_and_delta)
    programs = tl.num_programs(0)
    program = tl.program_id(0)
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
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK, APART,
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
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK, APART,
                )  # fmt: skip
        else:
            places = tl.cumsum(left, 0)
            begin, end = share_of(total)
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
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK, APART,
                )  # fmt: skip
                tile += 1
    if COUNT:
        count_cells(state, BAD_ID, past)


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a read table: one kernel, one variant."""
    grid = plan_grid(device, options, GPU_BLOCK, GPU_SPLIT, GPU_MOST)
    if spec.fill == "sink":
        return plan_fill(spec, device, options, grid)
    lost = nowhere(device)
    kernel = Variant(
        read_table_kernel,
        pointers(spec),
        constants(spec, options)
        | lane_constants(spec.max_bs, spec.max_width, grid.block)
        | {"BLOCK": grid.block, "APART": build.APART},
        device,
    )
    unit = spec.page_size if spec.granularity == "page" else 1

    def read_table(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
    ) -> None:
        bs = req_rows.shape[0]
        if bs > MOST_LANES:
            for begin in range(0, bs, MOST_LANES):
                lanes = slice(begin, begin + MOST_LANES)
                read_table(
                    request_table,
                    req_rows[lanes],
                    seq_lens[lanes],
                    v2p,
                    out=out[begin:],
                    starts=None if starts is None else starts[lanes],
                    seq_len_delta=seq_len_delta,
                    state=state,
                )
            return
        width = out.shape[1]
        programs, done = grid.rows(bs, width)
        abreast = programs // done
        kernel(
            programs,
            req_rows,
            seq_lens,
            request_table,
            v2p,
            out,
            lost if state is None else state,
            seq_lens if starts is None else starts,
            pair(reciprocal_of(abreast), seq_len_delta),
            pair(abreast, done),
            pair(bs, last_id_of(v2p)),
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            request_table.shape[0],
            request_table.stride(0),
            out.stride(0),
        )

    return PlannedLaunch(read_table, [kernel], device)
