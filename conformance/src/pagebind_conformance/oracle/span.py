"""Where a sub-pool's span may grow, walked page by page; and what the sub-pools of a chain read of each other."""

from __future__ import annotations

from typing import NamedTuple

UP, DOWN, FLOAT = 0, 1, 2

MOST_PAGES = 2**31 - 1
MOST_PAGE_BYTES = 2**30
MOST_BASE = 2**61


class Block(NamedTuple):
    """What the others read of a sub-pool; any ints. Pages, but for `base` and `page_bytes`, which are bytes."""

    growth: int
    base: int
    page_bytes: int
    seat: int = 0
    watermark: int = 0
    reach: int = 0


class Chain(NamedTuple):
    """The sub-pools that share a buffer, by rising address. Seat and watermark of `blocks[place]` are SubPool's own."""

    blocks: tuple[Block, ...]
    place: int


class Room(NamedTuple):
    """Positions as they are read, and the pages around the span that are free."""

    seat: int
    watermark: int
    above: list[int]  # ascending
    below: list[int]  # descending
    fresh: list[int]  # those that growth takes, in its order


def room(num_physical: int, seat: int, watermark: int, chain: Chain | None) -> Room:
    """Return where a span of these positions lies and what it may take.

    Two sub-pools of 10 bytes, pages of 1 and 3 bytes, the sinks at bytes 0 and 1 to 3: the upper one holds its page 2,
    bytes 7 to 9, so the lower one, seated below byte 4, may take the bytes 4 to 6.

    >>> chain = Chain((Block(UP, 0, 1), Block(DOWN, 1, 3, seat=1, watermark=1)), 0)
    >>> room(10, 3, 0, chain).fresh
    [4, 5, 6]
    """
    watermark = _within(watermark, 0, num_physical - 1)
    seat = _within(seat, 0, num_physical - 1 - watermark)
    growth = UP
    begins_free = ends_free = [True] * num_physical  # whether page p begins above what lies below it, and the reverse
    if chain is not None:
        own = chain.blocks[chain.place]
        growth = _growth(own)
        low, high = _frontiers(chain)
        begin = [_byte(own, p) for p in range(num_physical + 1)]
        begins_free = [begin[p] >= low for p in range(num_physical)]
        ends_free = [high is None or begin[p + 1] <= high for p in range(num_physical)]
        between = [p for p in range(1, num_physical) if begins_free[p] and ends_free[p]]
        if growth == FLOAT and watermark == 0:
            if not between:
                return Room(seat, 0, [], [], [])
            seat = between[0] - 1 + len(between) // 2
    above, below = [], []
    for p in range(seat + watermark + 1, num_physical):
        if not ends_free[p]:
            break
        above.append(p)
    for p in range(seat, 0, -1):
        if not begins_free[p]:
            break
        below.append(p)
    fresh = {UP: above, DOWN: below, FLOAT: above + below}[growth]
    return Room(seat, watermark, above, below, fresh)


def _frontiers(chain: Chain) -> tuple[int, int | None]:
    """Return the byte where what lies below the sub-pool ends, and the one where what lies above it begins, if any."""
    low, high = max(_byte(block, 1) for block in chain.blocks), None  # the sinks, then neighbours
    for j, block in enumerate(chain.blocks):
        seat, span, reach = (_within(n, 0, MOST_PAGES) for n in (block.seat, block.watermark, block.reach))
        below = j < chain.place
        towards = _growth(block) == (UP if below else DOWN)  # else what it may grow to lies on its other side
        leased = max(reach - span, 0) if towards else 0
        if j == chain.place or span + leased == 0:
            continue
        if below:
            low = max(low, _byte(block, seat + span + leased + 1))
        else:
            begin = _byte(block, max(seat + 1 - leased, 0))
            high = begin if high is None else min(high, begin)
    return low, high


def _byte(block: Block, page: int) -> int:
    return _within(block.base, 0, MOST_BASE) + page * _within(block.page_bytes, 1, MOST_PAGE_BYTES)


def _growth(block: Block) -> int:
    return block.growth if block.growth in (DOWN, FLOAT) else UP


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
