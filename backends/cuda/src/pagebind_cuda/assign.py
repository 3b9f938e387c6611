"""assign: copy ids into rows, in one launch of assign.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.assign import AssignSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_assign(spec: AssignSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan an assignment: blocks share the lanes, as many a lane as the batch leaves."""
    kernel = plan_kernel("assign", device, row_wide=wide(spec.row_dtype), indptr_wide=wide(spec.indptr_dtype))
    most = limits(device, options, threads=256, programs=1024)
    counting = options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        ids: torch.Tensor,  # [capacity], int32
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype
        *,
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        bs = req_rows.shape[0]
        blocks, threads, parts = most.parts(bs, spec.max_items)
        kernel(
            blocks,
            threads,
            request_table.data_ptr(),
            *request_table.shape,
            request_table.stride(0),
            req_rows.data_ptr(),
            ids.data_ptr(),
            ids.shape[0],
            indptr.data_ptr(),
            bs,
            parts,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
