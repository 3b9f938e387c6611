"""touch: rows that changed, told to the tables that follow them, one thread a lane, in one launch of touch.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.touch import TouchSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_touch(spec: TouchSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a touch."""
    kernel = plan_kernel("touch", device, row_wide=wide(spec.row_dtype), length_wide=wide(spec.length_dtype))
    most = limits(device, options, threads=256, programs=1024)
    counting = options.count

    def run(
        versions: torch.Tensor,  # [max_requests, VERSION_WORDS], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        tokens: torch.Tensor,  # [bs], length_dtype
        *,
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        bs = req_rows.shape[0]
        blocks, threads = most.spread(bs)
        kernel(
            blocks,
            threads,
            versions.data_ptr(),
            versions.shape[0],
            req_rows.data_ptr(),
            tokens.data_ptr(),
            bs,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
