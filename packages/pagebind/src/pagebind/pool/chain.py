"""The sub-pools that share one buffer: where their pages lie, and what the host knows of each span.

    bytes   |sinks|  up: pages from below ..>     <.. float ..>     <.. pages from above: down  |
            0     sinks_end                                                              total_bytes

Page p of sub-pool i lies at `base_i + p * page_bytes_i`. The sinks, which are the pages 0, lie one after another at the
start, so `base_i` is the sum of the page sizes before it; data pages lie above them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pagebind.errors import InvalidArgument
from pagebind.operation import INT32_MAX, need_choice, need_count
from pagebind.words import DOWN, FLOAT, UP

Grows = Literal["up", "down", "float"]
"""Where a sub-pool's span grows: to higher pages, to lower ones, or between two others to either side."""

GROWTH_WORDS: dict[str, int] = {"up": UP, "down": DOWN, "float": FLOAT}


@dataclass(frozen=True, kw_only=True)
class SubPool:
    """What a sub-pool of a `UnifiedPool` is made of.

    Pages of `page_size` tokens and `page_bytes` bytes; `multiplier` scales a page into the id space of the tensors that
    kernels read. `ids_of` names the sub-pool whose virtual ids it borrows: one id, a page in each. `zero_on_alloc` has
    the bytes of every page cleared when it is handed out. `max_pages` caps it below what the buffer has room for.
    """

    name: str
    page_size: int
    page_bytes: int
    grows: Grows
    multiplier: int = 1
    ids_of: str | None = None
    zero_on_alloc: bool = False
    max_pages: int | None = None

    def __post_init__(self) -> None:
        need_count(f"page_size of sub-pool {self.name!r}", self.page_size, 1, INT32_MAX)
        need_count(f"page_bytes of sub-pool {self.name!r}", self.page_bytes, 1, 2**30)
        need_count(f"multiplier of sub-pool {self.name!r}", self.multiplier, 1)
        need_choice(f"grows of sub-pool {self.name!r}", self.grows, ("up", "down", "float"))
        if self.max_pages is not None:
            need_count(f"max_pages of sub-pool {self.name!r}", self.max_pages, 0, INT32_MAX)


@dataclass(frozen=True)
class Place:
    """Where a sub-pool's pages lie: those from `first` to `num_physical - 1` hold data."""

    name: str
    grows: Grows
    base: int  # bytes
    page_bytes: int
    first: int  # page
    num_physical: int  # pages, with the sink
    most: int  # pages it may have live

    def byte(self, page: int) -> int:
        """Return where a page begins."""
        return self.base + page * self.page_bytes


@dataclass
class Position:
    """The host's counts of one sub-pool, in pages: the span is `(seat, seat + span]`, and span = live + holes."""

    seat: int
    live: int = 0
    span: int = 0
    reach: int = 0  # pages its span may grow to under the open lease

    @property
    def holes(self) -> int:
        """Pages inside the span that are free."""
        return self.span - self.live

    @property
    def end(self) -> int:
        """The page past the span."""
        return self.seat + 1 + self.span


def lay_out(total_bytes: int, sub_pools: Sequence[SubPool]) -> list[Place]:
    """Return the places of sub-pools in a buffer, in their order; raises InvalidArgument for what cannot be."""
    need_count("total_bytes", total_bytes, 1)
    _need_chain(sub_pools)
    sinks_end = sum(s.page_bytes for s in sub_pools)
    if sinks_end > total_bytes:
        raise InvalidArgument(
            f"total_bytes is {total_bytes}; the sinks alone, one page of each sub-pool, take {sinks_end}"
        )
    places = []
    base = 0
    for s in sub_pools:
        first = -((base - sinks_end) // s.page_bytes)
        num_physical = max((total_bytes - base) // s.page_bytes, first)
        need_count(f"the pages of sub-pool {s.name!r} in total_bytes={total_bytes}", num_physical, 1, INT32_MAX)
        most = num_physical - first
        if s.max_pages is not None:
            most = min(s.max_pages, most)
            if s.grows == "up":  # never comes further: tables of ranks whose buffers differ are then equal
                num_physical = first + most
        places.append(Place(s.name, s.grows, base, s.page_bytes, first, num_physical, most))
        base += s.page_bytes
    return places


def empty(place: Place) -> Position:
    """Return the position of a sub-pool that holds nothing."""
    return Position(seat=place.num_physical - 1 if place.grows == "down" else place.first - 1)


def bounds(places: Sequence[Place], positions: Sequence[Position], index: int) -> tuple[int, int]:
    """Return the first page that sub-pool `index` may hold and the page past the last, between its neighbours.

    The same rule as on the device (`pagebind.ops.span.read_span`): an empty neighbour without a reach is no bound.
    """
    own = places[index]
    low = max(p.base + p.page_bytes for p in places)
    high = own.byte(own.num_physical)
    for j, (place, at) in enumerate(zip(places, positions, strict=True)):
        leased = max(at.reach - at.span, 0)
        if j == index or at.span + leased == 0:
            continue
        if j < index:
            low = max(low, place.byte(at.end + leased))
        else:
            high = min(high, place.byte(at.seat + 1 - leased))
    return max(-((own.base - low) // own.page_bytes), 1), max((high - own.base) // own.page_bytes, 0)


def grow(places: Sequence[Place], positions: Sequence[Position], index: int, pages: int) -> None:
    """Move the span of a sub-pool as the device does when growth takes `pages`, which fit."""
    at, grows = positions[index], places[index].grows
    if pages <= 0:
        return
    down = 0
    if grows == "down":
        down = pages
    elif grows == "float":
        first, end = bounds(places, positions, index)
        if at.span == 0:
            at.seat = first - 1 + (end - first) // 2
        down = max(pages - (end - at.end), 0)
    at.seat -= down
    at.span += pages


def _need_chain(sub_pools: Sequence[SubPool]) -> None:
    names = [s.name for s in sub_pools]
    if not names or len(set(names)) < len(names):
        raise InvalidArgument(f"sub_pools are named {names}; there must be one, and each needs a name of its own")
    order = [s.grows for s in sub_pools]
    if order not in (["up"], ["down"], ["up", "down"], ["up", "float", "down"]):
        raise InvalidArgument(
            f"sub_pools grow {', '.join(order)}; by rising address they must be one end, an end that grows up and one "
            "that grows down, or a float between two such ends"
        )
    for s in sub_pools:
        if s.ids_of is None:
            continue
        owner = next((o for o in sub_pools if o.name == s.ids_of), None)
        if owner is None or owner is s or owner.ids_of is not None:
            raise InvalidArgument(
                f"sub-pool {s.name!r} has ids_of={s.ids_of!r}, which owns no ids; owners: "
                f"{', '.join(repr(o.name) for o in sub_pools if o.ids_of is None) or 'none'}"
            )
        if owner.page_size != s.page_size:
            raise InvalidArgument(
                f"sub-pool {s.name!r} has pages of {s.page_size} tokens and borrows ids of {owner.name!r}, whose pages "
                f"have {owner.page_size}: one id is one page in both, so they must be equal"
            )
        if owner.grows == "float":
            raise InvalidArgument(
                f"sub-pool {owner.name!r} floats and lends its ids to {s.name!r}; let the borrower float instead"
            )
