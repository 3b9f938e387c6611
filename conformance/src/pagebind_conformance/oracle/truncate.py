"""truncate on lists: rows cut to a length, the pages that hold no kept token freed."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, give_back


def truncate(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    keep_lens: Sequence[int],
    pool: SubPool,
    freed: Sequence[int],
    *,
    page_size: int,
    form: str = "token",
    pages: int | None = None,
) -> tuple[list[list[int]], SubPool, list[int], dict[str, int]]:
    """Return the request table, the sub-pool and `freed` as they must be afterwards, and the counters.

    `freed` is what it holds before; where an id repeats its first page is served.
    """
    cleared_from = [max(keep, 0) for keep in keep_lens]
    return cut(request_table, req_rows, seq_lens, keep_lens, cleared_from, pool, freed, page_size, form, pages)


def cut(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    keep_lens: Sequence[int],
    cleared_from: Sequence[int],
    pool: SubPool,
    freed: Sequence[int],
    page_size: int,
    form: str,
    pages: int | None,
) -> tuple[list[list[int]], SubPool, list[int], dict[str, int]]:
    """Free the pages `[ceil(keep / ps), ceil(len / ps))` of every row; clear cells of tokens from `cleared_from` on."""
    table = [list(row) for row in request_table]
    counters = {"clipped": 0, "bad_row": 0, "double_free": 0, "bad_free": 0, "count_mismatch": 0}
    if not req_rows:
        return table, pool.copy(), list(freed), counters
    width = (len(table[0]) if table else 0) * (1 if form == "token" else page_size)
    capacity = len(freed)

    ids: list[int] = []  # of the pages to free, in order
    asked = 0
    for b, r in enumerate(req_rows):
        if not 0 <= r < len(table):
            counters["bad_row"] += 1
            continue
        length = min(max(seq_lens[b], 0), width)
        keep = min(max(keep_lens[b], 0), width)
        first, last = -(-keep // page_size), -(-length // page_size)
        asked += max(last - first, 0)
        served = range(first, min(last, first + capacity - len(ids)))
        counters["clipped"] += length != seq_lens[b] or keep != keep_lens[b] or len(served) < last - first
        for page in served:
            cell = request_table[r][page * page_size if form == "token" else page]
            ids.append(cell if cell < 0 or form == "page" else cell // page_size)

        # Tokens before the freed pages go too; those of pages past the capacity stay.
        until = length if len(served) >= last - first else (first + len(served)) * page_size
        if form == "token":
            for token in range(cleared_from[b], until):
                table[r][token] = -1
        else:
            for page in range(-(-cleared_from[b] // page_size), -(-until // page_size)):
                table[r][page] = -1

    after, pages_freed, given = give_back(pool, ids)
    counters.update(given)
    counters["count_mismatch"] = int(pages is not None and pages != asked)
    return table, after, pages_freed + [-1] * (capacity - len(ids)), counters
