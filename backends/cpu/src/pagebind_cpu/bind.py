"""bind: write pairs of a virtual and a physical page into both tables."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.bind import BindSpec, bindable
from pagebind.words import BAD_BIND


def plan(spec: BindSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a binding."""

    def run(
        virtual: torch.Tensor,
        physical: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        served = bindable(virtual, physical, v2p, p2v)
        if not served.all():
            if state is not None and options.count:
                state[BAD_BIND] += ((virtual >= 0) & ~served).sum()
            virtual, physical = virtual[served], physical[served]
        _write(virtual, physical, v2p, p2v)

    return NoWarmup(run)


def plan_judged(spec: BindSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a binding of pairs that are known to be good, but for holes: nothing is looked at twice."""

    def run(
        virtual: torch.Tensor,
        physical: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        served = virtual >= 0
        if not served.all():
            virtual, physical = virtual[served], physical[served]
        _write(virtual, physical, v2p, p2v)

    return NoWarmup(run)


def _write(virtual: torch.Tensor, physical: torch.Tensor, v2p: torch.Tensor, p2v: torch.Tensor) -> None:
    v2p.index_copy_(0, virtual.long(), physical.to(v2p.dtype))
    p2v.index_copy_(0, physical.long(), virtual.to(p2v.dtype))
