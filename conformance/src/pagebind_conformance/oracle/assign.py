"""assign on lists: ids copied to the head of rows."""

from __future__ import annotations

from collections.abc import Sequence


def assign(
    request_table: Sequence[Sequence[int]], req_rows: Sequence[int], ids: Sequence[int], indptr: Sequence[int]
) -> tuple[list[list[int]], dict[str, int]]:
    """Return the request table as it must be afterwards, and the counters.

    >>> assign([[-1, -1], [-1, -1]], [1], [8, 9], [0, 2])[0]
    [[-1, -1], [8, 9]]
    """
    table = [list(row) for row in request_table]
    counters = {"clipped": 0, "bad_row": 0}
    width = len(table[0]) if table else 0
    for b, r in enumerate(req_rows):
        if not 0 <= r < len(table):
            counters["bad_row"] += 1
            continue
        low, high = (min(max(x, 0), len(ids)) for x in (indptr[b], indptr[b + 1]))
        n = min(max(high - low, 0), width)
        counters["clipped"] += (low, high) != (indptr[b], indptr[b + 1]) or high < low or high - low > width
        table[r][:n] = ids[low : low + n]
    return table, counters
