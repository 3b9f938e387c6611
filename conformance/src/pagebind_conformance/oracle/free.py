"""free on lists: unbind ids and push them and their pages back, in lane order."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, give_back


def free(
    pool: SubPool, ids: Sequence[int], *, borrowed: bool = False, pages: int | None = None
) -> tuple[SubPool, list[int], dict[str, int]]:
    """Return the sub-pool afterwards, `freed` and the counters; where an id repeats its first lane is served.

    >>> borrower = SubPool([0, -1, 1, -1], [0, 2, -1], [0] * 3, [0] * 2, 0, 0, 1)
    >>> after, freed, counters = free(borrower, [1, 2], borrowed=True, pages=2)
    >>> freed, after.hole_stack, (after.virtual_top, after.hole_top), counters
    ([-1, 1], [1, 0], (0, 1), {'double_free': 0, 'bad_free': 0, 'count_mismatch': 1})
    """
    after, freed, counters = give_back(pool, ids, borrowed=borrowed)
    served = sum(page >= 0 for page in freed)
    counters["count_mismatch"] = int(bool(ids) and pages is not None and pages != served)
    return after._replace(epoch=pool.epoch + (1 if ids else 0)), freed, counters
