"""translate on lists: token ids to the entries that kernels write through."""

from __future__ import annotations

from collections.abc import Sequence


def translate(
    ids: Sequence[int], v2p: Sequence[int], *, page_size: int, multiplier: int = 1, ranks: int = 1, rank: int = 0
) -> tuple[list[int], dict[str, int]]:
    """Return the entry of every id, and the counters. `page_size` is that of the pages one rank stores.

    >>> translate([4, 5, 6, 7, 0, -1], [0, 3, -1], page_size=2, ranks=2, rank=1)[0]
    [0, 6, 0, 7, 0, 0]
    """
    out = []
    past = 0
    span = page_size * ranks
    for token in ids:
        entry = 0
        if token >= 0:
            page, place = divmod(token, span)
            if page >= len(v2p) - 1:
                past += 1
            elif place % ranks == rank and v2p[page] >= 0:
                entry = v2p[page] * multiplier * page_size + place // ranks
        out.append(entry)
    return out, {"bad_id": past}
