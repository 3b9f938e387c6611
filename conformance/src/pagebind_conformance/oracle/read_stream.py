"""read_stream on lists: every lane's entries packed end to end, and those of its table row."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.read_table import entries


def read_stream(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    indptr: Sequence[int],
    out: Sequence[int],
    *,
    page_size: int,
    form: str = "token",
    granularity: str = "page",
    multiplier: int = 1,
    starts: Sequence[int] | None = None,
    table: Sequence[Sequence[int]] | None = None,
    seq_len_delta: int = 0,
) -> tuple[list[int], list[list[int]] | None, dict[str, int]]:
    """Return `out` and `table` as they must be afterwards, and the counters.

    Where parts of the stream overlap, the last lane's entries stand.

    >>> read_stream([[1, 2], [3, -1]], [0, 1], [2, 1], [0, 30, 20, 10, -1], [0, 2, 3], [7] * 4, page_size=1)[0]
    [30, 20, 10, 7]
    """
    after = list(out)
    rows = None if table is None else [list(row) for row in table]
    counters = {"clipped": 0, "bad_row": 0, "bad_id": 0}
    table_width = len(request_table[0]) if request_table else 0
    tokens = table_width if form == "token" else table_width * page_size
    unit = page_size if granularity == "page" else 1

    for b, r in enumerate(req_rows):
        if not 0 <= r < len(request_table):
            counters["bad_row"] += 1
            continue
        start = max(starts[b], 0) if starts is not None else 0
        asked = seq_lens[b] + seq_len_delta
        fits = max(tokens - start, 0)
        length = min(max(asked, 0), fits)
        clipped = asked != length

        first = last = 0
        if length > 0:
            first, last = start // unit, -(-(start + length) // unit)
        low = indptr[b]
        room = max(min(indptr[b + 1], len(after)) - low, 0) if low >= 0 else 0
        streamed = min(last - first, room)
        shown = 0
        if rows is not None:
            shown = max(min(last, len(rows[b]) if rows else 0) - first, 0)
        clipped = clipped or streamed < last - first or (rows is not None and shown < last - first)
        counters["clipped"] += clipped

        most = max(streamed, shown)
        cells, past = entries(request_table[r], first, first + most, v2p, page_size, form, granularity, multiplier)
        counters["bad_id"] += past
        if streamed:
            after[low : low + streamed] = cells[:streamed]
        if rows is not None and shown:
            rows[b][first : first + shown] = cells[:shown]
    return after, rows, counters
