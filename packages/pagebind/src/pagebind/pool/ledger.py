"""The host's side of a pool: what is live and where each span lies, moved by the calls alone, and what a lease holds.

Holes are taken before a span grows and freed pages become holes, so every count follows without looking:

    span = live + holes            span = the highest live count since the last retreat
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pagebind.errors import InvalidArgument, OutOfPages, did_you_mean
from pagebind.operation import need_count
from pagebind.pool.chain import Place, Position, bounds, empty, grow
from pagebind.pool.relief import Move, find_moves, fits

Demand = int | Mapping[str, int]
"""Pages by the name of their sub-pool; an int is a demand on the sub-pool whose ids the request table holds."""


@dataclass
class Part:
    """What a lease sets aside in one sub-pool."""

    pages: int
    live: int  # when the lease was opened
    span: int
    seat: int
    change: int = 0  # live pages by eager calls since
    highest: int = 0  # the highest that `change` was


@dataclass
class Lease:
    """Pages set aside for calls whose counts the host does not see: replays of a CUDA graph, calls with `pages=None`.

    `pages` is, by sub-pool, the most that these calls may hold at any moment beyond what was live when they began.
    """

    pages: Mapping[str, int]
    parts: Sequence[Part] = field(repr=False)
    settle_with: Callable[[Lease, Demand, Demand | None], None] = field(repr=False)

    def settle(self, used: Demand, peak: Demand | None = None) -> None:
        """Close the lease: its calls hold `used` pages more than before, and held `peak` more at their highest.

        `used` may be below 0 where they freed more than they took; `peak` is `max(used, 0)` unless given, which is
        right where they only took pages. Sub-pools left out used none. Calls with counts made while the lease was open
        count as made after its own. Raises InvalidArgument, and changes nothing, for counts the lease cannot have.
        """
        self.settle_with(self, used, peak)


class Ledger:
    """Counts and positions of the sub-pools of one chain, in Python ints."""

    def __init__(
        self, places: Sequence[Place], rows_of: str, tell_reach: Callable[[int, int], None] | None = None
    ) -> None:
        self.places = list(places)
        self.positions: list[Position] = [empty(place) for place in places]
        self.lease: Lease | None = None
        self._index = {place.name: i for i, place in enumerate(places)}
        self._rows_of = rows_of
        self._tell_reach = tell_reach or (lambda index, reach: None)
        self._floats = any(place.grows == "float" for place in places)

    def index(self, name: str) -> int:
        """Return the place of a sub-pool; raises InvalidArgument for a name that none has."""
        found = self._index.get(name)
        if found is None:
            raise InvalidArgument(
                f"sub-pool {name!r} does not exist; this pool has {', '.join(map(repr, self._index))}"
                f"{did_you_mean(str(name), self._index)}"
            )
        return found

    def spread(self, demand: Demand, least: int = 0) -> list[int]:
        """Return a demand as a count for each sub-pool; raises InvalidArgument for names and counts that cannot be."""
        if not isinstance(demand, Mapping):
            demand = {self._rows_of: demand}
        counts = [0] * len(self.places)
        for name, pages in demand.items():
            need_count(f"the pages of {name!r}", pages, least)
            counts[self.index(name)] = pages
        return counts

    def leased(self, index: int) -> int:
        """Return the pages that the open lease sets aside in a sub-pool."""
        return self.lease.parts[index].pages if self.lease is not None else 0

    def fits(self, counts: Sequence[int], gate_closed: bool) -> bool:
        """Return whether `counts` pages can be taken together, beside what is leased."""
        if self._unknown(counts):
            return False
        return fits(self.places, self.positions, self._with_leased(counts), self._may_move(gate_closed))

    def most(self, index: int, gate_closed: bool) -> int:
        """Return how many pages one sub-pool can take, alone."""
        low, high = 0, self.places[index].most - self.positions[index].live + 1
        counts = [0] * len(self.places)
        while high - low > 1:
            counts[index] = (low + high) // 2
            low, high = (counts[index], high) if self.fits(counts, gate_closed) else (low, counts[index])
        return low

    def moves_for(self, counts: Sequence[int], gate_closed: bool) -> list[Move]:
        """Return what must retreat so that `counts` pages can be taken; raises OutOfPages where nothing helps."""
        self._need_settled_float(counts)
        moves = find_moves(self.places, self.positions, self._with_leased(counts), may_move=self._may_move(gate_closed))
        if moves is None:
            raise self._out_of_pages(counts, gate_closed)
        return moves

    def take(self, counts: Sequence[int]) -> None:
        """Account for pages that were taken: by the ends first, then by the float."""
        for i in self.order():
            at, pages = self.positions[i], counts[i]
            grow(self.places, self.positions, i, pages - at.holes)
            at.live += pages
            if self.lease is not None:
                part = self.lease.parts[i]
                part.change += pages
                part.highest = max(part.highest, part.change)
        self._set_reaches()

    def order(self) -> list[int]:
        """Return the sub-pools in the order in which a joint demand is served: what floats takes what is left."""
        return sorted(range(len(self.places)), key=lambda i: self.places[i].grows == "float")

    def in_order(self, names: Collection[str]) -> list[str]:
        """Return names of sub-pools in that order, each once."""
        return [self.places[i].name for i in self.order() if self.places[i].name in names]

    def need_live(self, counts: Sequence[int]) -> None:
        """Raise InvalidArgument, changing nothing, where more pages are given back than can be live."""
        for i, pages in enumerate(counts):
            most = self.positions[i].live + self.leased(i)
            if pages > most:
                raise InvalidArgument(
                    f"{pages} pages are given back to {self.places[i].name!r}, {most} are live: count the pages that "
                    "come back again"
                )

    def give(self, counts: Sequence[int]) -> None:
        """Account for pages that were freed."""
        for i, pages in enumerate(counts):
            self.positions[i].live -= pages
            if self.lease is not None:
                self.lease.parts[i].change -= pages
        self._set_reaches()

    def retreat(self, move: Move) -> None:
        """Account for a compaction."""
        at = self.positions[move.index]
        at.seat += move.retreat + move.skip if move.side == "low" else -(move.fresh + move.skip)
        at.span += move.fresh - move.retreat

    def need_no_lease(self) -> None:
        """Raise InvalidArgument while a lease is open: how far its calls reach is not known before it is settled."""
        if self.lease is not None:
            raise InvalidArgument(
                f"a lease of {dict(self.lease.pages)} pages is open, and how far its calls reach is not known before "
                "settle(used): settle it first"
            )

    def open_lease(self, counts: Sequence[int]) -> Lease:
        """Set pages aside that fit already."""
        named = {place.name: n for place, n in zip(self.places, counts, strict=True) if n}
        parts = [Part(n, at.live, at.span, at.seat) for n, at in zip(counts, self.positions, strict=True)]
        self.lease = Lease(named, parts, self._settle)
        self._set_reaches()
        return self.lease

    def set_found(self, index: int, seat: int, span: int, live: int) -> None:
        """Set a sub-pool's counts from what its state block holds."""
        at = self.positions[index]
        at.seat, at.span, at.live = seat, span, live

    def _settle(self, lease: Lease, used: Demand, peak: Demand | None) -> None:
        if lease is not self.lease:
            raise InvalidArgument("this lease is not open; it was settled before")
        most = max(place.num_physical for place in self.places)
        held = self.spread(used, -most)
        high = [max(n, 0) for n in held] if peak is None else self.spread(peak)
        for place, part, n, top in zip(self.places, lease.parts, held, high, strict=True):
            if not -part.live <= n <= top <= part.pages:
                raise InvalidArgument(
                    f"a lease of {part.pages} pages of {place.name!r}, {part.live} live when it opened, cannot settle "
                    f"with used={n}, peak={top}: used <= peak <= pages must hold"
                )
        for i in self.order():
            at, part = self.positions[i], lease.parts[i]
            live = part.live + held[i] + part.change
            span = max(part.span, part.live + high[i], part.live + held[i] + part.highest)
            # Eager takes grew the span as if the lease had used nothing.
            at.seat, at.span = part.seat, part.span
            grow(self.places, self.positions, i, span - part.span)
            at.live = live
        self.lease = None
        self._set_reaches()

    def _with_leased(self, counts: Sequence[int]) -> list[int]:
        return [n + self.leased(i) for i, n in enumerate(counts)]

    def _may_move(self, gate_closed: bool) -> bool:
        return not gate_closed and self.lease is None

    def _need_settled_float(self, counts: Sequence[int]) -> None:
        if self.lease is not None and self._unknown(counts):
            raise InvalidArgument(
                f"pages are asked beside a float while a lease of {dict(self.lease.pages)} pages is open: where spans "
                "lie is not known before settle(used); settle it first, or take from the lease (pages=None, on_lease)"
            )

    def _unknown(self, counts: Sequence[int]) -> bool:
        # To which side a float grew depends on the order of takes, which the host does not know under a lease.
        return self.lease is not None and self._floats and any(counts)

    def _set_reaches(self) -> None:
        # How far an end's span may be by the calls on the lease. The device is told beside a float, which can choose
        # where it grows; ends cannot.
        for i, (place, at) in enumerate(zip(self.places, self.positions, strict=True)):
            part = self.lease.parts[i] if self.lease is not None and place.grows != "float" else None
            reach = part.live + part.pages + part.highest if part is not None and part.pages else 0
            if reach != at.reach:
                at.reach = reach
                if self._floats:
                    self._tell_reach(i, reach)

    def _out_of_pages(self, counts: Sequence[int], gate_closed: bool) -> OutOfPages:
        # Told of the first sub-pool that cannot serve its part alone, or else of the one that is asked for most.
        alone = [self.most(i, gate_closed) for i in range(len(counts))]
        short = [i for i, n in enumerate(counts) if n > alone[i]]
        i = short[0] if short else max(range(len(counts)), key=lambda j: counts[j])
        asked = {p.name: n for p, n in zip(self.places, counts, strict=True) if n}
        jointly = "" if short else f", together with the rest of {asked}"
        what = "pages" if len(self.places) == 1 else f"pages of {self.places[i].name!r}{jointly}"
        return OutOfPages(counts[i], alone[i], self.positions[i].holes, self.places[i].most, what)


def span_bytes(places: Sequence[Place], positions: Sequence[Position], index: int) -> tuple[int, int]:
    """Return the first byte of a sub-pool's span and the byte past it."""
    place, at = places[index], positions[index]
    return place.byte(at.seat + 1), place.byte(at.end)


__all__ = ["Demand", "Lease", "Ledger", "Part", "bounds", "span_bytes"]
