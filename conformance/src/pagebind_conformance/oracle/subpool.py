"""The tables and positions of one sub-pool as lists and ints, and the two things done with them one page at a time."""

from __future__ import annotations

from typing import NamedTuple


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

    def copy(self) -> SubPool:
        """Return a copy that shares no list."""
        return self._replace(
            v2p=list(self.v2p),
            p2v=list(self.p2v),
            virtual_stack=list(self.virtual_stack),
            hole_stack=list(self.hole_stack),
        )


def take(pool: SubPool, asked: int) -> tuple[SubPool, list[tuple[int, int]], dict[str, int]]:
    """Take `asked` pages off the stacks and bind them.

    Returns the sub-pool afterwards, a (virtual, physical) pair per page, (0, 0) where there is none, and the counters.
    """
    after = pool.copy()
    num_virtual, num_physical = len(pool.v2p) - 1, len(pool.p2v) - 1
    room = num_physical - 1 - pool.watermark
    found = max(min(asked, pool.virtual_top, pool.hole_top + room), 0)
    pairs = []
    bad = 0
    for i in range(found):
        v = pool.virtual_stack[pool.virtual_top - 1 - i]
        holes = pool.hole_top
        p = pool.hole_stack[holes - 1 - i] if i < holes else pool.watermark + 1 + (i - holes)
        if 0 < v < num_virtual and 0 < p < num_physical and after.v2p[v] == -1 and after.p2v[p] == -1:
            after.v2p[v], after.p2v[p] = p, v
            pairs.append((v, p))
        else:
            bad += 1
            pairs.append((0, 0))
    pairs += [(0, 0)] * (asked - found)
    from_holes = min(found, pool.hole_top)
    after = after._replace(
        virtual_top=pool.virtual_top - found,
        hole_top=pool.hole_top - from_holes,
        watermark=pool.watermark + found - from_holes,
    )
    return after, pairs, {"starved": asked - found, "bad_bind": bad}


def give_back(pool: SubPool, ids: list[int]) -> tuple[SubPool, list[int], dict[str, int]]:
    """Unbind `ids` in order and push what was released; where one repeats, its first lane is served.

    Returns the sub-pool afterwards, the page each lane released (-1 where none), and the counters.
    """
    after = pool.copy()
    num_virtual, num_physical = len(pool.v2p) - 1, len(pool.p2v) - 1
    freed = []
    virtual_top, hole_top = pool.virtual_top, pool.hole_top
    double = bad = 0
    for v in ids:
        page = -1
        if v < 0:
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
            if virtual_top < num_virtual:  # only ids bound by hand could be more
                after.virtual_stack[virtual_top] = v
                virtual_top += 1
            if hole_top < num_physical:
                after.hole_stack[hole_top] = page
                hole_top += 1
        freed.append(page)
    return (
        after._replace(virtual_top=virtual_top, hole_top=hole_top),
        freed,
        {"double_free": double, "bad_free": bad},
    )
