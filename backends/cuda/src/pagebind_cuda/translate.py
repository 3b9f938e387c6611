"""translate: token ids to the ids kernels write through, one thread an id, in one launch of translate.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.translate import TranslateSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_translate(spec: TranslateSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a translation."""
    kernel = plan_kernel(
        "translate",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        ranks=spec.ranks,
        id_wide=wide(spec.id_dtype),
    )
    most = limits(device, options, threads=256, programs=1024)
    counting = options.count

    def run(
        ids: torch.Tensor,  # [n] or [m, n], id_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # shape of ids, out_dtype
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        n = ids.numel()
        id_strides: tuple[int, ...]
        out_strides: tuple[int, ...]
        if ids.is_contiguous() and out.is_contiguous():
            rows, columns, id_strides, out_strides = 1, n, (0, 1), (0, 1)
        elif ids.dim() == 1:
            rows, columns, id_strides, out_strides = 1, n, (0, ids.stride(0)), (0, out.stride(0))
        else:
            (rows, columns), id_strides, out_strides = ids.shape, ids.stride(), out.stride()
        blocks, threads = most.spread(n)
        kernel(
            blocks,
            threads,
            ids.data_ptr(),
            rows,
            columns,
            *id_strides,
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            out.data_ptr(),
            *out_strides,
            spec.multiplier,
            spec.rank,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
