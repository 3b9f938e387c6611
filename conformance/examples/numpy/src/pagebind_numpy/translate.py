"""translate: token ids -> the ids kernels write through; 1-D or 2-D, any strides, also in place."""

from __future__ import annotations

import numpy as np
import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops import TranslateSpec
from pagebind.ops.ids import scale_of
from pagebind.words import SINK

from pagebind_numpy.arrays import count, quotient, remainder
from pagebind_numpy.entries import Unit, past_table


def plan(spec: TranslateSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a translation."""
    scale = scale_of(spec.num_physical, spec.multiplier, spec.page_size)
    unit = Unit(scale, np.dtype("int32" if spec.out_dtype is torch.int32 else "int64"))
    per_page = spec.page_size * spec.ranks

    def run(ids: torch.Tensor, v2p: torch.Tensor, *, out: torch.Tensor, state: torch.Tensor | None = None) -> None:
        token, pages = ids.numpy(), v2p.numpy()
        page, offset = quotient(token, per_page), remainder(token, per_page)
        if spec.ranks > 1:
            entry = unit.of_tokens(page, quotient(offset, spec.ranks), pages)
            entry[remainder(offset, spec.ranks) != spec.rank] = SINK
        else:
            entry = unit.of_pages(page, pages) if per_page == 1 else unit.of_tokens(page, offset, pages)
        if options.count and state is not None:
            count(state, bad_id=past_table(page, pages))
        out.numpy()[...] = entry  # last: with pages of one token and in place, out and page are one

    return NoWarmup(run)
