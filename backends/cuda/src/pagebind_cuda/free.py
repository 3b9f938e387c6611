"""free: unbind ids and push them back on the device stacks, one thread an id, in one launch of free.cu."""

from __future__ import annotations

import torch
from pagebind.operation import INT32_MAX, LaunchOptions, need_count
from pagebind.ops.free import FreeSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, wide


def plan_free(spec: FreeSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a free: one block as long as it holds all ids, else several of which the last moves the tops.

    Raises InvalidArgument for more borrowed ids than a row of v2p has numbers for: see claim_of in free.cuh.
    """
    if spec.borrowed:
        need_count("max_items of a plan for borrowed ids", spec.max_items, 0, INT32_MAX)
    kernel = plan_kernel(
        "free",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.id_dtype,
        id_wide=wide(spec.id_dtype),
        borrowed=spec.borrowed,
    )
    # Few large blocks for borrowed ids, because the last one goes through all of them again.
    most = limits(device, options, threads=1024, programs=128 if spec.borrowed else 1024)
    spread = most.spread if spec.borrowed else most.together
    counting = options.count

    def run(
        ids: torch.Tensor,  # [n], id_dtype
        tables: PageTables,
        *,
        freed: torch.Tensor,  # [n], id_dtype
        pages: int | None = None,
    ) -> None:
        n = ids.shape[0]
        state = tables.state.data_ptr()
        blocks, threads = spread(n)
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
            -1 if pages is None else pages,
            state if counting else 0,
        )

    return KernelLaunch(run, kernel)
