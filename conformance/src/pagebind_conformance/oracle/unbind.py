"""unbind on lists: both tables get a tombstone, the freed pages come out in lane order."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, give_back


def unbind(
    ids: Sequence[int], v2p: Sequence[int], p2v: Sequence[int]
) -> tuple[list[int], list[int], list[int], dict[str, int]]:
    """Return `v2p`, `p2v` and `freed` as they must be afterwards, and the counters; of repeats the first is served.

    >>> unbind([1, 1], [0, 2, -1, -1], [0, -1, 1, -1])
    ([0, -1, -1, -1], [0, -1, -1, -1], [2, -1], {'double_free': 1, 'bad_free': 0})
    """
    # Stacks large enough for every lane stand in, since an unbinding has none.
    stacks = SubPool(list(v2p), list(p2v), [0] * len(ids), [0] * len(ids), 0, 0, 0)
    after, freed, counters = give_back(stacks, list(ids))
    return after.v2p, after.p2v, freed, counters
