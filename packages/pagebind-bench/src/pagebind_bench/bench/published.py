# mypy: disallow_untyped_decorators=False
"""Our own rendering of the two published grids of a read table, and an empty kernel. Peers, not a backend.

    grid from the maximum context   (bs, ceil(columns / 256))     a program has one block of columns, and leaves where
                                                                  the row's length does not reach it
    grid from the batch             (bs, about 1,024 / bs)        a program strides over a row's columns, up to a bound
                                                                  that it reads from the row's length

Both read token ids of an int64 `v2p` and trust their inputs, as the published ones do: an id past the table is read
outside of it. Prefix fill; entry = max(v2p[token // page_size], 0), 0 for a negative token.
"""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise SystemExit(f"the published grids need {error.name}: pip install triton") from error

CONTEXT_BLOCK, CONTEXT_WARPS = 256, 4
"""64 rows of 1M columns make 262,144 programs, as published."""
BATCH_BLOCK, BATCH_WARPS, BATCH_PROGRAMS = 512, 8, 1_024
"""The launch that was published as the best."""


@triton.jit
def empty_kernel() -> None:
    """Do nothing."""


@triton.jit(do_not_specialize=["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10"])
def bare_kernel(
    p0: tl.tensor,
    p1: tl.tensor,
    p2: tl.tensor,
    p3: tl.tensor,
    p4: tl.tensor,
    p5: tl.tensor,
    p6: tl.tensor,
    s0: tl.tensor,
    s1: tl.tensor,
    s2: tl.tensor,
    s3: tl.tensor,
    s4: tl.tensor,
    s5: tl.tensor,
    s6: tl.tensor,
    s7: tl.tensor,
    s8: tl.tensor,
    s9: tl.tensor,
    s10: tl.tensor,
) -> None:
    """Do nothing with as many arguments as a planned table call has; see `pagebind_bench.bench.bare`."""


@triton.jit
def write_block(
    tokens: tl.tensor,  # [width], int32; a row of the request table
    v2p: tl.tensor,  # [num_virtual + 1], int64
    out: tl.tensor,  # [columns], int32; a row of the read table; written
    first: tl.tensor,  # column
    end: tl.tensor,  # column past the last one that is live
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the entries of BLOCK columns."""
    columns = first + tl.arange(0, BLOCK)
    live = columns < end
    token = tl.load(tokens + columns.to(tl.int64) * PAGE_SIZE, mask=live, other=0)
    page = tl.where(token < 0, 0, token // PAGE_SIZE)
    physical = tl.load(v2p + page, mask=live, other=0)
    tl.store(out + columns, tl.maximum(physical, 0).to(tl.int32), mask=live)


@triton.jit
def live_columns(
    seq_lens: tl.tensor,  # [bs], int32; tokens
    lane: tl.tensor,
    columns: tl.tensor,
    PAGE_SIZE: tl.constexpr,
) -> tl.tensor:
    """Return how many columns of a lane are written."""
    return tl.minimum((tl.load(seq_lens + lane) + PAGE_SIZE - 1) // PAGE_SIZE, columns)


# Sizes are specialised on as the published kernels are: on whether 16 divides a stride, not on the width of the table.
@triton.jit(do_not_specialize=["columns"])
def context_kernel(
    request_table: tl.tensor,  # [rows, width], int32; token ids
    req_rows: tl.tensor,  # [bs], int32
    seq_lens: tl.tensor,  # [bs], int32; tokens
    v2p: tl.tensor,  # [num_virtual + 1], int64
    out: tl.tensor,  # [bs, columns], int32; written
    request_stride: tl.tensor,  # cells from a row to the next
    out_stride: tl.tensor,  # cells from a row to the next
    columns: tl.tensor,  # of out
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write one block of columns of one row, or leave."""
    lane = tl.program_id(0)
    first = tl.program_id(1) * BLOCK
    end = live_columns(seq_lens, lane, columns, PAGE_SIZE)
    if first < end:
        row = tl.load(req_rows + lane).to(tl.int64)
        write_block(
            request_table + row * request_stride,
            v2p,
            out + lane.to(tl.int64) * out_stride,
            first,
            end,
            PAGE_SIZE,
            BLOCK,
        )


@triton.jit(do_not_specialize=["columns"])
def batch_kernel(
    request_table: tl.tensor,  # [rows, width], int32; token ids
    req_rows: tl.tensor,  # [bs], int32
    seq_lens: tl.tensor,  # [bs], int32; tokens
    v2p: tl.tensor,  # [num_virtual + 1], int64
    out: tl.tensor,  # [bs, columns], int32; written
    request_stride: tl.tensor,  # cells from a row to the next
    out_stride: tl.tensor,  # cells from a row to the next
    columns: tl.tensor,  # of out
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write every n-th block of columns of one row, n the programs of a row."""
    lane = tl.program_id(0)
    end = live_columns(seq_lens, lane, columns, PAGE_SIZE)
    row = tl.load(req_rows + lane).to(tl.int64)
    tokens = request_table + row * request_stride
    entries = out + lane.to(tl.int64) * out_stride
    for first in range(tl.program_id(1) * BLOCK, end, tl.num_programs(1) * BLOCK):
        write_block(tokens, v2p, entries, first, end, PAGE_SIZE, BLOCK)


def grid_from_context(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    page_size: int,
) -> None:
    """Write a read table with a grid that covers every column there is."""
    bs, columns = req_rows.shape[0], out.shape[1]
    context_kernel[(bs, triton.cdiv(columns, CONTEXT_BLOCK))](
        request_table,
        req_rows,
        seq_lens,
        v2p,
        out,
        request_table.stride(0),
        out.stride(0),
        columns,
        PAGE_SIZE=page_size,
        BLOCK=CONTEXT_BLOCK,
        num_warps=CONTEXT_WARPS,
    )


def grid_from_batch(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    page_size: int,
) -> None:
    """Write a read table with a grid that follows from the batch alone."""
    bs, columns = req_rows.shape[0], out.shape[1]
    parts = min(triton.cdiv(BATCH_PROGRAMS, bs), triton.cdiv(columns, BATCH_BLOCK))
    batch_kernel[(bs, parts)](
        request_table,
        req_rows,
        seq_lens,
        v2p,
        out,
        request_table.stride(0),
        out.stride(0),
        columns,
        PAGE_SIZE=page_size,
        BLOCK=BATCH_BLOCK,
        num_warps=BATCH_WARPS,
    )


def empty(programs: int) -> None:
    """Launch a kernel that does nothing."""
    empty_kernel[(programs,)](num_warps=1)
