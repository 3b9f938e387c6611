"""unbind: tombstone both tables for the ids of a call and emit the pages they held."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.lanes import add
from pagebind.ops.unbind import UnbindSpec, unbindable
from pagebind.words import TOMBSTONE


def plan(spec: UnbindSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan an unbinding."""

    def run(
        ids: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        freed: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> None:
        page, served, double_free, bad_free = unbindable(ids, v2p, p2v)
        if served.all():
            freed.copy_(page)
        else:
            if options.count:
                add(state, double_free=double_free, bad_free=bad_free)
            freed.copy_(page.masked_fill(~served, TOMBSTONE))
            ids, page = ids[served], page[served]
        v2p.index_fill_(0, ids.long(), TOMBSTONE)
        p2v.index_fill_(0, page.long(), TOMBSTONE)

    return NoWarmup(run)
