"""free: unbind virtual ids and push them and their pages back on the stacks."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops import FreeSpec
from pagebind.words import EPOCH, HOLE_TOP, VIRTUAL_TOP, PageTables

from pagebind_numpy.arrays import Array, count
from pagebind_numpy.unbind import unbind


def plan(spec: FreeSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a free."""

    def run(ids: torch.Tensor, tables: PageTables, *, freed: torch.Tensor, pages: int | None = None) -> None:
        virtual, words = ids.numpy(), tables.state.numpy()
        done = unbind(virtual, tables.v2p.numpy(), tables.p2v.numpy(), freed.numpy())
        _push(tables.hole_stack.numpy(), words, HOLE_TOP, done.page)
        if not spec.borrowed:
            _push(tables.virtual_stack.numpy(), words, VIRTUAL_TOP, virtual[done.lane])
        words[EPOCH] += 1
        if options.count:
            # A window has let go of pages whose borrowed ids live on: that one has none is no fault.
            double_free = done.repeated + (0 if spec.borrowed else done.absent)
            mismatch = pages is not None and pages != done.lane.size
            count(tables.state, double_free=double_free, bad_free=done.bad, count_mismatch=int(mismatch))

    return NoWarmup(run)


def _push(stack: Array, words: Array, top: int, values: Array) -> None:
    # A spoiled position is clamped, and what ids bound by hand would push past the end is not written.
    first = min(max(int(words[top]), 0), stack.size)
    last = min(first + values.size, stack.size)
    stack[first:last] = values[: last - first]
    words[top] = last
