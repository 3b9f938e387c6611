"""compact on lists: the live pages of the band move into holes elsewhere, bytes and all, and a frontier retreats."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool


def compact(
    pool: SubPool,
    retreat: int,
    sources: Sequence[int],
    targets: Sequence[int],
    buffer: bytes | None = None,
    page_bytes: int = 0,
    *,
    side: str = "high",
    fresh: int = 0,
    skip: int = 0,
) -> tuple[SubPool, list[int], list[int], bytes | None, dict[str, int]]:
    """Return the sub-pool, `sources`, `targets` and `buffer` as they must be afterwards, and the counters.

    `sources`, `targets` and `buffer` are what they hold before. A retreat of no page changes nothing.

    >>> after, sources, targets, buffer, _ = compact(
    ...     SubPool([0, 1, -1, 3, -1], [0, 1, -1, 3, -1], [2, 0, 0, 0], [2, 0, 0, 0], 1, 1, 3), 1, [7], [7], b".a.b", 1
    ... )
    >>> after.v2p, after.p2v, sources, targets, buffer, (after.hole_top, after.watermark, after.epoch)
    ([0, 1, -1, 2, -1], [0, 1, 3, -1, -1], [3], [2], b'.abb', (0, 2, 1))
    """
    if retreat == 0:
        return pool.copy(), list(sources), list(targets), buffer, {"count_mismatch": 0}
    new_sources = [-1] * retreat + list(sources[retreat:])
    new_targets = [-1] * retreat + list(targets[retreat:])
    refused = pool.copy(), new_sources, new_targets, buffer, {"count_mismatch": 1}
    if pool.seat < 0 or pool.watermark < retreat or pool.seat + pool.watermark >= len(pool.p2v) - 1:
        return refused
    if not max(retreat - fresh, 0) <= pool.hole_top <= pool.watermark:
        return refused

    span = list(range(pool.seat + 1, pool.seat + pool.watermark + 1))
    around = pool.room()
    if side == "high":
        stays, band, other_end = span[:-retreat], span[-retreat:], around.below
    else:
        stays, band, other_end = span[retreat:], span[:retreat], around.above
    if (skip and stays) or skip + fresh > len(other_end):
        return refused
    live = [p for p in band if 0 < pool.p2v[p] < len(pool.v2p) - 1]
    outside = set(stays)
    holes = [p for p in pool.hole_stack[: pool.hole_top] if p in outside and pool.p2v[p] == -1]
    if len(live) > len(holes) + fresh or (fresh and len(live) < len(holes) + fresh):
        return refused

    after = pool.copy()
    moved = bytearray(buffer) if buffer is not None else None
    taken = other_end[skip : skip + fresh]
    for k, source in enumerate(live):
        target = holes.pop() if holes else taken.pop(0)
        new_sources[k], new_targets[k] = source, target
        v = pool.p2v[source]
        after.v2p[v], after.p2v[target], after.p2v[source] = target, v, -1
        if moved is not None:
            page = moved[source * page_bytes : (source + 1) * page_bytes]
            moved[target * page_bytes : (target + 1) * page_bytes] = page
    after.hole_stack[: len(holes)] = holes
    after = after._replace(
        hole_top=len(holes),
        watermark=pool.watermark + fresh - retreat,
        seat=pool.seat + (retreat + skip if side == "low" else -(fresh + skip)),
        epoch=pool.epoch + 1,
    )
    return after, new_sources, new_targets, bytes(moved) if moved is not None else None, {"count_mismatch": 0}
