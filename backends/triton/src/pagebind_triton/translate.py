"""translate: one lane a token id; rows and columns keep their strides, the longer of the two runs along a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.translate import TranslateSpec

from pagebind_triton.guards import (
    BAD_ID,
    HOLE,
    SINK,
    TOMBSTONE,
    count,
    page_of,
    share_of_rows,
    wait_for_previous,
    zero,
    zeros,
)
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def translate_kernel(
    ids: tl.tensor,  # [rows, columns], int32 or int64; any strides
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [rows, columns], int32 or int64; any strides that keep cells apart; may be ids; written
    state: tl.tensor,  # [32], int64
    rows: tl.int64,
    columns: tl.int64,
    ids_row_stride: tl.int64,
    ids_column_stride: tl.int64,
    out_row_stride: tl.int64,
    out_column_stride: tl.int64,
    num_virtual: tl.int64,
    shared: tl.int64,  # programs to a row
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the entry of every id."""
    if DEPENDENT:
        wait_for_previous()
    first_lane, part, step = share_of_rows(shared)
    past = zeros(BLOCK)
    for row in range(first_lane, rows, step):
        for first in range(part * BLOCK, columns, shared * BLOCK):
            column = first + tl.arange(0, BLOCK).to(tl.int64)
            inside = column < columns
            token = tl.load(ids + (zero() + row) * ids_row_stride + column * ids_column_stride, mask=inside, other=HOLE)
            page = page_of(token, PAGE_SIZE * RANKS)
            within_page = token % (PAGE_SIZE * RANKS)
            mine = (page >= 0) & (page < num_virtual) & (within_page % RANKS == RANK)
            physical = tl.load(v2p + page, mask=mine, other=TOMBSTONE).to(tl.int64)
            entry = physical * MULTIPLIER * PAGE_SIZE + within_page // RANKS
            entry = tl.where(physical >= 0, entry, SINK).to(out.dtype.element_ty)
            tl.store(out + (zero() + row) * out_row_stride + column * out_column_stride, entry, mask=inside)
            if COUNT:
                past += (page >= num_virtual).to(tl.int64)
    if COUNT:
        count(state, BAD_ID, tl.sum(past, 0))


def plan(spec: TranslateSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a translation: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        translate_kernel,
        [spec.id_dtype, spec.index_dtype, spec.out_dtype, torch.int64],
        {
            "PAGE_SIZE": spec.page_size,
            "MULTIPLIER": spec.multiplier,
            "RANKS": spec.ranks,
            "RANK": spec.rank,
            "COUNT": options.count,
            "BLOCK": grid.block,
        },
        device,
    )

    def translate(
        ids: torch.Tensor, v2p: torch.Tensor, *, out: torch.Tensor, state: torch.Tensor | None = None
    ) -> None:
        sizes: tuple[int, ...] = (1, ids.numel())
        of_ids: tuple[int, ...] = (0, 1)
        of_out: tuple[int, ...] = (0, 1)
        if ids.dim() == 1:
            of_ids, of_out = (0, ids.stride(0)), (0, out.stride(0))
        elif not (ids.is_contiguous() and out.is_contiguous()):
            sizes, of_ids, of_out = ids.shape, ids.stride(), out.stride()
        long = 0 if sizes[0] > sizes[1] else 1
        programs, shared = grid.rows(sizes[1 - long], sizes[long])
        kernel(
            programs,
            ids,
            v2p,
            out,
            lost if state is None else state,
            sizes[1 - long],
            sizes[long],
            of_ids[1 - long],
            of_ids[long],
            of_out[1 - long],
            of_out[long],
            v2p.shape[0] - 1,
            shared,
        )

    return PlannedLaunch(translate, [kernel], device)
