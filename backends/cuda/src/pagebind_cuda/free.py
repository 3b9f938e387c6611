"""free: unbind ids and push them back on the device stacks, one thread an id, in one launch of free.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.free import FreeSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, wide


def plan_free(spec: FreeSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a free: one block as long as it holds all ids, else several of which the last moves the tops."""
    kernel = plan_kernel(
        "free", device, index_dtype=spec.index_dtype, out_dtype=spec.id_dtype, id_wide=wide(spec.id_dtype)
    )
    most = limits(device, options, threads=1024, programs=1024)
    counting = options.count

    def run(
        ids: torch.Tensor,  # [n], id_dtype
        tables: PageTables,
        *,
        freed: torch.Tensor,  # [n], id_dtype
    ) -> None:
        n = ids.shape[0]
        state = tables.state.data_ptr()
        blocks, threads = most.together(n)
        kernel(
            blocks,
            threads,
            ids.data_ptr(),
            n,
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            tables.p2v.shape[0] - 1,
            tables.virtual_stack.data_ptr(),
            tables.hole_stack.data_ptr(),
            state,
            freed.data_ptr(),
            state if counting else 0,
        )

    return KernelLaunch(run, kernel)
