"""Take pages off the stacks of a sub-pool, and push them back: the part that alloc, extend, free and truncate share."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagebind.operation import Launch
from pagebind.ops.bind import bindable
from pagebind.words import HOLE, HOLE_TOP, SINK, VIRTUAL_TOP, WATERMARK, PageTables


class Found(NamedTuple):
    """The pages that the next lanes would take, in lane order, and how many of them are holes."""

    virtual: torch.Tensor  # [k], index dtype
    physical: torch.Tensor  # [k], index dtype
    from_holes: int
    top: int  # of the virtual stack afterwards
    holes: int  # top of the hole stack afterwards
    watermark: int  # afterwards


class Taken(NamedTuple):
    """The pages that lanes took, in lane order; the sink where none was found or the pair was refused."""

    virtual: torch.Tensor  # [n], index dtype
    physical: torch.Tensor  # [n], index dtype
    found: int
    refused: torch.Tensor  # [found], bool


def find(tables: PageTables, n: int) -> Found:
    """Return the next `n` pages, or as many as there are. Waits for the device; writes nothing."""
    num_physical = tables.p2v.shape[0] - 1
    holes_below = tables.hole_stack
    # Positions that somebody spoiled are clamped, so that nothing outside the stacks is read.
    words = tables.state.tolist()
    top = min(max(words[VIRTUAL_TOP], 0), tables.virtual_stack.shape[0])
    holes = min(max(words[HOLE_TOP], 0), holes_below.shape[0])
    watermark = min(max(words[WATERMARK], 0), num_physical - 1)
    k = min(n, top, holes + num_physical - 1 - watermark)
    from_holes = min(k, holes)
    last = watermark + k - from_holes
    grown = torch.arange(watermark + 1, last + 1, dtype=holes_below.dtype, device=holes_below.device)
    physical = torch.cat((holes_below[holes - from_holes : holes].flip(0), grown)) if from_holes else grown
    return Found(
        tables.virtual_stack[top - k : top].flip(0),
        physical,
        from_holes,
        top - k,
        holes - from_holes,
        watermark + k - from_holes,
    )


def take(tables: PageTables, n: int, bind: Launch) -> Taken:
    """Take `n` pages, or as many as there are, bind them by the launch `bind`, and move the positions. Waits."""
    found = find(tables, n)
    virtual, physical = found.virtual, found.physical
    k = virtual.shape[0]
    refused = ~bindable(virtual, physical, tables.v2p, tables.p2v)
    if k:
        bind(virtual.masked_fill(refused, HOLE), physical, tables.v2p, tables.p2v, state=None)
    tables.state[VIRTUAL_TOP] = found.top
    tables.state[HOLE_TOP] = found.holes
    tables.state[WATERMARK] = found.watermark
    virtual, physical = virtual.masked_fill(refused, SINK), physical.masked_fill(refused, SINK)
    if k < n:
        missing = virtual.new_full((n - k,), SINK)
        virtual, physical = torch.cat((virtual, missing)), torch.cat((physical, missing))
    return Taken(virtual, physical, k, refused)


def push(tables: PageTables, ids: torch.Tensor, freed: torch.Tensor) -> None:
    """Push the lanes that an unbind served, `freed[i] >= 0`: `ids[i]` and `freed[i]`, in lane order. Waits."""
    served = freed >= 0
    if not served.all():
        ids, freed = ids[served], freed[served]
    words = tables.state.tolist()
    for stack, word, values in ((tables.virtual_stack, VIRTUAL_TOP, ids), (tables.hole_stack, HOLE_TOP, freed)):
        # A spoiled position is clamped, and what ids bound by hand would push past the end is not written.
        first = min(max(words[word], 0), stack.shape[0])
        last = min(first + values.shape[0], stack.shape[0])
        if first < last:
            stack[first:last] = values[: last - first]
        tables.state[word] = last
