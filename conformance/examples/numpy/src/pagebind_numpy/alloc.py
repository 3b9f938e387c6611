"""alloc: take virtual ids and physical pages off the stacks and bind them."""

from __future__ import annotations

import numpy as np
import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops import AllocSpec
from pagebind.ops.span import fresh_pages, read_span
from pagebind.words import HOLE_TOP, SEAT, SINK, VIRTUAL_TOP, WATERMARK, PageTables

from pagebind_numpy.arrays import count
from pagebind_numpy.bind import bind


def plan(spec: AllocSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan an allocation: holes first, then the pages that the span grows by."""

    def run(tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor) -> None:
        virtual, physical, words = ids.numpy(), pages.numpy(), tables.state.numpy()
        asking = (virtual > SINK).nonzero()[0] if spec.borrowed else np.arange(virtual.size)
        span = read_span(tables)
        found = min(asking.size, span.hole_top + span.up + span.down)
        if not spec.borrowed:
            found = min(found, span.virtual_top)
        holes = min(found, span.hole_top)
        lane = asking[:found]

        reused = tables.hole_stack.numpy()[span.hole_top - holes : span.hole_top][::-1]
        p = np.concatenate((reused, fresh_pages(span, found - holes, tables.hole_stack).numpy()))
        if spec.borrowed:
            v = virtual[lane]
        else:
            v = tables.virtual_stack.numpy()[span.virtual_top - found : span.virtual_top][::-1]
            words[VIRTUAL_TOP] = span.virtual_top - found
        seat, watermark = span.grown(found - holes)
        words[HOLE_TOP], words[WATERMARK] = span.hole_top - holes, watermark
        if found > holes:
            words[SEAT] = seat

        served = bind(v, p, tables.v2p.numpy(), tables.p2v.numpy())
        physical.fill(SINK)
        physical[lane] = p * served
        if not spec.borrowed:
            virtual.fill(SINK)
            virtual[lane] = v * served
        if options.count:
            refused = found - np.count_nonzero(served)
            count(tables.state, starved=asking.size - found, bad_bind=refused)

    return NoWarmup(run)
