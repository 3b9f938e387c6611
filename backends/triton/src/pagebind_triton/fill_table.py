"""read_table with sink fill: rows are equally long, so their tiles are simply dealt out to programs.

tile   | 0 | 1 | 2 |
row 0    0   2   4      of program 0: 0, 3; of program 1: 1, 4; of program 2: 2, 5
row 1    1   3   5
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton.build import (
    by_thread,
    constants,
    count_cells,
    highest_id,
    pointers,
    quotient,
    reciprocal_of,
    tile_entries,
    tile_ids,
)
from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, count
from pagebind_triton.lanes import open_lane
from pagebind_triton.launch import Grid, PlannedLaunch, Variant, nowhere


@triton.jit
def write_filled(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [rows, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    bs: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    fitting: tl.tensor,  # tokens that fit both tables
    num_rows: tl.tensor,
    request_stride: tl.tensor,
    out_stride: tl.tensor,
    num_virtual: tl.tensor,
    seq_len_delta: tl.tensor,
    tiles: tl.tensor,  # of all rows
    reciprocal: tl.tensor,  # of rows
    rows_on: tl.tensor,  # how many rows, and tiles of a row, a program's next tile is further on
    tiles_on: tl.tensor,
    program: tl.tensor,  # this one, of those that build the table
    programs: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent, and the sink everywhere else: rows are equally long."""
    tile = quotient(program, reciprocal)
    row_of_out = program - tile * rows
    last_id = highest_id(num_virtual)
    at = tl.arange(0, BLOCK)
    past = by_thread(at < 0, BLOCK)
    for _ in range(program, tiles, programs):
        row, first, last, clipped, bad_row = open_lane(
            req_rows, seq_lens, starts, row_of_out, row_of_out < bs, num_rows, seq_len_delta, fitting,
            PAGE_SIZE, TOKEN_GRAIN, WINDOWED,
        )  # fmt: skip
        column = tile * BLOCK
        live = (at >= (first - column).to(tl.int32)) & (at < (last - column).to(tl.int32))
        ids = request_table + row * request_stride
        held = tile_ids(ids, column, live, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
        entries, beyond = tile_entries(
            held, column, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK
        )
        cells = out + row_of_out * out_stride + column
        tl.store(cells + at, entries.to(out.dtype.element_ty), mask=at < (width - column).to(tl.int32))
        if COUNT:
            past += by_thread(beyond, BLOCK)
            count(state, CLIPPED, (clipped & (tile == 0)).to(tl.int64))
            count(state, BAD_ROW, (bad_row & (tile == 0)).to(tl.int64))
        row_of_out += rows_on
        tile += tiles_on
        if row_of_out >= rows:
            row_of_out -= rows
            tile += 1
    if COUNT:
        count_cells(state, BAD_ID, past)


@triton.jit
def fill_table_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [rows, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    bs: tl.int64,
    rows: tl.int64,
    width: tl.int64,
    fitting: tl.int64,  # tokens that fit both tables
    num_rows: tl.int64,
    request_stride: tl.int64,
    out_stride: tl.int64,
    num_virtual: tl.int64,
    seq_len_delta: tl.int64,
    tiles: tl.int64,  # of all rows
    reciprocal: tl.int64,  # of rows
    rows_on: tl.int64,  # how many rows, and tiles of a row, a program's next tile is further on
    tiles_on: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent, and the sink everywhere else."""
    write_filled(
        req_rows, seq_lens, request_table, v2p, out, state, starts,
        bs, rows, width, fitting, num_rows, request_stride, out_stride, num_virtual, seq_len_delta,
        tiles, reciprocal, rows_on, tiles_on, tl.program_id(0), tl.num_programs(0),
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, BLOCK,
    )  # fmt: skip


def plan_fill(spec: ReadTableSpec, device: torch.device, options: LaunchOptions, grid: Grid) -> PlannedLaunch:
    """Plan a read table with sink fill: one kernel, one variant."""
    lost = nowhere(device)
    sizes = {"BLOCK": grid.block}
    kernel = Variant(fill_table_kernel, pointers(spec), constants(spec, options) | sizes, device)
    unit = spec.page_size if spec.granularity == "page" else 1

    def fill_table(
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
        rows, width = out.shape
        tiles = rows * -(-width // grid.block)
        programs = min(tiles, grid.most)
        kernel(
            programs,
            req_rows,
            seq_lens,
            request_table,
            v2p,
            out,
            lost if state is None else state,
            seq_lens if starts is None else starts,
            req_rows.shape[0],
            rows,
            width,
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            request_table.shape[0],
            request_table.stride(0),
            out.stride(0),
            v2p.shape[0] - 1,
            seq_len_delta,
            tiles,
            reciprocal_of(rows),
            programs % rows,
            programs // rows,
        )

    return PlannedLaunch(fill_table, [kernel], device)
