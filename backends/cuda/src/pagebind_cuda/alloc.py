"""alloc: take pages off the device stacks and bind them, one thread a page, in one launch of alloc.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.alloc import AllocSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch, chain_of, limits, plan_kernel


def plan_alloc(spec: AllocSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan an allocation: one block as long as it holds all pages, else several of which the last moves the tops."""
    kernel = plan_kernel("alloc", device, index_dtype=spec.index_dtype, out_dtype=spec.id_dtype, borrowed=spec.borrowed)
    # Few large blocks for borrowed ids, because each counts the lanes before it.
    most = limits(device, options, threads=1024, programs=128 if spec.borrowed else 1024)
    spread = most.spread if spec.borrowed else most.together
    counting = options.count

    def run(
        tables: PageTables,
        *,
        ids: torch.Tensor,  # [n], id_dtype
        pages: torch.Tensor,  # [n], id_dtype
    ) -> None:
        n = ids.shape[0]
        state = tables.state.data_ptr()
        blocks, threads = spread(n)
        kernel(
            blocks,
            threads,
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            tables.p2v.shape[0] - 1,
            tables.virtual_stack.data_ptr(),
            tables.hole_stack.data_ptr(),
            state,
            *chain_of(tables),
            ids.data_ptr(),
            pages.data_ptr(),
            n,
            state if counting else 0,
        )

    return KernelLaunch(run, kernel)
