"""bind: write pairs into both tables, one thread a pair, in one launch of bind.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.bind import BindSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_bind(spec: BindSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a binding."""
    kernel = plan_kernel("bind", device, index_dtype=spec.index_dtype, id_wide=wide(spec.id_dtype))
    most = limits(device, options, threads=256, programs=1024)
    counting = options.count

    def run(
        virtual: torch.Tensor,  # [n], id_dtype
        physical: torch.Tensor,  # [n], id_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        p2v: torch.Tensor,  # [num_physical + 1], index_dtype
        *,
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        n = virtual.shape[0]
        blocks, threads = most.spread(n)
        kernel(
            blocks,
            threads,
            virtual.data_ptr(),
            physical.data_ptr(),
            n,
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            p2v.data_ptr(),
            p2v.shape[0] - 1,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
