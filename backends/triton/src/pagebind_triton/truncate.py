"""truncate: count the pages of every lane, list their ids and clear the cells, free the listed ids: three launches.

    lanes    [ 2 | 0 | 3 ]        pages to free of each lane, by one program
    offsets  [ 5 | 0 | 2 | 2 ]    how many they are, then where each lane's pages begin
    listed   [ a0 a1 | c0 c1 c2 ] virtual pages, by programs that share out rows; free takes them from there

The last launch is free's own kernel, with its count read from `offsets`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import table_tokens
from pagebind.ops.truncate import TruncateSpec
from pagebind.words import PageTables

from pagebind_triton.free import free_variant, give_back
from pagebind_triton.guards import (
    BAD_ROW,
    CLIPPED,
    HOLE,
    count,
    count_mismatch,
    page_of,
    pages_for,
    share_of_rows,
    wait_for_previous,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import NO_COUNT, PlannedLaunch, Variant, plan_grid


@triton.jit
def count_tails_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    keep_lens: tl.tensor,  # [bs], as seq_lens; tokens; read with KEEPS
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages; written
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,  # of a row of the request table
    capacity: tl.int64,  # pages
    expected: tl.int64,  # the host's count of pages; negative where it has none
    PAGE_SIZE: tl.constexpr,
    KEEPS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Count the pages to free of every lane and sum them up."""
    if DEPENDENT:
        wait_for_previous()
    total = zero()
    clipped = zeros(BLOCK)
    bad_row = zeros(BLOCK)
    for begin in range(0, bs, BLOCK):
        lanes = begin + tl.arange(0, BLOCK).to(tl.int64)
        listed = lanes < bs
        row = tl.load(req_rows + lanes, mask=listed, other=HOLE).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        asked = tl.load(seq_lens + lanes, mask=listed, other=0).to(tl.int64)
        length = within(asked, 0, tokens)
        cut = length != asked
        keep = tl.zeros((BLOCK,), tl.int64)
        if KEEPS:
            keep_asked = tl.load(keep_lens + lanes, mask=listed, other=0).to(tl.int64)
            keep = within(keep_asked, 0, tokens)
            cut = cut | (keep != keep_asked)
        pages = tl.maximum(pages_for(length, PAGE_SIZE) - pages_for(keep, PAGE_SIZE), 0)
        pages = tl.where(good, pages, 0)
        ends = total + tl.cumsum(pages, 0)
        tl.store(offsets + 1 + lanes, ends - pages, mask=listed)
        total += tl.sum(pages, 0)
        if COUNT:
            clipped += (good & (cut | ((pages > 0) & (ends > capacity)))).to(tl.int64)
            bad_row += (listed & ~good).to(tl.int64)
    tl.store(offsets, total)
    if COUNT:
        count(state, CLIPPED, tl.sum(clipped, 0))
        count(state, BAD_ROW, tl.sum(bad_row, 0))
        count_mismatch(state, expected, total)


@triton.jit
def cut_tails_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32; written
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    keep_lens: tl.tensor,  # [bs], as seq_lens; tokens; read with KEEPS
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages
    listed: tl.tensor,  # [>= capacity], int32; virtual pages; written
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,
    request_stride: tl.int64,
    capacity: tl.int64,
    shared: tl.int64,  # programs to a row
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    KEEPS: tl.constexpr,
    EMPTIES: tl.constexpr,  # clear the kept tokens' cells too
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """List the virtual pages to free and clear the cells of what the row loses."""
    if DEPENDENT:
        wait_for_previous()
    first_lane, part, step = share_of_rows(shared)
    for lane in range(first_lane, bs, step):
        row = tl.load(req_rows + lane).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        length = tl.where(good, within(tl.load(seq_lens + lane), 0, tokens), 0)
        keep = zero()
        if KEEPS:
            keep = within(tl.load(keep_lens + lane), 0, tokens)
        first = pages_for(keep, PAGE_SIZE)
        pages = tl.maximum(pages_for(length, PAGE_SIZE) - first, 0)
        offset = tl.load(offsets + 1 + lane)
        served = within(capacity - offset, 0, pages)
        # Pages past the capacity stay in the row, with the tokens in them.
        until = tl.where(served == pages, length, (first + served) * PAGE_SIZE)
        begin = keep
        if EMPTIES:
            begin = zero()
        unit: tl.constexpr = 1 if TOKEN_FORM else PAGE_SIZE
        cells = request_table + row * request_stride
        for at in range(pages_for(begin, unit) + part * BLOCK, pages_for(until, unit), shared * BLOCK):
            cell = at + tl.arange(0, BLOCK)
            inside = cell < pages_for(until, unit)
            page = cell * unit // PAGE_SIZE
            # A page is named by its first cell. Each cell is read and cleared by one thread.
            names = inside & (cell * unit == page * PAGE_SIZE) & (page >= first) & (page < first + served)
            held = tl.load(cells + cell, mask=names, other=HOLE)
            if TOKEN_FORM:
                held = page_of(held, PAGE_SIZE)
            tl.store(listed + offset + (page - first), held, mask=names)
            tl.store(cells + cell, HOLE, mask=inside)


def plan_cut(
    spec: TruncateSpec, device: torch.device, options: LaunchOptions, keeps: bool, empties: bool
) -> tuple[Any, list[Variant]]:
    """Plan what truncate and release share.

    Returns `cut(request_table, req_rows, seq_lens, keep_lens, tables, freed, pages)` and its variants. `keeps` plans
    for calls with keep lengths, `empties` clears the kept tokens' cells too.
    """
    grid = plan_grid(device, options)
    offsets = torch.zeros(spec.max_bs + 1, dtype=torch.int64, device=device)
    listed = torch.zeros(spec.max_pages, dtype=torch.int32, device=device)
    lens = [spec.row_dtype, spec.length_dtype, spec.length_dtype]
    count_tails = Variant(
        count_tails_kernel,
        [*lens, torch.int64, torch.int64],
        {"PAGE_SIZE": spec.page_size, "KEEPS": keeps, "COUNT": options.count, "BLOCK": grid.block},
        device,
    )
    cut_tails = Variant(
        cut_tails_kernel,
        [torch.int32, *lens, torch.int64, torch.int32],
        {
            "PAGE_SIZE": spec.page_size,
            "TOKEN_FORM": spec.form == "token",
            "KEEPS": keeps,
            "EMPTIES": empties,
            "BLOCK": grid.block,
        },
        device,
    )
    free = free_variant(
        spec.index_dtype, torch.int32, spec.id_dtype, device, grid.block, counted=options.count, on_device=True
    )

    def cut(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        keep_lens: torch.Tensor,
        tables: PageTables,
        freed: torch.Tensor,
        pages: int | None,
    ) -> None:
        bs = req_rows.shape[0]
        num_rows, width = request_table.shape
        tokens = table_tokens(spec.form, spec.page_size, request_table)
        capacity = freed.shape[0]
        expected = NO_COUNT if pages is None else pages
        count_tails(1, req_rows, seq_lens, keep_lens, offsets, tables.state, bs, num_rows, tokens, capacity, expected)
        programs, shared = grid.rows(bs, width)
        cut_tails(
            programs,
            request_table,
            req_rows,
            seq_lens,
            keep_lens,
            offsets,
            listed,
            bs,
            num_rows,
            tokens,
            request_table.stride(0),
            capacity,
            shared,
        )
        give_back(free, grid, tables, listed, freed, offsets, capacity, None)  # the first launch compares what is asked

    return cut, [count_tails, cut_tails, free]


def plan(spec: TruncateSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a truncation: three kernels, one variant each."""
    cut, variants = plan_cut(spec, device, options, keeps=True, empties=False)

    def truncate(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        keep_lens: torch.Tensor,
        tables: PageTables,
        *,
        freed: torch.Tensor,
        pages: int | None = None,
    ) -> None:
        cut(request_table, req_rows, seq_lens, keep_lens, tables, freed, pages)

    return PlannedLaunch(truncate, variants, device)
