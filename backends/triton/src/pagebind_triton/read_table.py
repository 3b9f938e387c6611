"""read_table: programs share out a row, each strides over its columns up to a bound read from the row's length.

    program 0 ............ S-1 | S .......... 2S-1 | ...        S programs share row 0, S share row 1, ...
    row 0: [ 0 ][ 1 ] .. [S-1][ 0 ][ 1 ] ...  up to the row's extent; rows past the grid's last are strided to

S follows from the batch size and planned sizes alone, so a captured grid is right for every length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import ReadTableSpec, table_tokens

from pagebind_triton.guards import (
    BAD_ID,
    BAD_ROW,
    CLIPPED,
    HOLE,
    SINK,
    TOMBSTONE,
    any_length,
    count,
    page_of,
    pages_for,
    share_of_rows,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def cell_entries(
    ids: tl.tensor,  # [tokens or pages], int32; one row of the request table
    columns: tl.tensor,  # [BLOCK], int64; absolute
    live: tl.tensor,  # [BLOCK], mask; nothing is read elsewhere
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    num_virtual: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the entries of a row's columns, int64, and the mask of those whose id is past the table."""
    if TOKEN_FORM:
        cells = columns if TOKEN_GRAIN else columns * PAGE_SIZE
    elif TOKEN_GRAIN:
        cells = columns // PAGE_SIZE
    else:
        cells = columns
    held = tl.load(ids + cells, mask=live, other=HOLE)
    if TOKEN_FORM:
        page = page_of(held, PAGE_SIZE)
        offset = held % PAGE_SIZE
    else:
        page = held
        offset = columns % PAGE_SIZE
    physical = tl.load(v2p + page, mask=(page >= 0) & (page < num_virtual), other=TOMBSTONE).to(tl.int64)
    entry = physical * MULTIPLIER
    if TOKEN_GRAIN:
        entry = entry * PAGE_SIZE + offset
    return tl.where(physical >= 0, entry, SINK), page >= num_virtual


@triton.jit
def read_table_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [rows, width], int32 or int64; written
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    rows: tl.int64,  # of out that may be written: bs, or all of them with SINK_FILL
    width: tl.int64,
    fitting: tl.int64,  # tokens that fit both tables
    num_rows: tl.int64,
    request_stride: tl.int64,
    out_stride: tl.int64,
    num_virtual: tl.int64,
    seq_len_delta: tl.int64,
    shared: tl.int64,  # programs to a row
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    SINK_FILL: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the entries of every lane's valid extent."""
    first_lane, part, step = share_of_rows(shared)
    clipped = zero()
    bad_row = zero()
    past = zeros(BLOCK)
    for lane in range(first_lane, rows, step):
        listed = lane < bs
        row = tl.load(req_rows + lane, mask=listed, other=HOLE).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        asked = any_length(tl.load(seq_lens + lane, mask=listed, other=0)) + seq_len_delta
        length = tl.where(good, within(asked, 0, fitting), 0)
        clipped += (good & (length != asked)).to(tl.int64)
        bad_row += (listed & ~good).to(tl.int64)

        first = zero()
        if WINDOWED:
            first = tl.maximum(any_length(tl.load(starts + lane, mask=listed, other=0)), 0)
        last = length
        if not TOKEN_GRAIN:
            first = first // PAGE_SIZE
            last = pages_for(length, PAGE_SIZE)
        begin = first
        end = last
        if SINK_FILL:
            begin = zero()
            end = zero() + width

        ids = request_table + row * request_stride
        for column in range(begin + part * BLOCK, end, shared * BLOCK):
            columns = column + tl.arange(0, BLOCK)
            live = (columns >= first) & (columns < last)
            entries, beyond = cell_entries(
                ids, columns, live, v2p, num_virtual, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN
            )
            tl.store(out + (zero() + lane) * out_stride + columns, entries.to(out.dtype.element_ty), mask=columns < end)
            if COUNT:
                past += beyond.to(tl.int64)
    if COUNT:
        if part == 0:
            count(state, CLIPPED, clipped)
            count(state, BAD_ROW, bad_row)
        count(state, BAD_ID, tl.sum(past, 0))


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a read table: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        read_table_kernel,
        [
            torch.int32,
            spec.row_dtype,
            spec.length_dtype,
            spec.length_dtype,
            spec.index_dtype,
            spec.out_dtype,
            torch.int64,
        ],
        {
            "PAGE_SIZE": spec.page_size,
            "MULTIPLIER": spec.multiplier,
            "TOKEN_FORM": spec.form == "token",
            "TOKEN_GRAIN": spec.granularity == "token",
            "SINK_FILL": spec.fill == "sink",
            "WINDOWED": spec.windowed,
            "COUNT": options.count,
            "BLOCK": grid.block,
        },
        device,
    )
    unit = spec.page_size if spec.granularity == "page" else 1
    sink_fill = spec.fill == "sink"

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
        rows, width = out.shape
        programs, shared = grid.rows(bs, spec.max_width)
        kernel(
            programs,
            request_table,
            req_rows,
            seq_lens,
            seq_lens if starts is None else starts,
            v2p,
            out,
            lost if state is None else state,
            bs,
            rows if sink_fill else bs,
            width,
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            request_table.shape[0],
            request_table.stride(0),
            out.stride(0),
            v2p.shape[0] - 1,
            seq_len_delta,
            shared,
        )

    return PlannedLaunch(read_table, [kernel], device)
