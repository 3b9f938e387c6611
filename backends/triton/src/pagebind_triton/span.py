"""Where a sub-pool's span lies and how far it may grow, as `pagebind.ops.span` defines it, read by every program.

A pool without a chain reads two words of its own block; with one, CHAIN_ROWS blocks at a time, all of their words at
once: a launch waits for about one read of memory more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.ops import span
from pagebind.words import PageTables

from pagebind_triton.guards import (
    BASE,
    DOWN,
    FLOAT,
    GROWTH,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    UP,
    WATERMARK,
    within,
    zero,
)

MOST_PAGES = tl.constexpr(span.MOST_PAGES)
MOST_PAGE_BYTES = tl.constexpr(span.MOST_PAGE_BYTES)
MOST_BASE = tl.constexpr(span.MOST_BASE)

NO_BOUND = tl.constexpr(2**63 - 1)
"""Bytes; stands for the frontier of a neighbour above where there is none. No frontier lies there: with every position
clamped the furthest is at `MOST_BASE + 2 * (MOST_PAGES + 1) * MOST_PAGE_BYTES`, which is below 2**63."""

CHAIN_ROWS = tl.constexpr(8)
"""Blocks of a chain that are read at once; chains have up to three."""


@triton.jit
def as_growth(word: tl.tensor) -> tl.tensor:
    """Return a growth word; what is no growth reads as up."""
    return tl.where((word == DOWN) | (word == FLOAT), word, UP)


@triton.jit
def bounds(
    chain: tl.tensor,  # [sub_pools, 32], int64
    sub_pools: tl.tensor,
    place: tl.tensor,
    num_physical: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first page that is free for the sub-pool at `place`, and the page past the last one."""
    own = chain + place.to(tl.int64) * STATE_WORDS
    base = within(tl.load(own + BASE), 0, MOST_BASE)
    page_bytes = within(tl.load(own + PAGE_BYTES), 1, MOST_PAGE_BYTES)
    low = zero()  # bytes; the furthest end of a page 0 or of a neighbour below
    high = zero() + NO_BOUND  # bytes; the nearest beginning of a neighbour above
    for at in range(0, sub_pools, CHAIN_ROWS):
        row = at + tl.arange(0, CHAIN_ROWS).to(tl.int64)
        known = row < sub_pools
        block = chain + row * STATE_WORDS
        other_base = within(tl.load(block + BASE, mask=known, other=0), 0, MOST_BASE)
        other_bytes = within(tl.load(block + PAGE_BYTES, mask=known, other=0), 1, MOST_PAGE_BYTES)
        seat = within(tl.load(block + SEAT, mask=known, other=0), 0, MOST_PAGES)
        pages = within(tl.load(block + WATERMARK, mask=known, other=0), 0, MOST_PAGES)
        reach = within(tl.load(block + REACH, mask=known, other=0), 0, MOST_PAGES)
        # Under a lease an end keeps more than its span, on the side that it grows to.
        towards = as_growth(tl.load(block + GROWTH, mask=known, other=UP)) == tl.where(row < place, UP, DOWN)
        leased = tl.where(towards, tl.maximum(reach - pages, 0), 0)
        bounding = known & (pages + leased > 0)
        ends = other_base + (seat + 1 + pages + leased) * other_bytes
        begins = other_base + tl.maximum(seat + 1 - leased, 0) * other_bytes
        sinks_end = tl.where(known, other_base + other_bytes, 0)
        low = tl.maximum(low, tl.max(tl.maximum(sinks_end, tl.where(bounding & (row < place), ends, 0)), 0))
        high = tl.minimum(high, tl.min(tl.where(bounding & (row > place), begins, NO_BOUND), 0))
    # The sub-pool's own page 0 counts among the sinks, so `low` lies above `base`.
    first = tl.minimum((low - base + (page_bytes - 1)) // page_bytes, num_physical)
    end = within((high - base) // page_bytes, 0, num_physical)
    return first, tl.where(high == NO_BOUND, num_physical, end)


@triton.jit
def read_span(
    state: tl.tensor,  # [32], int64
    chain: tl.tensor,  # [sub_pools, 32], int64; read with CHAINED
    sub_pools: tl.tensor,
    place: tl.tensor,
    num_physical: tl.tensor,
    CHAINED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return seat, watermark, up, down, above and below, as `pagebind.ops.span.Span` has them."""
    watermark = within(tl.load(state + WATERMARK), 0, num_physical - 1)
    seat = within(tl.load(state + SEAT), 0, num_physical - 1 - watermark)
    first = zero() + 1
    end = zero() + num_physical
    growth = zero() + UP
    if CHAINED:
        growth = as_growth(tl.load(state + GROWTH))
        first, end = bounds(chain, sub_pools, place, num_physical)
        middle = tl.minimum(first - 1 + tl.maximum(end - first, 0) // 2, num_physical - 1)
        seat = tl.where((growth == FLOAT) & (watermark == 0), middle, seat)
    above = tl.maximum(end - 1 - (seat + watermark), 0)
    below = tl.maximum(seat + 1 - first, 0)
    up = tl.where(growth == DOWN, 0, above)
    down = tl.where(growth == UP, 0, below)
    return seat, watermark, up, down, above, below


def chain_of(tables: PageTables) -> tuple[torch.Tensor, int, int]:
    """Return the chain, its sub-pools and the place among them, for kernels; without a chain nobody reads them."""
    if tables.chain is None:
        return tables.state, 1, 0
    return tables.chain, tables.chain.shape[0], tables.place
