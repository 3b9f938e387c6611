"""read_stream: entries packed end to end, with the table where planned, in one launch of read_stream.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.read_stream import ReadStreamSpec

from pagebind_cuda.launch import KernelLaunch, limits, plan_kernel, pointer, wide


def plan_read_stream(spec: ReadStreamSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a read stream: blocks share the lanes, as many a lane as the batch leaves."""
    kernel = plan_kernel(
        "read_stream",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        granularity_token=spec.granularity == "token",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        indptr_wide=wide(spec.indptr_dtype),
    )
    most = limits(device, options, threads=512, programs=1024)
    columns, counting = max(spec.max_items, spec.max_width), options.count

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype
        *,
        out: torch.Tensor,  # [capacity], out_dtype
        starts: torch.Tensor | None = None,  # [bs], length_dtype
        table: torch.Tensor | None = None,  # [>= bs, width], out_dtype
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,  # [32], int64
    ) -> None:
        bs = req_rows.shape[0]
        blocks, threads, parts = most.parts(bs, columns)
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
            indptr.data_ptr(),
            out.data_ptr(),
            out.shape[0],
            # A table without columns has no address, and is not the same as none: its width alone clips.
            0 if table is None else table.data_ptr() or out.data_ptr(),
            0 if table is None else table.shape[1],
            0 if table is None else table.stride(0),
            bs,
            parts,
            seq_len_delta,
            spec.multiplier,
            pointer(state) if counting else 0,
        )

    return KernelLaunch(run, kernel)
