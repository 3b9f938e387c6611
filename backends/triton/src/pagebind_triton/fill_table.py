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
from pagebind.ops.beside import SecondTable
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton.build import (
    by_thread,
    constants,
    count_cells,
    pointed,
    pointers,
    quotient,
    reciprocal_of,
    tile_entries,
    tile_ids,
)
from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, count, wait_for_previous
from pagebind_triton.lanes import last_id_of, open_lane
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
    num_rows: tl.tensor,
    request_stride: tl.tensor,
    bs: tl.tensor,
    seq_len_delta: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    fitting: tl.tensor,  # tokens that fit both tables
    out_stride: tl.tensor,
    last_id: tl.tensor,  # of the table
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
    last_id = last_id.to(tl.int32)
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
    num_rows: tl.int64,
    request_stride: tl.int64,
    bs: tl.int64,
    seq_len_delta: tl.int64,
    rows: tl.int64,
    width: tl.int64,
    fitting: tl.int64,  # tokens that fit both tables
    out_stride: tl.int64,
    last_id: tl.int64,  # of the table
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
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent, and the sink everywhere else."""
    if DEPENDENT:
        wait_for_previous()
    write_filled(
        req_rows, seq_lens, request_table, v2p, out, state, starts,
        num_rows, request_stride, bs, seq_len_delta, rows, width, fitting, out_stride, last_id,
        tiles, reciprocal, rows_on, tiles_on, tl.program_id(0), tl.num_programs(0),
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, BLOCK,
    )  # fmt: skip


def deal_tiles(grid: Grid, fitting: int, table: SecondTable) -> tuple[int, tuple[int, ...]]:
    """Return the programs of a table, and what `write_filled` is told of it: from rows to tiles_on."""
    rows, width = table.out.shape
    tiles = rows * -(-width // grid.block)
    programs = min(tiles, grid.most)
    told = rows, width, fitting, table.out.stride(0), last_id_of(table.v2p), tiles, reciprocal_of(rows)
    return programs, (*told, programs % rows, programs // rows)


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
        table = SecondTable(v2p, out, starts, state)
        fitting = min(out.shape[1] * unit, table_tokens(spec.form, spec.page_size, request_table))
        programs, told = deal_tiles(grid, fitting, table)
        lanes = request_table.shape[0], request_table.stride(0), req_rows.shape[0], seq_len_delta
        kernel(programs, req_rows, seq_lens, request_table, *pointed(table, seq_lens, lost), *lanes, *told)

    return PlannedLaunch(fill_table, [kernel], device)
