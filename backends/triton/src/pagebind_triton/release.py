"""release: the launches of truncate, where the shared prefix is what is kept bound and the whole row is cleared."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.release import ReleaseSpec
from pagebind.words import PageTables

from pagebind_triton.launch import PlannedLaunch
from pagebind_triton.truncate import plan_cut


def plan(spec: ReleaseSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a release: three kernels, one variant each."""
    cut, variants = plan_cut(spec, device, options, keeps=spec.shared, empties=True)

    def release(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        tables: PageTables,
        *,
        freed: torch.Tensor,
        starts: torch.Tensor | None = None,
        pages: int | None = None,
    ) -> None:
        cut(request_table, req_rows, seq_lens, seq_lens if starts is None else starts, tables, freed, pages)

    return PlannedLaunch(release, variants, device)
