"""read_stream: programs share out a lane's items, and write them to its part of the stream and its row of the table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.read_stream import ReadStreamSpec
from pagebind.ops.read_table import table_tokens

from pagebind_triton.build import constants, tile_entries, tile_ids
from pagebind_triton.guards import (
    BAD_ID,
    BAD_ROW,
    CLIPPED,
    any_length,
    count,
    pages_for,
    share_of_rows,
    wait_for_previous,
    within,
    zero,
    zeros,
)
from pagebind_triton.lanes import last_id_of
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def read_stream_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens from the start on
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    indptr: tl.tensor,  # [bs + 1], int32 or int64; items
    out: tl.tensor,  # [capacity], int32 or int64; written
    table: tl.tensor,  # [>= bs, width], as out; written with WITH_TABLE
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,  # of a row of the request table
    request_stride: tl.int64,
    last_id: tl.int64,  # of the page table
    capacity: tl.int64,
    width: tl.int64,
    table_stride: tl.int64,
    seq_len_delta: tl.int64,
    shared: tl.int64,  # programs to a row
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    WITH_TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write every lane's items."""
    if DEPENDENT:
        wait_for_previous()
    first_lane, part, step = share_of_rows(shared)
    clipped = zero()
    bad_row = zero()
    past = zeros(BLOCK)
    last_id = last_id.to(tl.int32)
    for lane in range(first_lane, bs, step):
        row = tl.load(req_rows + lane).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        asked = any_length(tl.load(seq_lens + lane)) + seq_len_delta
        start = zero()
        if WINDOWED:
            start = tl.maximum(any_length(tl.load(starts + lane)), 0)
        length = within(asked, 0, tl.maximum(tokens - start, 0))
        first = start
        last = start + length
        if not TOKEN_GRAIN:
            first = start // PAGE_SIZE
            last = pages_for(last, PAGE_SIZE)
        items = tl.where(good & (length > 0), last - first, 0)

        low = within(tl.load(indptr + lane), -1, capacity)
        high = within(tl.load(indptr + lane + 1), 0, capacity)
        to_stream = tl.where(low >= 0, within(items, 0, tl.maximum(high - low, 0)), 0)
        cut = (length != asked) | (to_stream != items)
        most = to_stream
        if WITH_TABLE:
            to_table = within(items, 0, tl.maximum(width - first, 0))
            cut = cut | (to_table != items)
            most = tl.maximum(to_stream, to_table)
        clipped += (good & cut).to(tl.int64)
        bad_row += (~good).to(tl.int64)

        ids = request_table + row * request_stride
        for begin in range(part * BLOCK, most, shared * BLOCK):
            item = begin + tl.arange(0, BLOCK)
            column = first + begin
            held = tile_ids(ids, column, item < most, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN, BLOCK)
            entries, beyond = tile_entries(
                held, column, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, BLOCK
            )
            entries = entries.to(out.dtype.element_ty)
            tl.store(out + low + item, entries, mask=item < to_stream)
            if WITH_TABLE:
                tl.store(table + (zero() + lane) * table_stride + first + item, entries, mask=item < to_table)
            if COUNT:
                past += beyond.to(tl.int64)
    if COUNT:
        if part == 0:
            count(state, CLIPPED, clipped)
            count(state, BAD_ROW, bad_row)
        count(state, BAD_ID, tl.sum(past, 0))


def plan(spec: ReadStreamSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a stream: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        read_stream_kernel,
        [
            torch.int32,
            spec.row_dtype,
            spec.length_dtype,
            spec.length_dtype,
            spec.index_dtype,
            spec.indptr_dtype,
            spec.out_dtype,
            spec.out_dtype,
            torch.int64,
        ],
        constants(spec, options) | {"WITH_TABLE": spec.with_table, "BLOCK": grid.block},
        device,
    )

    def read_stream(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        indptr: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
    ) -> None:
        bs = req_rows.shape[0]
        programs, shared = grid.rows(bs, max(spec.max_items, spec.max_width))
        kernel(
            programs,
            request_table,
            req_rows,
            seq_lens,
            seq_lens if starts is None else starts,
            v2p,
            indptr,
            out,
            out if table is None else table,
            lost if state is None else state,
            bs,
            request_table.shape[0],
            table_tokens(spec.form, spec.page_size, request_table),
            request_table.stride(0),
            last_id_of(v2p),
            out.shape[0],
            0 if table is None else table.shape[1],
            0 if table is None else table.stride(0),
            seq_len_delta,
            shared,
        )

    return PlannedLaunch(read_stream, [kernel], device)
