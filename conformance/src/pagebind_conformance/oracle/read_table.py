"""read_table on lists: the entries of every lane's valid extent."""

from __future__ import annotations

from collections.abc import Sequence


def read_table(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    out: Sequence[Sequence[int]],
    *,
    page_size: int,
    form: str = "token",
    granularity: str = "page",
    fill: str = "prefix",
    multiplier: int = 1,
    starts: Sequence[int] | None = None,
    seq_len_delta: int = 0,
) -> tuple[list[list[int]], dict[str, int]]:
    """Return `out` as it must be afterwards, and the counters of the call.

    `out` is what the table holds before: at least one row a lane. Lengths, starts and `seq_len_delta` are tokens.

    >>> read_table([[2, 3, -1, -1, 6, 7]], [0], [6], [0, 11, 12, 13, -1], [[7, 7, 7]], page_size=2)[0]
    [[11, 0, 13]]
    """
    after = [list(row) for row in out]
    counters = {"clipped": 0, "bad_row": 0, "bad_id": 0}
    width = len(after[0]) if after else 0
    if not req_rows or width == 0:
        return after, counters  # nothing is launched, not even a sink fill

    table_width = len(request_table[0]) if request_table else 0
    tokens = table_width if form == "token" else table_width * page_size
    most = min(tokens, width if granularity == "token" else width * page_size)

    for b, r in enumerate(req_rows):
        if fill == "sink":
            after[b] = [0] * width
        if not 0 <= r < len(request_table):
            counters["bad_row"] += 1
            continue
        length = seq_lens[b] + seq_len_delta
        if not 0 <= length <= most:
            counters["clipped"] += 1
            length = min(max(length, 0), most)
        start = max(starts[b], 0) if starts is not None else 0
        unit = page_size if granularity == "page" else 1
        first, last = start // unit, -(-length // unit)
        cells, past = entries(request_table[r], first, last, v2p, page_size, form, granularity, multiplier)
        after[b][first : first + len(cells)] = cells
        counters["bad_id"] += past
    if fill == "sink":
        for b in range(len(req_rows), len(after)):
            after[b] = [0] * width
    return after, counters


def entries(
    row: Sequence[int],
    first: int,
    last: int,
    v2p: Sequence[int],
    page_size: int,
    form: str,
    granularity: str,
    multiplier: int,
) -> tuple[list[int], int]:
    """Return the entries of columns `[first, last)` of one row, in cells of `granularity`, and how many ids are past.

    A token's offset in its page is that of its id (form token) or of its column (form page).
    """
    if last <= first:
        return [], 0
    past = len(v2p) - 1
    if form == "token":
        limit = past * page_size
        if granularity == "page":
            ids = row[first * page_size : last * page_size : page_size]
            cells = [max(v2p[t // page_size], 0) * multiplier if 0 <= t < limit else 0 for t in ids]
        else:
            ids = row[first:last]
            scale = multiplier * page_size
            cells = [
                v2p[t // page_size] * scale + t % page_size if 0 <= t < limit and v2p[t // page_size] >= 0 else 0
                for t in ids
            ]
    else:
        limit = past
        if granularity == "page":
            ids = row[first:last]
            cells = [max(v2p[v], 0) * multiplier if 0 <= v < limit else 0 for v in ids]
        else:
            ids = [row[c // page_size] for c in range(first, last)]
            scale = multiplier * page_size
            cells = [
                v2p[v] * scale + c % page_size if 0 <= v < limit and v2p[v] >= 0 else 0
                for c, v in enumerate(ids, start=first)
            ]
    return cells, sum(i >= limit for i in ids)
