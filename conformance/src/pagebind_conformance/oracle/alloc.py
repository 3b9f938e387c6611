"""alloc on lists: take ids and pages off the stacks, the last freed first, then the frontier."""

from __future__ import annotations

from pagebind_conformance.oracle.subpool import SubPool, take


def alloc(pool: SubPool, asked: int) -> tuple[SubPool, list[int], list[int], dict[str, int]]:
    """Return the sub-pool afterwards, `ids` and `pages` (0 where there was none), and the counters."""
    after, pairs, counters = take(pool, asked)
    return after, [v for v, _ in pairs], [p for _, p in pairs], counters
