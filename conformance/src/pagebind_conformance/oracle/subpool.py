"""The tables and positions of one sub-pool as lists and ints, and the two things done with them one page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagebind_conformance.oracle.span import Chain, Room, room


class SubPool(NamedTuple):
    """Tables, stacks and positions of one sub-pool. Cells of a stack at or above its top mean nothing."""

    v2p: list[int]  # [num_virtual + 1]
    p2v: list[int]  # [num_physical + 1]
    virtual_stack: list[int]  # [num_virtual]
    hole_stack: list[int]  # [num_physical]
    virtual_top: int
    hole_top: int
    watermark: int
    epoch: int = 0
    seat: int = 0
    chain: Chain | None = None

    def copy(self) -> SubPool:
        """Return a copy that shares no list."""
        return self._replace(
            v2p=list(self.v2p),
            p2v=list(self.p2v),
            virtual_stack=list(self.virtual_stack),
            hole_stack=list(self.hole_stack),
        )

    def room(self) -> Room:
        """Return where the span lies and what it may take."""
        return room(len(self.p2v) - 1, self.seat, self.watermark, self.chain)

    def tops(self) -> tuple[int, int]:
        """Return the tops of both stacks, as far as there are cells."""
        most = len(self.virtual_stack), len(self.hole_stack)
        return min(max(self.virtual_top, 0), most[0]), min(max(self.hole_top, 0), most[1])


def take(
    pool: SubPool, asked: int, borrowed: Sequence[int] | None = None
) -> tuple[SubPool, list[tuple[int, int]], dict[str, int]]:
    """Take `asked` pages off the stacks and bind them to ids off the stack, or to the `borrowed` ones.

    Returns the sub-pool afterwards, a (virtual, physical) pair per page, (0, 0) where there is none, and the counters.
    """
    after = pool.copy()
    num_virtual, num_physical = len(pool.v2p) - 1, len(pool.p2v) - 1
    virtual_top, hole_top = pool.tops()
    holes = pool.hole_stack[:hole_top][::-1]
    ids = pool.virtual_stack[:virtual_top][::-1] if borrowed is None else borrowed
    around = pool.room()
    supply = list(zip(ids, holes + around.fresh, strict=False))[:asked]
    pairs = []
    bad = 0
    for v, p in supply:
        if 0 < v < num_virtual and 0 < p < num_physical and after.v2p[v] == -1 and after.p2v[p] == -1:
            after.v2p[v], after.p2v[p] = p, v
            pairs.append((v, p))
        else:
            bad += 1
            pairs.append((0, 0))
    found = len(supply)
    pairs += [(0, 0)] * (asked - found)
    grown = around.fresh[: max(found - hole_top, 0)]
    after = after._replace(
        hole_top=hole_top - min(found, hole_top),
        watermark=around.watermark + len(grown),
        virtual_top=virtual_top - found if borrowed is None else pool.virtual_top,
    )
    if grown:
        after = after._replace(seat=around.seat - sum(p <= around.seat for p in grown))
    return after, pairs, {"starved": asked - found, "bad_bind": bad}


def give_back(
    pool: SubPool, ids: Sequence[int], *, borrowed: bool = False
) -> tuple[SubPool, list[int], dict[str, int]]:
    """Unbind `ids` in order and push what was released; where one repeats, its first lane is served.

    Ids that are `borrowed` go on no stack, and those that have no page before the call are holes. Returns the sub-pool
    afterwards, the page each lane released (-1 where none), and the counters.
    """
    after = pool.copy()
    num_virtual, num_physical = len(pool.v2p) - 1, len(pool.p2v) - 1
    freed = []
    virtual_top, hole_top = pool.tops()
    double = bad = 0
    for v in ids:
        page = -1
        if v < 0 or (borrowed and 0 < v < num_virtual and pool.v2p[v] < 0):
            pass  # a hole
        elif v == 0 or v >= num_virtual:
            bad += 1
        elif after.v2p[v] < 0:
            double += 1
        elif not 0 < after.v2p[v] < num_physical:
            bad += 1
        else:
            page = after.v2p[v]
            after.v2p[v] = -1
            after.p2v[page] = -1
            if not borrowed and virtual_top < num_virtual:  # only ids bound by hand could be more
                after.virtual_stack[virtual_top] = v
                virtual_top += 1
            if hole_top < num_physical:
                after.hole_stack[hole_top] = page
                hole_top += 1
        freed.append(page)
    if ids:
        after = after._replace(hole_top=hole_top, virtual_top=pool.virtual_top if borrowed else virtual_top)
    return after, freed, {"double_free": double, "bad_free": bad}
