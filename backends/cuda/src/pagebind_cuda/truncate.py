"""truncate: give back a row's tail, in two or three launches of truncate.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.truncate import TruncateSpec
from pagebind.words import PageTables

from pagebind_cuda.launch import KernelLaunch
from pagebind_cuda.tail import plan_tail


def plan_truncate(spec: TruncateSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a truncation; launches as in plan_tail."""
    cut, kernel = plan_tail("truncate", spec, device, options)

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        keep_lens: torch.Tensor,  # [bs], length_dtype
        tables: PageTables,
        *,
        freed: torch.Tensor,  # [capacity], id_dtype
        pages: int | None = None,
    ) -> None:
        cut(request_table, req_rows, seq_lens, keep_lens, tables, freed, pages)

    return KernelLaunch(run, kernel)
