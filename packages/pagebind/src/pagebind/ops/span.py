"""Where a sub-pool's span lies, and how far it may grow before it meets a neighbour.

    chain      up              float                    down
    bytes   sinks |####|.......|#######|................|######|
                       ^ low   ^ seat + 1               ^ high            of the float: pages between are its room

Frontiers of neighbours are read from their state blocks. Under a lease an end's `reach` may be longer than its span:
its neighbours stay outside of both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagebind.words import (
    BASE,
    DOWN,
    FLOAT,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    UP,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
)

MOST_PAGES = 2**31 - 1
"""Positions of a neighbour are clamped to `[0, MOST_PAGES]` before any arithmetic."""

MOST_PAGE_BYTES = 2**30
"""Page sizes of a chain are clamped to `[1, MOST_PAGE_BYTES]`."""

MOST_BASE = 2**61
"""Bases of a chain are clamped to `[0, MOST_BASE]`."""


class Span(NamedTuple):
    """Positions of a sub-pool, clamped so that no value leads outside its stacks and tables; in pages."""

    virtual_top: int
    hole_top: int
    seat: int  # the page below the span; where an empty float would sit
    watermark: int
    above: int  # pages free above the span
    below: int  # pages free below it
    up: int  # of those above, what growth may take
    down: int  # of those below, what growth may take; after the ones above

    def grown(self, pages: int) -> tuple[int, int]:
        """Return seat and watermark after the span grew by `pages`, at most `up + down` of them."""
        return self.seat - max(pages - self.up, 0), self.watermark + pages


def read_span(tables: PageTables) -> Span:
    """Return the positions of a sub-pool. Waits for the device.

    The span is the pages `seat + 1` to `seat + watermark`. Without a chain, pages 1 to `num_physical - 1` are the
    sub-pool's own and it grows up. In a chain, page p lies at bytes `base + p * page_bytes`; the sinks end where the
    furthest page 0 does. A neighbour with an empty span and no reach is no bound. An empty float sits in the middle:
    `seat = first - 1 + (end - first) // 2`, with `[first, end)` the pages between its bounds.
    """
    num_physical = tables.p2v.shape[0] - 1
    words = tables.state.tolist()
    top = min(max(words[VIRTUAL_TOP], 0), tables.virtual_stack.shape[0])
    holes = min(max(words[HOLE_TOP], 0), tables.hole_stack.shape[0])
    watermark = min(max(words[WATERMARK], 0), num_physical - 1)
    seat = min(max(words[SEAT], 0), num_physical - 1 - watermark)
    growth, first, end = UP, 1, num_physical
    if tables.chain is not None:
        growth = words[GROWTH] if words[GROWTH] in (DOWN, FLOAT) else UP
        first, end = _bounds(tables.chain.tolist(), tables.place, num_physical)
        if growth == FLOAT and watermark == 0:
            seat = min(first - 1 + max(end - first, 0) // 2, num_physical - 1)
    above, below = max(end - 1 - (seat + watermark), 0), max(seat + 1 - first, 0)
    return Span(top, holes, seat, watermark, above, below, above if growth != DOWN else 0, below if growth != UP else 0)


def fresh_pages(span: Span, pages: int, like: torch.Tensor) -> torch.Tensor:
    """Return the next `pages` pages that growth takes, in `like`'s dtype and on its device."""
    high = min(pages, span.up)
    frontier = span.seat + span.watermark
    up = torch.arange(frontier + 1, frontier + high + 1, dtype=like.dtype, device=like.device)
    if high == pages:
        return up
    down = torch.arange(span.seat, span.seat - (pages - high), -1, dtype=like.dtype, device=like.device)
    return torch.cat((up, down))


def _bounds(chain: list[list[int]], place: int, num_physical: int) -> tuple[int, int]:
    """Return the first page that is free for the sub-pool and the page past the last one."""
    base, page_bytes = _geometry(chain[place])
    low = max(sum(_geometry(block)) for block in chain)
    high = base + num_physical * page_bytes
    for j, block in enumerate(chain):
        other_base, other_bytes = _geometry(block)
        seat, span, reach = (min(max(block[word], 0), MOST_PAGES) for word in (SEAT, WATERMARK, REACH))
        growth = block[GROWTH] if block[GROWTH] in (DOWN, FLOAT) else UP
        leased = max(reach - span, 0) if growth == (UP if j < place else DOWN) else 0
        if j == place or span + leased == 0:
            continue
        if j < place:
            low = max(low, other_base + (seat + 1 + span + leased) * other_bytes)
        else:
            high = min(high, other_base + max(seat + 1 - leased, 0) * other_bytes)
    first = max(-((base - low) // page_bytes), 1)
    return min(first, num_physical), min(max((high - base) // page_bytes, 0), num_physical)


def _geometry(block: list[int]) -> tuple[int, int]:
    return min(max(block[BASE], 0), MOST_BASE), min(max(block[PAGE_BYTES], 1), MOST_PAGE_BYTES)
