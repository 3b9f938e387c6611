"""read_table with a second table beside the first: the first programs of a launch build one, the others the other.

program   0 1 2 ... programs - 1 | programs ...
builds    the first table        | the second, counted from 0 again
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.beside import SecondTable
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton.build import MOST_LANES, constants, lane_constants, pointed, pointers
from pagebind_triton.fill_table import deal_tiles, write_filled
from pagebind_triton.guards import wait_for_previous
from pagebind_triton.launch import Grid, PlannedLaunch, Variant, nowhere
from pagebind_triton.write_rows import share_rows, write_rows


@triton.jit
def read_tables_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= bs, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    other_v2p: tl.tensor,  # as those of the first table
    other_out: tl.tensor,
    other_state: tl.tensor,
    other_starts: tl.tensor,  # read with OTHER_WINDOWED
    num_rows: tl.int64,
    request_stride: tl.int64,
    programs: tl.int64,  # of the first table
    reciprocal_and_delta: tl.int64,  # as write_rows takes them
    abreast_and_done: tl.int64,
    bs_and_last_id: tl.int64,
    fitting: tl.int64,
    out_stride: tl.int64,
    other_reciprocal_and_delta: tl.int64,
    other_abreast_and_done: tl.int64,
    other_bs_and_last_id: tl.int64,
    other_fitting: tl.int64,
    other_stride: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    OTHER_MULTIPLIER: tl.constexpr,
    OTHER_WINDOWED: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent in both tables."""
    if DEPENDENT:
        wait_for_previous()
    first = programs.to(tl.int32)
    if tl.program_id(0) < first:
        write_rows(
            req_rows, seq_lens, request_table, v2p, out, state, starts,
            reciprocal_and_delta, abreast_and_done, bs_and_last_id, fitting, out_stride, num_rows, request_stride,
            tl.program_id(0), first,
            PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, LANES, WIDE, BLOCK,
        )  # fmt: skip
    else:
        write_rows(
            req_rows, seq_lens, request_table, other_v2p, other_out, other_state, other_starts,
            other_reciprocal_and_delta, other_abreast_and_done, other_bs_and_last_id, other_fitting,
            other_stride, num_rows, request_stride,
            tl.program_id(0) - first, tl.num_programs(0) - first,
            PAGE_SIZE, OTHER_MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, OTHER_WINDOWED, COUNT, LANES, WIDE, BLOCK,
        )  # fmt: skip


@triton.jit
def fill_tables_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [rows, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    other_v2p: tl.tensor,  # as those of the first table
    other_out: tl.tensor,
    other_state: tl.tensor,
    other_starts: tl.tensor,  # read with OTHER_WINDOWED
    num_rows: tl.int64,
    request_stride: tl.int64,
    bs: tl.int64,
    seq_len_delta: tl.int64,
    programs: tl.int64,  # of the first table
    rows: tl.int64,  # as write_filled takes them
    width: tl.int64,
    fitting: tl.int64,
    out_stride: tl.int64,
    last_id: tl.int64,
    tiles: tl.int64,
    reciprocal: tl.int64,
    rows_on: tl.int64,
    tiles_on: tl.int64,
    other_rows: tl.int64,
    other_width: tl.int64,
    other_fitting: tl.int64,
    other_stride: tl.int64,
    other_last_id: tl.int64,
    other_tiles: tl.int64,
    other_reciprocal: tl.int64,
    other_rows_on: tl.int64,
    other_tiles_on: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    OTHER_MULTIPLIER: tl.constexpr,
    OTHER_WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent in both tables, and the sink everywhere else."""
    if DEPENDENT:
        wait_for_previous()
    first = programs.to(tl.int32)
    if tl.program_id(0) < first:
        write_filled(
            req_rows, seq_lens, request_table, v2p, out, state, starts,
            num_rows, request_stride, bs, seq_len_delta, rows, width, fitting, out_stride, last_id,
            tiles, reciprocal, rows_on, tiles_on, tl.program_id(0), first,
            PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, BLOCK,
        )  # fmt: skip
    else:
        write_filled(
            req_rows, seq_lens, request_table, other_v2p, other_out, other_state, other_starts,
            num_rows, request_stride, bs, seq_len_delta,
            other_rows, other_width, other_fitting, other_stride, other_last_id,
            other_tiles, other_reciprocal, other_rows_on, other_tiles_on,
            tl.program_id(0) - first, tl.num_programs(0) - first,
            PAGE_SIZE, OTHER_MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, OTHER_WINDOWED, COUNT, BLOCK,
        )  # fmt: skip


def plan_beside(spec: ReadTableSpec, device: torch.device, options: LaunchOptions, grid: Grid) -> PlannedLaunch:
    """Plan a read table with a second one: one kernel, one variant; each table gets half of the programs."""
    second, sink = spec.second(), spec.fill == "sink"
    half = replace(grid, split=max(grid.split // 2, 1), most=max(grid.most // 2, 1))
    types = list(pointers(spec))
    other: dict[str, int] = {"OTHER_MULTIPLIER": second.multiplier, "OTHER_WINDOWED": second.windowed}
    lanes = {} if sink else lane_constants(spec.max_bs, spec.max_width, grid.block)
    kernel = Variant(
        fill_tables_kernel if sink else read_tables_kernel,
        [*types, *types[3:]],
        constants(spec, options) | other | lanes | {"BLOCK": grid.block},
        device,
    )
    lost = nowhere(device)
    unit = spec.page_size if spec.granularity == "page" else 1

    def read_tables(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
        beside: SecondTable,
    ) -> None:
        bs = req_rows.shape[0]
        tables = SecondTable(v2p, out, starts, state), beside
        if bs > MOST_LANES and not sink:
            for begin in range(0, bs, MOST_LANES):
                lanes = slice(begin, begin + MOST_LANES)
                part, other_part = (
                    t._replace(out=t.out[begin:], starts=None if t.starts is None else t.starts[lanes]) for t in tables
                )
                read_tables(
                    request_table,
                    req_rows[lanes],
                    seq_lens[lanes],
                    v2p,
                    out=part.out,
                    starts=part.starts,
                    seq_len_delta=seq_len_delta,
                    state=state,
                    beside=other_part,
                )
            return
        tokens = table_tokens(spec.form, spec.page_size, request_table)
        given: list[Any] = []
        told: list[tuple[int, tuple[int, ...]]] = []
        for table in tables:
            width = table.out.shape[1]
            fitting = min(width * unit, tokens)
            given += pointed(table, seq_lens, lost)
            if sink:
                told.append(deal_tiles(half, fitting, table))
            else:
                programs, numbers = share_rows(half, bs, seq_len_delta, fitting, table)
                told.append((programs if width > 0 else 0, numbers))  # without columns nothing is counted
        (programs, first), (more, then) = told
        kernel(
            programs + more,
            req_rows,
            seq_lens,
            request_table,
            *given,
            request_table.shape[0],
            request_table.stride(0),
            *((bs, seq_len_delta) if sink else ()),
            programs,
            *first,
            *then,
        )

    return PlannedLaunch(read_tables, [kernel], device)
