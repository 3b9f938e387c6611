"""read_table: the rectangle that attention kernels read, or two of them, in one launch of read_table.cu."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.beside import Beside, SecondTable
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_cuda.launch import KernelLaunch, Limits, limits, plan_kernel, pointer, wide

THREADS, BLOCKS = 288, 528
"""4 blocks on each of an H200's 132 multiprocessors: all of them run at once.

9 warps, so that lengths just past a power of two take no trip of their own for what is past it.
"""

FEW_ROWS, FEW_BLOCKS = 128, 264
"""Fewer blocks start sooner, and for so few rows there are enough of them."""

MOST_THREADS = 288
"""What read_table.cu is compiled for."""

MOST_BLOCKS = 2**16
"""The kernel divides a block's number by `lanes` with a reciprocal of 32 bits, which is exact for so many."""

MOST_PARTS = 2**16
"""Blocks that share a row, so that its columns and those that all of them have in flight fit 32 bits."""

COLUMNS = 8
"""Columns of a thread below which a further block has nothing to do."""

COVER, HOST_COVER = 8, 1
"""Columns of a thread that the blocks of a row write by themselves, where a row is more than twice as long.

One trip. In the host build few, so that small tests share out.
"""


ALONE, WHOLE, WINDOW = range(3)
"""Whether read_table.cu builds a second table, and of what; as it names them."""

SECOND_ARGUMENTS = 15
"""What a kernel that builds a second table takes for it."""


def kind_of(second: Beside | None) -> int:
    """Return what the kernel is told of a second table."""
    if second is None:
        return ALONE
    return WINDOW if second.windowed else WHOLE


class Grid(NamedTuple):
    """The launch for a number of rows: `parts` blocks for each of `lanes` rows at a time."""

    blocks: int
    threads: int
    lanes: int
    parts: int
    cover: int  # columns of a row that its own blocks write


def grid_of(most: Limits, rows: int, columns: int, cover: int) -> Grid:
    """Return the grid for `rows` rows of planned width `columns`, `cover` columns a thread."""
    threads = min(most.block(columns), MOST_THREADS)
    programs = min(most.programs, FEW_BLOCKS if rows <= FEW_ROWS else MOST_BLOCKS)
    parts = min(programs // rows, -(-columns // (threads * COLUMNS)), MOST_PARTS)
    if parts > 1:
        return Grid(rows * parts, threads, rows, parts, cover * threads * parts)
    turns = -(-rows // programs)
    lanes = -(-rows // turns)
    return Grid(lanes, threads, lanes, 1, cover * threads)


def plan_read_table(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a read table: as many blocks a row as the batch leaves, and then all of them for the rest of long rows.

    Two tables get half of the blocks each.
    """
    kernel = plan_kernel(
        "read_table",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        granularity_token=spec.granularity == "token",
        fill_sink=spec.fill == "sink",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        windowed=spec.windowed,
        beside=kind_of(spec.beside),
    )
    most = limits(device, options, threads=THREADS, programs=BLOCKS)
    if spec.beside is not None:  # all blocks are to run at once still
        most = Limits(most.threads, max(most.programs // 2, 1))
    # On a GPU a kernel without a second table does not have its arguments; in the host build it has.
    alone = () if device.type == "cuda" else (0,) * SECOND_ARGUMENTS
    other_multiplier = 0 if spec.beside is None else spec.beside.multiplier
    cover = COVER if device.type == "cuda" else HOST_COVER
    sink, counting = spec.fill == "sink", options.count
    unit = spec.page_size if spec.granularity == "page" else 1

    @cache
    def grid(rows: int) -> Grid:
        return grid_of(most, rows, spec.max_width, cover)

    def with_second(
        request_table: torch.Tensor, bs: int, beside: SecondTable, blocks: int
    ) -> tuple[int, tuple[int, ...]]:
        """Return the blocks of both tables, of which the first has `blocks`, and the arguments for the second."""
        rows, width = beside.out.shape
        own, _, lanes, parts, covered = grid(rows if sink else bs)
        return blocks + (own if width > 0 else 0), (
            blocks,
            pointer(beside.starts),
            beside.v2p.data_ptr(),
            beside.v2p.shape[0] - 1,
            beside.out.data_ptr(),
            rows,
            width,
            beside.out.stride(0),
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            lanes,
            parts,
            -(-(2**32) // lanes),
            covered,
            other_multiplier,
            pointer(beside.state) if counting else 0,
        )

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # [>= bs, width], out_dtype
        starts: torch.Tensor | None = None,  # [bs], length_dtype
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,  # [32], int64
        beside: SecondTable | None = None,  # with plans that have one
    ) -> None:
        bs = req_rows.shape[0]
        out_rows, width = out.shape
        blocks, threads, lanes, parts, covered = grid(out_rows if sink else bs)
        everyone, second = blocks, alone
        if beside is not None:
            if width == 0:
                blocks = 0  # nothing is built, and nothing counted
            everyone, second = with_second(request_table, bs, beside, blocks)
        kernel(
            everyone,
            threads,
            request_table.data_ptr(),
            request_table.shape[0],
            request_table.stride(0),
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            pointer(starts),
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            out.data_ptr(),
            out_rows,
            width,
            out.stride(0),
            bs,
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            lanes,
            parts,
            -(-(2**32) // lanes),
            covered,
            seq_len_delta,
            spec.multiplier,
            pointer(state) if counting else 0,
            *second,
        )

    return KernelLaunch(run, kernel)
