"""bind on lists: pairs of a virtual and a physical page, each written unless either is bound."""

from __future__ import annotations

from collections.abc import Sequence


def bind(
    virtual: Sequence[int], physical: Sequence[int], v2p: Sequence[int], p2v: Sequence[int]
) -> tuple[list[int], list[int], dict[str, int]]:
    """Return `v2p` and `p2v` as they must be afterwards, and the counters; of repeats the first lane is served.

    >>> bind([1, 2], [2, 2], [0, -1, -1, -1], [0, -1, -1, -1])
    ([0, 2, -1, -1], [0, -1, 1, -1], {'bad_bind': 1})
    """
    new_v2p, new_p2v = list(v2p), list(p2v)
    bad = 0
    for v, p in zip(virtual, physical, strict=True):
        if v < 0:
            continue  # a hole
        inside = 0 < v < len(v2p) - 1 and 0 < p < len(p2v) - 1
        if inside and new_v2p[v] == -1 and new_p2v[p] == -1:
            new_v2p[v], new_p2v[p] = p, v
        else:
            bad += 1
    return new_v2p, new_p2v, {"bad_bind": bad}
