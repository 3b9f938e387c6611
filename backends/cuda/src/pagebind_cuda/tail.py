"""Giving back the tail of rows: the launches that truncate and release share, as tail.cuh their kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.truncate import TruncateSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import Kernel, limits, plan_kernel, pointer, wide

# Phases of the kernels, as in tail.cuh.
LANES, FREE, CLEAR = 1, 2, 4

Cut = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None", PageTables, torch.Tensor, "int | None"], None
]


def plan_tail(operation: str, spec: TruncateSpec, device: torch.device, options: LaunchOptions) -> tuple[Cut, Kernel]:
    """Plan the launches of `operation`: two where one block has a thread for every lane and page, else three.

    The plan owns scratch for the totals over lanes: calls of one plan must not overlap on two streams.
    """
    kernel = plan_kernel(
        operation,
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.id_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
    )
    alone = limits(device, options, threads=1024, programs=1)
    most = limits(device, options, threads=256, programs=1024)
    scratch = torch.empty(4 * (spec.max_bs + 1), dtype=torch.int64, device=device)
    counting = options.count

    def cut(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        keep_lens: torch.Tensor | None,  # [bs], length_dtype; None keeps no token
        tables: PageTables,
        freed: torch.Tensor,  # [capacity], id_dtype
        pages: int | None,
    ) -> None:
        bs, capacity = req_rows.shape[0], freed.shape[0]
        max_requests, columns = request_table.shape
        state = tables.state.data_ptr()
        arguments = (
            request_table.data_ptr(),
            max_requests,
            columns,
            request_table.stride(0),
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            pointer(keep_lens),
            bs,
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            tables.p2v.shape[0] - 1,
            tables.virtual_stack.data_ptr(),
            tables.hole_stack.data_ptr(),
            state,
            freed.data_ptr(),
            capacity,
            -1 if pages is None else pages,
            scratch.data_ptr(),
            state if counting else 0,
        )
        if max(bs, capacity) <= alone.threads:
            kernel(1, alone.block(max(bs, capacity)), *arguments, LANES | FREE)
        else:
            kernel(1, alone.block(bs), *arguments, LANES)
            kernel(*most.spread(capacity), *arguments, FREE)
        kernel(*most.spread(bs * columns), *arguments, CLEAR)

    return cut, kernel
