"""touch: tell the tables that follow a request table that rows changed, other than by appending."""

from __future__ import annotations

import torch
from pagebind.operation import INT32_MAX, Launch, LaunchOptions, NoWarmup
from pagebind.ops.lanes import rows_of
from pagebind.ops.touch import CHANGED, VERSION, TouchSpec
from pagebind.words import BAD_ROW


def plan(spec: TouchSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a touch; only calls with bad rows pay for picking the others."""

    def run(
        versions: torch.Tensor,
        req_rows: torch.Tensor,
        tokens: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        row, bad = rows_of(versions, req_rows)
        skipped = int(bad.count_nonzero())
        if skipped:
            row, tokens = row[~bad], tokens[~bad]
            if state is not None and options.count:
                state[BAD_ROW] += skipped
        changed = tokens.clamp(0, INT32_MAX).to(torch.int32)
        versions.select(1, VERSION).index_add_(0, row, torch.ones_like(changed))
        versions.select(1, CHANGED).scatter_(0, row, changed)

    return NoWarmup(run)
