"""What must retreat so that a demand fits: the exact answer, in host ints.

    up frontier L    float needs N = live + asked pages between X and Y    down frontier H

        sinks |#### up ####|      |.. X ... float ... Y ..|      |#### down ####|
                           L                                     H

An end may retreat by its holes, a float to wherever N pages fit between its neighbours: it retreats at the side that a
neighbour crosses, into holes first, then into fresh pages at its other side. Of all choices that make the demand fit,
the one that retreats the fewest bytes is taken; of equal ones, the one where the lower sub-pool retreats more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagebind.ops.compact import Side
from pagebind.pool.chain import Place, Position


@dataclass(frozen=True)
class Move:
    """One compaction: sub-pool `index` retreats by `retreat` pages at `side`; `fresh` and `skip` as in compact."""

    index: int
    side: Side
    retreat: int
    fresh: int = 0
    skip: int = 0


def fits(places: Sequence[Place], positions: Sequence[Position], demand: Sequence[int], may_move: bool) -> bool:
    """Return whether every sub-pool can take its `demand` of pages, together, after some choice of moves."""
    return _Pressure(places, positions, demand, may_move).feasible()


def find_moves(
    places: Sequence[Place], positions: Sequence[Position], demand: Sequence[int], may_move: bool
) -> list[Move] | None:
    """Return the moves that make room for a demand, in order, none where it fits already; None if nothing does."""
    if fits(places, positions, demand, may_move=False):
        return []
    pressure = _Pressure(places, positions, demand, may_move)
    return pressure.cheapest() if pressure.feasible() else None


class _Pressure:
    """The frontiers of a chain after a demand, as functions of how far its ends retreat."""

    def __init__(
        self, places: Sequence[Place], positions: Sequence[Position], demand: Sequence[int], may_move: bool
    ) -> None:
        self.places, self.positions, self.may_move = places, positions, may_move
        self.needed = [at.live + n for at, n in zip(positions, demand, strict=True)]
        # Who outran a lease may be past its cap, which is no reason to refuse the others.
        self.within_caps = all(
            n <= place.most for n, asked, place in zip(self.needed, demand, places, strict=True) if asked
        )
        by_growth = {place.grows: i for i, place in enumerate(places)}
        self.up, self.down, self.float = (by_growth.get(g) for g in ("up", "down", "float"))
        self.sinks_end = max(p.base + p.page_bytes for p in places)

    def most(self, index: int | None) -> int:
        """Return by how many pages an end may usefully retreat."""
        if index is None or not self.may_move:
            return 0
        return max(self.positions[index].span - self.needed[index], 0)

    def span(self, index: int, retreat: int) -> int:
        """Return the pages of an end's span then; what a lease's calls may have grown it to counts as grown."""
        at = self.positions[index]
        return max(at.span - retreat, self.needed[index], at.reach)

    def low(self, retreat: int) -> int:
        """Return the byte where the lower end's span ends once it retreated and took its demand."""
        if self.up is None:
            return self.sinks_end
        place = self.places[self.up]
        span = self.span(self.up, retreat)
        return place.byte(place.first + span) if span else self.sinks_end

    def high(self, retreat: int) -> int:
        """Return the byte where the upper end's span begins then; past every page where it has none."""
        span = 0 if self.down is None else self.span(self.down, retreat)
        if self.down is None or span == 0:
            return max(p.byte(p.num_physical) for p in self.places)
        place = self.places[self.down]
        return place.byte(place.num_physical - span)

    def frontiers(self, index: int | None, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `low` (step -1) or `high` (1), and the bytes that retreated, by retreat from 0 on; int64, on the host.

        Every page of a retreat moves the frontier by one; only where nothing is left it jumps.
        """
        most, frontier = self.most(index), self.high if step > 0 else self.low
        retreat = torch.arange(most + 1, device="cpu")
        page_bytes = 0 if index is None else self.places[index].page_bytes
        found = frontier(0) + retreat * (step * page_bytes)
        found[-1] = frontier(most)
        return found, retreat * page_bytes

    def room(self, low: int, high: int) -> tuple[int, int]:
        """Return the first page of the float above byte `low`, and the page past its last one below `high`."""
        assert self.float is not None
        place = self.places[self.float]
        return max(-((place.base - low) // place.page_bytes), place.first), min(
            (high - place.base) // place.page_bytes, place.num_physical
        )

    def feasible(self) -> bool:
        """Return whether some choice fits."""
        if not self.within_caps:
            return False
        low, high = self.low(self.most(self.up)), self.high(self.most(self.down))
        if low > high or not self._ends_fit():
            return False
        if self.float is None:
            return True
        at, needed = self.positions[self.float], self.needed[self.float]
        if not self.may_move and at.span:
            first, end = self.room(low, high)
            return first <= at.seat + 1 and at.end <= end and end - first >= needed
        if needed == 0:
            return True
        first, end = self.room(low, high)
        return end - first >= needed

    def _ends_fit(self) -> bool:
        # Alone, an end is bounded by the buffer.
        ends = [i for i in (self.up, self.down) if i is not None]
        return all(self.needed[i] <= self.places[i].num_physical - self.places[i].first for i in ends)

    def cheapest(self) -> list[Move]:
        """Return the moves of the cheapest choice; some choice fits."""
        (lows, low_cost), (highs, high_cost) = self.frontiers(self.up, -1), self.frontiers(self.down, 1)
        if self.float is None:
            pair = _cheapest_pair(lows, highs, 0, low_cost, high_cost)
            assert pair is not None
            return self._moves(pair[1], pair[2], keep_float=True)
        place, at, needed = self.places[self.float], self.positions[self.float], self.needed[self.float]
        found = None
        if needed or at.span:
            size = place.page_bytes
            first = (-((place.base - lows) // size)).clamp(min=place.first)
            end = ((highs - place.base) // size).clamp(max=place.num_physical)
            low_retreat = (first - (at.seat + 1)).clamp(0, at.span)
            high_retreat = (at.end - end).clamp(0, at.span)
            found = _cheapest_pair(first, end, needed, low_cost + low_retreat * size, high_cost + high_retreat * size)
        if needed == 0:  # nothing of it stays
            gone = _cheapest_pair(lows, highs, 0, low_cost, high_cost)
            if gone is not None:
                cost = gone[0] + at.span * place.page_bytes
                if found is None or cost < found[0]:
                    return self._moves(gone[1], gone[2], keep_float=False)
        assert found is not None
        return self._moves(found[1], found[2], keep_float=True)

    def _moves(self, up: int, down: int, *, keep_float: bool) -> list[Move]:
        moves = []
        if self.up is not None and up:
            moves.append(Move(self.up, "high", up))
        if self.down is not None and down:
            moves.append(Move(self.down, "low", down))
        if self.float is None or self.positions[self.float].span == 0:
            return moves
        at = self.positions[self.float]
        if not keep_float:
            return [*moves, Move(self.float, "high", at.span)]
        first, end = self.room(self.low(up), self.high(down))
        low, high = (min(max(r, 0), at.span) for r in (first - (at.seat + 1), at.end - end))
        sides: tuple[tuple[Side, int, int], ...] = (("low", low, first - at.end), ("high", high, at.seat + 1 - end))
        for side, retreat, beyond in sides:
            if retreat:
                fresh = max(retreat - at.holes, 0) if not (low and high) else 0
                moves.append(Move(self.float, side, retreat, fresh, max(beyond, 0) if fresh else 0))
        return moves


def _cheapest_pair(
    low: torch.Tensor, high: torch.Tensor, needed: int, low_cost: torch.Tensor, high_cost: torch.Tensor
) -> tuple[int, int, int] | None:
    """Return cost and indices (i, j) of the cheapest pair with `high[j] - low[i] >= needed`; of equals the highest i.

    `high`, int64 `[m]`, never falls; among equal j the lowest is taken. None where no pair fits.
    """
    m = high.shape[0]
    # The cheapest j from each index on, its number in the low digits.
    keys = (high_cost * m + torch.arange(m, device="cpu")).flip(0).cummin(0).values.flip(0)
    begin = torch.searchsorted(high, low + needed)
    able = begin < m
    if not bool(able.any()):
        return None
    best = keys[begin.clamp(max=m - 1)]
    cost = (low_cost + best // m).masked_fill(~able, 2**62)
    least = int(cost.min())
    i = int((cost == least).nonzero().max())
    return least, i, int(best[i]) % m
