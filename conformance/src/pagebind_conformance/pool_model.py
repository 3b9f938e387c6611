"""What a unified pool must hold, on plain Python: who is live where, how far each span reaches, what else fits.

It shares no code with the core. What fits is found by trying: every retreat of both ends, every place of the float.

    bytes   |sinks| pages [begin, end) of an end up ..>   <.. of a float ..>   <.. of an end down |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a sub-pool is made of; fields as in `pagebind.pool.SubPool`."""

    name: str
    page_size: int
    page_bytes: int
    grows: str
    multiplier: int = 1
    ids_of: str | None = None
    zero_on_alloc: bool = False
    max_pages: int | None = None


@dataclass
class Part:
    """One sub-pool: its place in the buffer, its span `[begin, end)` in pages, and the ids that have a page in it."""

    kind: Kind
    base: int  # bytes
    first: int  # the lowest page that holds data
    num: int  # past the highest one
    begin: int
    end: int
    live: dict[int, int] = field(default_factory=dict)  # id -> marker, which its page's bytes hold
    stack: list[int] = field(default_factory=list)  # free ids, the next one last
    counters: Counter[str] = field(default_factory=Counter)
    # Under a lease: pages set aside, what was live when it was opened, what its calls hold and held at most beyond
    # that, and how calls with counts changed what is live since.
    leased: int = 0
    opened: int = 0
    held: int = 0
    peak: int = 0
    change: int = 0
    highest: int = 0

    @property
    def span(self) -> int:
        """Pages between the frontiers."""
        return self.end - self.begin

    @property
    def holes(self) -> int:
        """Pages between the frontiers that are free."""
        return self.span - len(self.live)

    @property
    def told(self) -> int:
        """Live pages as far as the host was told: without what calls on the lease took."""
        return len(self.live) - self.held

    @property
    def most(self) -> int:
        """Pages that may be live at once."""
        room = self.num - self.first
        return room if self.kind.max_pages is None else min(room, self.kind.max_pages)

    @property
    def reach(self) -> int:
        """Pages the span of an end may come to have under the lease."""
        return self.opened + self.leased + self.highest if self.leased and self.kind.grows != "float" else 0

    def byte(self, page: int) -> int:
        """Return where a page begins."""
        return self.base + page * self.kind.page_bytes


class Choice(NamedTuple):
    """A way to make a demand fit: pages by which the parts retreat, and the pages `[first, end)` a float may hold."""

    up: int
    middle: int
    down: int
    first: int
    end: int


class Model:
    """The sub-pools of one buffer."""

    def __init__(self, total_bytes: int, kinds: tuple[Kind, ...]) -> None:
        self.total_bytes = total_bytes
        self.sinks_end = sum(kind.page_bytes for kind in kinds)
        self.gate_closed = False
        self.lease_open = False
        self.parts: dict[str, Part] = {}
        self._markers = 0
        base = 0
        for kind in kinds:
            size = kind.page_bytes
            whole = [p for p in range(total_bytes // size) if base + p * size >= self.sinks_end]
            first = whole[0] if whole else -(-(self.sinks_end - base) // size)
            room = sum(base + (p + 1) * size <= total_bytes for p in whole)
            if kind.grows == "up" and kind.max_pages is not None:
                room = min(room, kind.max_pages)
            num = first + room
            begin = num if kind.grows == "down" else first
            part = Part(kind, base, first, num, begin, begin)
            if kind.ids_of is None:
                part.stack = list(range(num - first, 0, -1))
            self.parts[kind.name] = part
            base += size
        by_growth = {part.kind.grows: part for part in self.parts.values()}
        self.up, self.float, self.down = (by_growth.get(grows) for grows in ("up", "float", "down"))

    def in_order(self) -> list[Part]:
        """Return the parts in the order in which a joint demand is served: the ends, then what floats."""
        return sorted(self.parts.values(), key=lambda part: part.kind.grows == "float")

    # ---- what fits ---------------------------------------------------------------------------------------------------

    def fits(self, demand: Mapping[str, int]) -> bool:
        """Return whether all of a demand can be met now."""
        if self.unknown(demand):
            return False
        moving = [False] if self.gate_closed or self.lease_open else [False, True]
        return any(True for may_move in moving for _ in self._choices(demand, may_move))

    def unknown(self, demand: Mapping[str, int]) -> bool:
        """Return whether a take has to wait for a lease to be settled: beside a float, where spans lie is not known."""
        return self.lease_open and self.float is not None and any(demand.values())

    def most(self, *names: str) -> int:
        """Return the most pages that some sub-pools can take, each of them, if no other takes any."""
        fitting = [n for n in range(self.parts[names[0]].most + 2) if self.fits(dict.fromkeys(names, n))]
        return fitting[-1] if fitting else 0

    def cheapest(self, demand: Mapping[str, int]) -> Choice:
        """Return what retreats for a demand that fits: the fewest bytes; of equal ones, more of the lower sub-pool."""
        if any(True for _ in self._choices(demand, may_move=False)):
            return Choice(0, 0, 0, 0, 0)
        sizes = [part.kind.page_bytes if part is not None else 0 for part in (self.up, self.float, self.down)]

        def price(choice: Choice) -> tuple[int, int, int]:
            retreats = (choice.up, choice.middle, choice.down)
            cost = sum(pages * size for pages, size in zip(retreats, sizes, strict=True))
            return cost, -choice.up, -choice.middle

        return min(self._choices(demand, may_move=True), key=price)

    def _choices(self, demand: Mapping[str, int], may_move: bool) -> Iterator[Choice]:
        """Yield every way to make a demand fit."""
        needed = {name: part.told + part.leased + demand.get(name, 0) for name, part in self.parts.items()}
        asked = [part for name, part in self.parts.items() if needed[name] > part.told]
        if any(needed[part.kind.name] > part.most for part in asked):
            return
        known: dict[tuple[int, int], int | None] = {}
        for up in self._retreats(self.up, may_move):
            low = self._frontier(self.up, up, needed, self.sinks_end)
            for down in self._retreats(self.down, may_move):
                high = self._frontier(self.down, down, needed, self.total_bytes)
                if low > high:
                    continue
                if self.float is None:
                    yield Choice(up, 0, down, 0, 0)
                    continue
                first, end = self._between(self.float, low, high)
                if (first, end) not in known:
                    known[first, end] = _left(self.float, first, end, needed[self.float.kind.name], may_move)
                middle = known[first, end]
                if middle is not None:
                    yield Choice(up, middle, down, first, end)

    def _retreats(self, part: Part | None, may_move: bool) -> range:
        return range(part.span - part.told + 1 if part is not None and may_move else 1)

    def _frontier(self, part: Part | None, retreat: int, needed: Mapping[str, int], nothing: int) -> int:
        # The byte where an end's span meets the others once it retreated and took its part of the demand.
        span = 0 if part is None else max(part.span - retreat, needed[part.kind.name], part.reach)
        if part is None or span == 0:
            return nothing
        return part.byte(part.num - span if part.kind.grows == "down" else part.first + span)

    def _between(self, part: Part, low: int, high: int) -> tuple[int, int]:
        pages = [p for p in range(part.first, part.num) if part.byte(p) >= low and part.byte(p + 1) <= high]
        return (pages[0], pages[-1] + 1) if pages else (part.num, part.num)

    # ---- what happens ------------------------------------------------------------------------------------------------

    def bounds(self, part: Part) -> tuple[int, int]:
        """Return the pages `[first, end)` that a part may hold between its neighbours as they are."""
        low, high, below = self.sinks_end, self.total_bytes, True
        for other in self.parts.values():
            if other is part:
                below = False
            elif below and max(other.span, self._kept_free(other)):
                low = max(low, other.byte(max(other.end, other.begin + self._kept_free(other))))
            elif not below and max(other.span, self._kept_free(other)):
                high = min(high, other.byte(min(other.begin, other.end - self._kept_free(other))))
        return self._between(part, low, high)

    def _kept_free(self, part: Part) -> int:
        # Only beside a float are leased pages kept free on the device: ends cannot choose where they grow.
        return part.reach if self.float is not None else 0

    def found(self, part: Part, pages: int) -> int:
        """Return how many of `pages` pages a call would find."""
        first, end = self.bounds(part)
        above, below = max(end - part.end, 0), max(part.begin - first, 0)
        if part.span == 0 and (first == end or part.kind.grows == "float"):
            above, below = end - first, 0
        room = {"up": above, "down": below, "float": above + below}[part.kind.grows]
        return min(pages, part.holes + room)

    def grow(self, part: Part, pages: int) -> None:
        """Move a span's frontiers outwards by `pages`, which are there."""
        if pages <= 0:
            return
        up = pages
        if part.kind.grows == "down":
            up = 0
        elif part.kind.grows == "float":
            first, end = self.bounds(part)
            if part.span == 0:
                part.begin = part.end = first + (end - first) // 2
            up = min(pages, end - part.end)
        part.end += up
        part.begin -= pages - up

    def take(self, part: Part, ids: list[int]) -> None:
        """Give a page to each of `ids`: holes first, then growth."""
        self.grow(part, len(ids) - part.holes)
        for v in ids:
            self._markers += 1
            part.live[v] = self._markers

    def relieve(self, demand: Mapping[str, int]) -> int:
        """Make room for a demand that fits; return the pages that retreated."""
        up, middle, down, first, end = self.cheapest(demand)
        if self.up is not None:
            self.up.end -= up
        if self.down is not None:
            self.down.begin += down
        part = self.float
        if part is not None and middle:
            span = max(part.span - middle, len(part.live))
            from_below, from_above = first > part.begin, part.end > end
            if from_below and from_above:
                part.begin, part.end = first, end
            elif from_below:
                part.begin, part.end = first, first + span
            else:
                part.begin, part.end = end - span, end
            if span == 0:
                part.begin = part.end
        return up + middle + down

    def retreat(self, part: Part, pages: int, side: str) -> None:
        """Close `pages` holes at one end; an end of the buffer knows only one."""
        if part.kind.grows == "up" or (part.kind.grows == "float" and side == "high"):
            part.end -= pages
        else:
            part.begin += pages


def _left(part: Part, first: int, end: int, needed: int, may_move: bool) -> int | None:
    """Return the fewest pages of a float's span that it leaves to lie in `[first, end)`, `needed` pages long.

    None where it cannot. Where nothing may move, it lies where it lay, and longer.
    """
    if not may_move and part.span:
        return 0 if first <= part.begin and part.end <= end and end - first >= needed else None
    best = part.span if needed == 0 else None
    for a in range(first, end):
        for b in range(a + max(needed, 1), end + 1):
            kept = max(min(b, part.end) - max(a, part.begin), 0)
            if best is None or part.span - kept < best:
                best = part.span - kept
    return best
