"""read_table: every row's first tiles at once; only where a row is longer, what is left is shared out evenly.

With prefix fill by write_rows, with sink fill by fill_table; a second table beside the first by beside.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.beside import SecondTable
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton.beside import plan_beside
from pagebind_triton.build import MOST_LANES, constants, lane_constants, pointed, pointers
from pagebind_triton.fill_table import plan_fill
from pagebind_triton.guards import wait_for_previous
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid
from pagebind_triton.write_rows import share_rows, write_rows

# Cells of a program, and programs that a GPU runs at once: 4 to 8 on each of the 132 multiprocessors of an H200.
GPU_BLOCK, GPU_SPLIT, GPU_MOST = 1024, 528, 1056


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
    out_stride: tl.int64,
    num_rows: tl.int64,
    request_stride: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent."""
    if DEPENDENT:
        wait_for_previous()
    write_rows(
        req_rows, seq_lens, request_table, v2p, out, state, starts,
        reciprocal_and_delta, abreast_and_done, bs_and_last_id, fitting, out_stride, num_rows, request_stride,
        tl.program_id(0), tl.num_programs(0),
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, LANES, WIDE, BLOCK,
    )  # fmt: skip


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a read table: one kernel, one variant."""
    grid = plan_grid(device, options, GPU_BLOCK, GPU_SPLIT, GPU_MOST)
    if spec.beside is not None:
        return plan_beside(spec, device, options, grid)
    if spec.fill == "sink":
        return plan_fill(spec, device, options, grid)
    lost = nowhere(device)
    kernel = Variant(
        read_table_kernel,
        pointers(spec),
        constants(spec, options) | lane_constants(spec.max_bs, spec.max_width, grid.block) | {"BLOCK": grid.block},
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
        table = SecondTable(v2p, out, starts, state)
        fitting = min(out.shape[1] * unit, table_tokens(spec.form, spec.page_size, request_table))
        programs, told = share_rows(grid, bs, seq_len_delta, fitting, table)
        rows = request_table.shape[0], request_table.stride(0)
        kernel(programs, req_rows, seq_lens, request_table, *pointed(table, seq_lens, lost), *told, *rows)

    return PlannedLaunch(read_table, [kernel], device)
