"""extend: pages for new tokens, request table and write slots, in one or three launches of extend.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.extend import ExtendSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch, chain_of, limits, plan_kernel, pointer, wide

# Phases of the kernel, as in extend.cu.
LANES, PAGES, TOKENS = 1, 2, 4
SPAN_WORDS = 8  # of a Span in pool.cuh


def plan_extend(spec: ExtendSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan an extension: one launch of one block where a block has a thread for every lane and slot, else three.

    The plan owns scratch for the totals over lanes: calls of one plan must not overlap on two streams.
    """
    kernel = plan_kernel(
        "extend",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        indptr_wide=wide(spec.indptr_dtype),
        id_wide=wide(spec.id_dtype),
        emits=spec.emits,
    )
    alone = limits(device, options, threads=1024, programs=1)
    most = limits(device, options, threads=256, programs=1024)
    scratch = torch.empty(5 * (spec.max_bs + 1) + 2 + SPAN_WORDS, dtype=torch.int64, device=device)
    # A call takes a page a token at most, and no more than there are ids.
    taken = torch.empty(min(spec.num_virtual, spec.max_bs * spec.max_tokens), dtype=spec.index_dtype, device=device)
    counting = options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        prefix_lens: torch.Tensor,  # [bs], length_dtype
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype
        tables: PageTables,
        *,
        slots: torch.Tensor,  # [capacity], out_dtype
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,  # [capacity], id_dtype
        new_ids: torch.Tensor | None = None,  # [m], id_dtype
        new_pages: torch.Tensor | None = None,  # [m], id_dtype
    ) -> None:
        bs, capacity = req_rows.shape[0], slots.shape[0]
        state = tables.state.data_ptr()
        arguments = (
            request_table.data_ptr(),
            *request_table.shape,
            request_table.stride(0),
            req_rows.data_ptr(),
            prefix_lens.data_ptr(),
            indptr.data_ptr(),
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
            capacity,
            spec.multiplier,
            -1 if pages is None else pages,
            pointer(token_ids),
            pointer(new_ids),
            pointer(new_pages),
            0 if new_ids is None else new_ids.shape[0],
            scratch.data_ptr(),
            taken.data_ptr(),
            state if counting else 0,
        )
        if max(bs, capacity) <= alone.threads:
            kernel(1, alone.block(max(bs, capacity)), *arguments, LANES | PAGES | TOKENS)
            return
        kernel(1, alone.block(bs), *arguments, LANES)
        kernel(*most.spread(capacity), *arguments, PAGES)
        kernel(*most.spread(capacity), *arguments, TOKENS)

    return KernelLaunch(run, kernel)
