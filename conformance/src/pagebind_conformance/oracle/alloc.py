"""alloc on lists: take ids and pages off the stacks, the last freed first, then the frontier."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, take


def alloc(pool: SubPool, asked: int | Sequence[int]) -> tuple[SubPool, list[int], list[int], dict[str, int]]:
    """Return the sub-pool afterwards, `ids` and `pages` (0 where there was none), and the counters.

    `asked` is the number of lanes, or the borrowed id of each; where an id repeats, its first lane is served.

    >>> borrower = SubPool([0, -1, -1, -1, -1], [0, -1, -1], [0] * 4, [0] * 2, 0, 0, 0)
    >>> after, _, pages, _ = alloc(borrower, [3, -1, 2])
    >>> after.v2p, after.p2v, pages
    ([0, -1, -1, 1, -1], [0, 3, -1], [1, 0, 0])
    """
    if isinstance(asked, int):
        if asked == 0:
            return pool.copy(), [], [], {"starved": 0, "bad_bind": 0}
        after, pairs, counters = take(pool, asked)
        return after, [v for v, _ in pairs], [p for _, p in pairs], counters
    pages = [0] * len(asked)
    if not asked:
        return pool.copy(), [], [], {"starved": 0, "bad_bind": 0}
    lanes = [i for i, v in enumerate(asked) if v > 0]
    after, pairs, counters = take(pool, len(lanes), [asked[i] for i in lanes])
    for i, (_, p) in zip(lanes, pairs, strict=True):
        pages[i] = p
    return after, list(asked), pages, counters
