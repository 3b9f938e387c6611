"""unbind: the fused tombstone free, one thread an id, in one launch of unbind.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.unbind import UnbindSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_unbind(spec: UnbindSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan an unbinding."""
    kernel = plan_kernel(
        "unbind", device, index_dtype=spec.index_dtype, out_dtype=spec.id_dtype, id_wide=wide(spec.id_dtype)
    )
    most = limits(device, options, threads=256, programs=1024)
    counting = options.count

    def run(
        ids: torch.Tensor,  # [n], id_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        p2v: torch.Tensor,  # [num_physical + 1], index_dtype
        *,
        freed: torch.Tensor,  # [n], id_dtype
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        n = ids.shape[0]
        blocks, threads = most.spread(n)
        kernel(
            blocks,
            threads,
            ids.data_ptr(),
            n,
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            p2v.data_ptr(),
            p2v.shape[0] - 1,
            freed.data_ptr(),
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
