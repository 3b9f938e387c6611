"""extend: count the new pages of every lane, take them as alloc does, write ids and slots: three launches.

    lanes    [ 1 | 0 | 2 ]      new pages of each lane, by one program
    offsets  [ 3 | 0 | 1 | 1 ]  how many they are, then where each lane's pages begin
    taken    [ a | c | d ]      virtual and physical pages, by alloc's kernel

Tokens that fit the page at hand need no new one; the first kernel looks that page up, before any page is bound.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.extend import ExtendSpec
from pagebind.ops.read_table import table_tokens
from pagebind.words import PageTables

from pagebind_triton.alloc import alloc_variants, take_pages
from pagebind_triton.guards import (
    BAD_ID,
    BAD_ROW,
    CLIPPED,
    HOLE,
    TOMBSTONE,
    count,
    count_mismatch,
    page_of,
    pages_for,
    wait_for_previous,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import NO_COUNT, PlannedLaunch, Variant, plan_grid
from pagebind_triton.write_new import write_new_kernel


@triton.jit
def count_new_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    prefix_lens: tl.tensor,  # [bs], int32 or int64; tokens
    indptr: tl.tensor,  # [bs + 1], int32 or int64; tokens
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages; written
    held: tl.tensor,  # [>= bs], int64; virtual page of token prefix - 1, or a hole; written
    held_physical: tl.tensor,  # [>= bs], int64; its physical page, or a tombstone; written
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,  # of a row of the request table
    request_stride: tl.int64,
    capacity: tl.int64,  # slots
    num_virtual: tl.int64,
    expected: tl.int64,  # the host's count of pages; negative where it has none
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Count the new pages of every lane and sum them up; look up the page that its first tokens fall into."""
    if DEPENDENT:
        wait_for_previous()
    total = zero()
    clipped = zeros(BLOCK)
    bad_row = zeros(BLOCK)
    bad_id = zeros(BLOCK)
    for begin in range(0, bs, BLOCK):
        lanes = begin + tl.arange(0, BLOCK).to(tl.int64)
        listed = lanes < bs
        row = tl.load(req_rows + lanes, mask=listed, other=HOLE).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        low_asked = tl.load(indptr + lanes, mask=listed, other=0).to(tl.int64)
        high_asked = tl.load(indptr + lanes + 1, mask=listed, other=0).to(tl.int64)
        low = within(low_asked, 0, capacity)
        high = within(high_asked, 0, capacity)
        prefix_asked = tl.load(prefix_lens + lanes, mask=listed, other=0).to(tl.int64)
        prefix = within(prefix_asked, 0, tokens)
        new = tl.where(good, within(high - low, 0, tokens - prefix), 0)
        pages = pages_for(prefix + new, PAGE_SIZE) - pages_for(prefix, PAGE_SIZE)
        ends = total + tl.cumsum(pages, 0)
        tl.store(offsets + 1 + lanes, ends - pages, mask=listed)
        total += tl.sum(pages, 0)

        # The page at hand, before any page of this call is bound.
        needs = (new > 0) & (prefix % PAGE_SIZE > 0)
        unit: tl.constexpr = 1 if TOKEN_FORM else PAGE_SIZE
        cell = (prefix - 1) // unit
        page = tl.load(request_table + row * request_stride + cell, mask=needs, other=HOLE).to(tl.int64)
        if TOKEN_FORM:
            page = page_of(page, PAGE_SIZE)
        known = (page >= 0) & (page < num_virtual)
        physical = tl.load(v2p + page, mask=known, other=TOMBSTONE).to(tl.int64)
        tl.store(held + lanes, tl.where(known, page, HOLE), mask=listed)
        tl.store(held_physical + lanes, physical, mask=listed)
        if COUNT:
            cut = (low != low_asked) | (high != high_asked) | (prefix != prefix_asked) | (new != high - low)
            clipped += (good & cut).to(tl.int64)
            bad_row += (listed & ~good).to(tl.int64)
            bad_id += (page >= num_virtual).to(tl.int64)
    tl.store(offsets, total)
    if COUNT:
        count(state, CLIPPED, tl.sum(clipped, 0))
        count(state, BAD_ROW, tl.sum(bad_row, 0))
        count(state, BAD_ID, tl.sum(bad_id, 0))
        count_mismatch(state, expected, total)


def plan(spec: ExtendSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an extension: three kernels, the second for tables without a chain and with one."""
    grid = plan_grid(device, options)
    offsets = torch.zeros(spec.max_bs + 1, dtype=torch.int64, device=device)
    held, held_physical = torch.zeros(2, max(spec.max_bs, 1), dtype=torch.int64, device=device)
    # More pages than virtual ids are never found, and a lane asks for no more pages than slots.
    room = min(spec.num_virtual, spec.max_bs * spec.max_tokens)
    ids, taken_pages = torch.zeros(2, max(room, 1), dtype=spec.index_dtype, device=device)
    lanes = [torch.int32, spec.row_dtype, spec.length_dtype, spec.indptr_dtype]
    token_form = spec.form == "token"
    count_new = Variant(
        count_new_kernel,
        [*lanes, spec.index_dtype, torch.int64, torch.int64, torch.int64, torch.int64],
        {"PAGE_SIZE": spec.page_size, "TOKEN_FORM": token_form, "COUNT": options.count, "BLOCK": grid.block},
        device,
    )
    takes = alloc_variants(
        spec.index_dtype, spec.index_dtype, device, grid.block, counted=options.count, on_device=True
    )
    # Without outputs of its own a call has the slots stand for them.
    emitted = spec.id_dtype if spec.emits else spec.out_dtype
    write_new = Variant(
        write_new_kernel,
        [
            *(*lanes, torch.int64, torch.int64, torch.int64, spec.index_dtype, spec.index_dtype),
            *(spec.out_dtype, emitted, emitted, emitted),
        ],
        {
            "PAGE_SIZE": spec.page_size,
            "MULTIPLIER": spec.multiplier,
            "TOKEN_FORM": token_form,
            "EMITS": spec.emits,
            "BLOCK": grid.block,
        },
        device,
    )

    def extend(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        prefix_lens: torch.Tensor,
        indptr: torch.Tensor,
        tables: PageTables,
        *,
        slots: torch.Tensor,
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,
        new_ids: torch.Tensor | None = None,
        new_pages: torch.Tensor | None = None,
    ) -> None:
        v2p = tables.v2p
        bs = req_rows.shape[0]
        num_rows, _ = request_table.shape
        tokens = table_tokens(spec.form, spec.page_size, request_table)
        stride = request_table.stride(0)
        capacity = slots.shape[0]
        count_new(
            1,
            request_table,
            req_rows,
            prefix_lens,
            indptr,
            v2p,
            offsets,
            held,
            held_physical,
            tables.state,
            bs,
            num_rows,
            tokens,
            stride,
            capacity,
            v2p.shape[0] - 1,
            NO_COUNT if pages is None else pages,
        )
        take_pages(takes, grid, tables, ids, taken_pages, offsets, room, min(room, capacity))
        programs, shared = grid.rows(bs, capacity)
        write_new(
            programs,
            request_table,
            req_rows,
            prefix_lens,
            indptr,
            offsets,
            held,
            held_physical,
            ids,
            taken_pages,
            slots,
            slots if token_ids is None else token_ids,
            slots if new_ids is None else new_ids,
            slots if new_pages is None else new_pages,
            bs,
            num_rows,
            tokens,
            stride,
            capacity,
            room,
            0 if new_ids is None else new_ids.shape[0],
            shared,
        )

    return PlannedLaunch(extend, [count_new, *takes, write_new], device)
