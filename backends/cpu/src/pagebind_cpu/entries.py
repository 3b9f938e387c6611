"""Ids -> pages -> entries, all cells of a call at once.

Rare ids (holes, past the table, tombstones) cost their own passes only in calls that have some: the smallest and the
largest value tell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pagebind.ops.ragged import quotient
from pagebind.words import SINK, TOMBSTONE

MANY = 16384
"""Ids from which threads pay."""


class Unit(NamedTuple):
    """How ids and entries count."""

    page_size: int  # 1 where ids are page ids
    scale: int  # entries of one physical page
    out_dtype: torch.dtype
    ranks: int = 1  # of the context-parallel group that shares a page's ids
    rank: int = 0


def pages(virtual: torch.Tensor, v2p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the physical page of every virtual one, below 0 where there is none, and which are past the table.

    `virtual` is dense, of any shape, with at least one element. None stands for a mask without any True.
    """
    last = v2p.shape[0] - 2
    try:
        return _look_up(virtual, v2p[:-1]), None
    except (IndexError, RuntimeError):  # torch looks at every id, so only a call with one outside pays for another look
        low, high = (bound.item() for bound in virtual.aminmax())
        if low >= SINK and high <= last:
            raise  # all ids are in the table: it is something else
    inside = virtual.clamp(SINK, last)
    physical = v2p.index_select(0, inside.view(-1)).view(virtual.shape)
    physical.masked_fill_(inside != virtual, TOMBSTONE)
    past = virtual > last if high > last else None
    return physical, past


def _look_up(virtual: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    # A gather is shared out to threads where it has rows, an index_select is not.
    if virtual.dim() == 2 and virtual.numel() >= MANY:
        return known.expand(virtual.shape[0], -1).gather(1, virtual.long())
    return known.index_select(0, virtual.view(-1)).view(virtual.shape)


def entries(ids: torch.Tensor, v2p: torch.Tensor, unit: Unit) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the entry of every id, in `unit.out_dtype`, and which ids are past the table, as in `pages`."""
    span = unit.page_size * unit.ranks
    virtual = quotient(ids, span)
    entry, past = pages(virtual, v2p)
    if span == 1:
        entry = entry.clamp_(min=SINK).to(unit.out_dtype)
        return entry if unit.scale == 1 else entry.mul_(unit.scale), past
    dead = entry < 0 if entry.min().item() < 0 else None
    offset = ids & (span - 1) if span & (span - 1) == 0 else ids - virtual * span
    if unit.ranks > 1:
        other = offset % unit.ranks != unit.rank
        dead = other if dead is None else dead | other
        offset //= unit.ranks
    entry = entry.to(unit.out_dtype).mul_(unit.scale).add_(offset)
    return entry if dead is None else entry.masked_fill_(dead, SINK), past
