"""free on lists: unbind ids and push them and their pages back, in lane order."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, give_back


def free(pool: SubPool, ids: Sequence[int]) -> tuple[SubPool, list[int], dict[str, int]]:
    """Return the sub-pool afterwards, `freed` and the counters; where an id repeats its first lane is served."""
    after, freed, counters = give_back(pool, list(ids))
    return after._replace(epoch=pool.epoch + (1 if ids else 0)), freed, counters
