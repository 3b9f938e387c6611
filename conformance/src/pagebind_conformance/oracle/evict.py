"""evict on lists: pages of rows given back in a sub-pool that borrows the rows' ids."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool, give_back


def evict(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    starts: Sequence[int],
    lens: Sequence[int],
    pool: SubPool,
    first: Sequence[int],
    freed: Sequence[int],
    *,
    part: str,
    page_size: int,
    form: str = "token",
    pages: int | None = None,
) -> tuple[SubPool, list[int], list[int], dict[str, int]]:
    """Return the sub-pool, `first` and `freed` as they must be afterwards, and the counters.

    `first` and `freed` are what they hold before; where an id repeats its first page is served.

    A window has passed 5 tokens of a row of 2 tokens a page: its pages 0 and 1 hold none of the others.

    >>> window = SubPool([0, 4, 3, 2, 1, -1], [0, 4, 3, 2, 1, -1], [0] * 5, [0] * 5, 0, 0, 4)
    >>> after, first, freed, _ = evict(
    ...     [[3, 1, 2, 4]], [0], [0], [5], window, [0], [7] * 3, part="head", page_size=2, form="page"
    ... )
    >>> first, freed, after.hole_stack[:2], after.v2p
    ([2], [2, 4, -1], [2, 4], [0, -1, 3, -1, 1, -1])
    """
    counters = {"clipped": 0, "bad_row": 0, "double_free": 0, "bad_free": 0, "count_mismatch": 0}
    if not req_rows:
        return pool.copy(), list(first), list(freed), counters
    capacity = len(freed)
    ids, moved, seen = ids_to_evict(
        request_table, req_rows, starts, lens, first, capacity, part=part, page_size=page_size, form=form
    )
    after, pages_freed, given = give_back(pool, ids, borrowed=True)
    counters.update(seen)
    counters.update(given)
    counters["count_mismatch"] = int(pages is not None and pages != sum(page >= 0 for page in pages_freed))
    return after, moved, pages_freed + [-1] * (capacity - len(ids)), counters


def ids_to_evict(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    starts: Sequence[int],
    lens: Sequence[int],
    first: Sequence[int],
    capacity: int,
    *,
    part: str,
    page_size: int,
    form: str,
) -> tuple[list[int], list[int], dict[str, int]]:
    """Return the ids of the pages to free in their order, `first` afterwards, and what is counted of the lanes."""
    ids: list[int] = []
    moved = list(first)
    seen = {"clipped": 0, "bad_row": 0}
    unit = page_size if form == "token" else 1  # cells of a page
    cells = len(request_table[0]) if request_table else 0
    width = cells if form == "token" else cells * page_size
    for r, asked_start, asked_length in zip(req_rows, starts, lens, strict=True):
        if not 0 <= r < len(request_table):
            seen["bad_row"] += 1
            continue
        start, length = min(max(asked_start, 0), width), min(max(asked_length, 0), width)
        held = min(max(first[r], 0), _pages(width, page_size))
        kept, most = _pages(start, page_size), _pages(length, page_size)
        if part == "head":
            most = length // page_size  # the page a kept token shares stays
        going = [q for q in range(most) if q >= held and q >= kept]
        served = going[: capacity - len(ids)]
        for q in served:
            cell = request_table[r][q * unit]
            ids.append(-1 if cell < 0 else cell // unit)
        if part == "row":
            moved[r] = 0
        elif part == "tail":
            moved[r] = min(held, kept)
        else:
            moved[r] = going[len(served)] if len(served) < len(going) else max(held, most)
        seen["clipped"] += (start, length) != (asked_start, asked_length) or len(served) < len(going)
    return ids, moved, seen


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)
