"""refresh_table on lists: the cells that are not as they were built, and the words that say how they are now."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.read_table import entries
from pagebind_conformance.oracle.touch import wrapped

NOTHING = -1
WORDS = 8


def refresh_table(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    out: Sequence[Sequence[int]],
    built: Sequence[Sequence[int]],
    versions: Sequence[Sequence[int]],
    epoch: int,
    *,
    page_size: int,
    form: str = "token",
    granularity: str = "page",
    fill: str = "prefix",
    multiplier: int = 1,
    first: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
    seq_len_delta: int = 0,
) -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
    """Return `out` and `built` as they must be afterwards, and the counters of the call.

    Both hold at least one row a lane. Lengths, starts and the delta are tokens, `first` is pages, and `epoch` the
    sub-pool's. What a lane keeps of `out` is not read.

    A row of 3 pages was built, a token of the last one is written anew, and a page is appended.

    >>> refresh_table(
    ...     [[2, 3, 4, 5, 6, 7, 8, 9]], [0], [7], [0, 5, 6, 7, 8, -1], [[90, 91, 92, 93]], [[0, 3, 7, 0, 3, 0, 0, 0]],
    ...     [[4, 5]], 7, page_size=2,
    ... )[:2]
    ([[90, 91, 7, 8]], [[0, 4, 7, 0, 4, 0, 0, 0]])
    """
    after = [list(row) for row in out]
    words = [list(row) for row in built]
    counters = {"clipped": 0, "bad_row": 0, "bad_id": 0}
    width = len(after[0]) if after else 0
    if not req_rows or width == 0:
        return after, words, counters

    cells = len(request_table[0]) if request_table else 0
    tokens = cells if form == "token" else cells * page_size
    unit, of_page = (page_size, 1) if granularity == "page" else (1, page_size)  # tokens of a column, columns of a page
    most = min(tokens, width * unit)
    extents = [(0, 0)] * len(after)
    for b, r in enumerate(req_rows):
        if not 0 <= r < len(request_table):
            counters["bad_row"] += 1
            words[b] = [NOTHING] + [0] * (WORDS - 1)
            continue
        length = seq_lens[b] + seq_len_delta
        if not 0 <= length <= most:
            counters["clipped"] += 1
            length = min(max(length, 0), most)
        begin, end = (max(starts[b], 0) if starts is not None else 0) // unit, -(-length // unit)
        if begin >= end:
            begin = end = 0
        extents[b] = begin, end
        live = first[r] if first is not None else 0
        words[b] = [r, versions[r][0], wrapped(epoch), begin, end, live, 0, 0]
        low, high = _kept(built[b], words[b], versions[r][1] // unit, of_page)
        for low_end, high_end in ((begin, low), (high, end)) if low < high else ((begin, end),):
            fresh, past = entries(request_table[r], low_end, high_end, v2p, page_size, form, granularity, multiplier)
            after[b][low_end : low_end + len(fresh)] = fresh
            counters["bad_id"] += past

    if fill == "sink":
        for b, (begin, end) in enumerate(extents):
            old, old_end = max(built[b][3], 0), min(built[b][4], width)
            for low_end, high_end in ((old, min(old_end, begin)), (max(old, end), old_end)):
                after[b][low_end:high_end] = [0] * max(high_end - low_end, 0)
        for b in range(len(req_rows), len(after)):
            words[b] = [NOTHING] + [0] * (WORDS - 1)
    return after, words, counters


def _kept(before: Sequence[int], now: Sequence[int], changed: int, of_page: int) -> tuple[int, int]:
    """Return the columns of a lane that are as they were built; none where the first is not below the second."""
    row, version, epoch, begin, end, live = now[:6]
    if (before[0], before[2]) != (row, epoch):
        return 0, 0
    low, high = max(begin, before[3]), min(end, before[4])
    if before[1] != version:
        high = min(high, changed) if wrapped(before[1] + 1) == version else 0
    if before[5] != live:
        low = max(low, max(before[5], live) * of_page)
    return low, high
