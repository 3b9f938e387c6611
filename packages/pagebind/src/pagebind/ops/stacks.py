"""Take pages off the stacks of a sub-pool, and push them back: the part that alloc, extend, free and truncate share."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagebind.operation import Launch
from pagebind.ops.bind import bindable
from pagebind.ops.span import fresh_pages, read_span
from pagebind.words import HOLE, HOLE_TOP, SEAT, SINK, VIRTUAL_TOP, WATERMARK, PageTables


class Found(NamedTuple):
    """The pages that the next lanes would take, in lane order, and the positions afterwards."""

    virtual: torch.Tensor  # [k], index dtype, or that of the borrowed ids
    physical: torch.Tensor  # [k], index dtype
    virtual_top: int
    hole_top: int
    seat: int
    watermark: int
    grown: int  # pages by which the span grew


class Taken(NamedTuple):
    """The pages that lanes took, in lane order; the sink where none was found or the pair was refused."""

    virtual: torch.Tensor  # [n], index dtype
    physical: torch.Tensor  # [n], index dtype
    found: int
    refused: torch.Tensor  # [found], bool


def find(tables: PageTables, n: int, borrowed: torch.Tensor | None = None) -> Found:
    """Return the next `n` pages, or as many as there are. Waits for the device; writes nothing.

    With `borrowed`, `[n]`, these are the virtual pages, and none is taken off the stack.
    """
    span = read_span(tables)
    k = min(n, span.hole_top + span.up + span.down)
    if borrowed is None:
        k = min(k, span.virtual_top)
    from_holes = min(k, span.hole_top)
    physical = fresh_pages(span, k - from_holes, tables.hole_stack)
    if from_holes:
        holes = tables.hole_stack[span.hole_top - from_holes : span.hole_top].flip(0)
        physical = torch.cat((holes, physical))
    seat, watermark = span.grown(k - from_holes)
    top = span.virtual_top - (k if borrowed is None else 0)
    virtual = tables.virtual_stack[top : top + k].flip(0) if borrowed is None else borrowed[:k]
    return Found(virtual, physical, top, span.hole_top - from_holes, seat, watermark, k - from_holes)


def take(tables: PageTables, n: int, bind: Launch, borrowed: torch.Tensor | None = None) -> Taken:
    """Take `n` pages as `find` does, bind them by the launch `bind`, and move the positions. Waits."""
    found = find(tables, n, borrowed)
    virtual, physical = found.virtual, found.physical
    k = virtual.shape[0]
    refused = ~bindable(virtual, physical, tables.v2p, tables.p2v)
    if k:
        bind(virtual.masked_fill(refused, HOLE).to(physical.dtype), physical, tables.v2p, tables.p2v, state=None)
    if borrowed is None:
        tables.state[VIRTUAL_TOP] = found.virtual_top
    tables.state[HOLE_TOP] = found.hole_top
    tables.state[WATERMARK] = found.watermark
    if found.grown:
        tables.state[SEAT] = found.seat
    virtual, physical = virtual.masked_fill(refused, SINK), physical.masked_fill(refused, SINK)
    if k < n:
        missing = virtual.new_full((n - k,), SINK)
        virtual, physical = torch.cat((virtual, missing)), torch.cat((physical, missing))
    return Taken(virtual, physical, k, refused)


def push(tables: PageTables, ids: torch.Tensor, freed: torch.Tensor, *, borrowed: bool = False) -> int:
    """Push the lanes that an unbind served, `freed[i] >= 0`: `ids[i]` and `freed[i]`, in lane order. Waits.

    Ids that are `borrowed` go on no stack. Returns how many lanes were served.
    """
    served = freed >= 0
    if not served.all():
        ids, freed = ids[served], freed[served]
    words = tables.state.tolist()
    pushed = ((tables.virtual_stack, VIRTUAL_TOP, ids), (tables.hole_stack, HOLE_TOP, freed))
    for stack, word, values in pushed[int(borrowed) :]:
        # A spoiled position is clamped, and what ids bound by hand would push past the end is not written.
        first = min(max(words[word], 0), stack.shape[0])
        last = min(first + values.shape[0], stack.shape[0])
        if first < last:
            stack[first:last] = values[: last - first]
        tables.state[word] = last
    return freed.shape[0]
