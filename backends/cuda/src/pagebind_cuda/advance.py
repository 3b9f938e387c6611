"""advance: one decode step of a batch, in one or two launches of advance.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.advance import AdvanceSpec
from pagebind.ops.read_table import table_tokens
from pagebind.words import PageTables

from pagebind_cuda.launch import WARP, KernelLaunch, chain_of, limits, plan_kernel, pointer, wide

# Phases of the kernel, as in advance.cu.
LOOK, STEP = 1, 2


def plan_advance(spec: AdvanceSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a decode step: one launch of one block where a block has a thread for every lane, else two.

    The plan owns scratch for batches of more lanes: calls of one plan must not overlap on two streams.
    """
    kernel = plan_kernel(
        "advance",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        granularity_token=spec.granularity == "token",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        id_wide=wide(spec.id_dtype),
        emits=spec.emits,
        appends=spec.appends,
        table_wide=wide(spec.table_dtype),
    )
    alone = limits(device, options, threads=1024, programs=1)
    most = limits(device, options, threads=256, programs=1024)
    scratch = torch.empty(
        most.programs + 2 * spec.max_bs if spec.max_bs > alone.threads else 0, dtype=torch.int64, device=device
    )
    longest = torch.iinfo(spec.length_dtype).max
    form, page_size, multiplier = spec.form, spec.page_size, spec.multiplier
    counting = options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        tables: PageTables,
        *,
        slots: torch.Tensor,  # [bs], out_dtype
        table: torch.Tensor | None = None,  # [>= bs, width], table_dtype
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,  # [bs], id_dtype
        new_ids: torch.Tensor | None = None,  # [m], id_dtype
        new_pages: torch.Tensor | None = None,  # [m], id_dtype
    ) -> None:
        bs = req_rows.shape[0]
        state = tables.state.data_ptr()
        arguments = (
            request_table.data_ptr(),
            request_table.shape[0],
            request_table.stride(0),
            min(table_tokens(form, page_size, request_table), longest),
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            bs,
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            tables.p2v.shape[0] - 1,
            tables.virtual_stack.data_ptr(),
            tables.hole_stack.data_ptr(),
            state,
            *chain_of(tables),
            slots.data_ptr(),
            pointer(table),
            0 if table is None else table.stride(0),
            0 if table is None else table.shape[1],
            multiplier,
            -1 if pages is None else pages,
            pointer(token_ids),
            pointer(new_ids),
            pointer(new_pages),
            0 if new_ids is None else new_ids.shape[0],
            scratch.data_ptr(),
            state if counting else 0,
        )
        if bs <= alone.threads:
            # A warp more where there is room for it: it looks where the span lies meanwhile.
            kernel(1, alone.block(bs + WARP), *arguments, LOOK | STEP)
            return
        blocks, threads = most.spread(bs)
        kernel(blocks, threads, *arguments, LOOK)
        kernel(blocks, threads, *arguments, STEP)

    return KernelLaunch(run, kernel)
