"""read_table: the rectangle that attention kernels read, in one launch of read_table.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import ReadTableSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_read_table(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a read table: blocks share the rows, as many a row as the batch leaves, each striding over its columns."""
    kernel = plan_kernel(
        "read_table",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        granularity_token=spec.granularity == "token",
        fill_sink=spec.fill == "sink",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
    )
    most = limits(device, options, threads=512, programs=1024)
    sink, counting = spec.fill == "sink", options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # [>= bs, width], out_dtype
        starts: torch.Tensor | None = None,  # [bs], length_dtype
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        bs = req_rows.shape[0]
        out_rows, width = out.shape
        blocks, threads, parts = most.parts(out_rows if sink else bs, spec.max_width)
        kernel(
            blocks,
            threads,
            request_table.data_ptr(),
            *request_table.shape,
            request_table.stride(0),
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            pointer(starts),
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            out.data_ptr(),
            out_rows,
            width,
            out.stride(0),
            bs,
            parts,
            seq_len_delta,
            spec.multiplier,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
