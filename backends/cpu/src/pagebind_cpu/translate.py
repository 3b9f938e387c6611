"""translate: token ids -> the ids kernels write through; 1-D or 2-D, any strides, also in place."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.ids import scale_of
from pagebind.ops.lanes import add
from pagebind.ops.translate import TranslateSpec

from pagebind_cpu.entries import Unit, entries


def plan(spec: TranslateSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a translation."""
    scale = scale_of(spec.num_physical, spec.multiplier, spec.page_size)
    unit = Unit(spec.page_size, scale, spec.out_dtype, spec.ranks, spec.rank)

    def run(ids: torch.Tensor, v2p: torch.Tensor, *, out: torch.Tensor, state: torch.Tensor | None = None) -> None:
        entry, past = entries(ids.contiguous(), v2p, unit)
        if past is not None and options.count:
            add(state, bad_id=past)
        out.copy_(entry)

    return NoWarmup(run)
