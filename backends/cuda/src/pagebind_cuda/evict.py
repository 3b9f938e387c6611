"""evict: give back pages of rows whose ids live on, in one or two launches of evict.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.evict import PARTS, EvictSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, wide

# Phases of the kernel, as in evict.cu, which numbers the parts as PARTS does.
LANES, FREE = 1, 2


def plan_evict(spec: EvictSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan an eviction: one launch where one block has a thread for every lane and page, else two.

    The plan owns scratch for the totals over lanes: calls of one plan must not overlap on two streams.
    """
    kernel = plan_kernel(
        "evict",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.id_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        part=PARTS.index(spec.part),
    )
    alone = limits(device, options, threads=1024, programs=1)
    # Large blocks, because the last one goes through all pages again.
    most = limits(device, options, threads=1024, programs=128)
    scratch = torch.empty(2 * (spec.max_bs + 1), dtype=torch.int64, device=device)
    counting = options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        starts: torch.Tensor,  # [bs], length_dtype
        lens: torch.Tensor,  # [bs], length_dtype
        tables: PageTables,
        *,
        first: torch.Tensor,  # [max_requests], int32
        freed: torch.Tensor,  # [capacity], id_dtype
        pages: int | None = None,
    ) -> None:
        bs, capacity = req_rows.shape[0], freed.shape[0]
        state = tables.state.data_ptr()
        arguments = (
            request_table.data_ptr(),
            *request_table.shape,
            request_table.stride(0),
            req_rows.data_ptr(),
            starts.data_ptr(),
            lens.data_ptr(),
            bs,
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            tables.p2v.shape[0] - 1,
            tables.hole_stack.data_ptr(),
            state,
            first.data_ptr(),
            freed.data_ptr(),
            capacity,
            -1 if pages is None else pages,
            scratch.data_ptr(),
            state if counting else 0,
        )
        if max(bs, capacity) <= alone.threads:
            kernel(1, alone.block(max(bs, capacity)), *arguments, LANES | FREE)
            return
        kernel(1, alone.block(bs), *arguments, LANES)
        kernel(*most.spread(capacity), *arguments, FREE)

    return KernelLaunch(run, kernel)
