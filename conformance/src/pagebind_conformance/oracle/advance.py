"""advance on lists: a token more for every row, with the page it begins, its slot and its column of a read table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagebind_conformance.oracle.extend import Emitted
from pagebind_conformance.oracle.subpool import SubPool, take


class Advanced(NamedTuple):
    """What a decode step leaves."""

    request_table: list[list[int]]
    seq_lens: list[int]  # [bs]
    pool: SubPool
    slots: list[int]  # [bs]
    table: list[list[int]] | None  # [>= bs, width]
    emitted: Emitted | None
    counters: dict[str, int]


def advance(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    pool: SubPool,
    slots: Sequence[int],
    *,
    page_size: int,
    longest: int,
    form: str = "token",
    multiplier: int = 1,
    pages: int | None = None,
    table: Sequence[Sequence[int]] | None = None,
    granularity: str = "page",
    emitted: Emitted | None = None,
) -> Advanced:
    """Return everything as it must be afterwards, and the counters.

    `longest` is the largest length there is. `slots`, `table` and `emitted` are what they hold before; `table` None for
    a plan that appends nothing, `emitted` None for one that emits nothing.

    >>> pool = SubPool([0, 4, -1, -1], [0, -1, -1, -1, 1, -1, -1], [1, 2, 0], [0] * 6, 2, 0, 4)
    >>> step = advance([[1, -1]], [0], [2], pool, [7], page_size=2, longest=99, form="page", table=[[4, 7]])
    >>> step.request_table, step.seq_lens, step.slots, step.table
    ([[1, 2]], [3], [10], [[4, 5]])
    """
    rows = [list(row) for row in request_table]
    lens, after_slots = list(seq_lens), list(slots)
    shown = None if table is None else [list(row) for row in table]
    counters = {"clipped": 0, "bad_row": 0, "bad_id": 0, "starved": 0, "bad_bind": 0, "count_mismatch": 0}
    if not req_rows:
        return Advanced(rows, lens, pool.copy(), after_slots, shown, emitted, counters)
    room = min((len(rows[0]) if rows else 0) * (1 if form == "token" else page_size), longest)
    per_column = page_size if granularity == "page" else 1

    asking = []  # lanes whose token begins a page
    going = []  # lanes with a token, in their order
    for b, r in enumerate(req_rows):
        after_slots[b] = 0
        if not 0 <= r < len(rows):
            counters["bad_row"] += 1
            continue
        n = max(seq_lens[b], 0)
        hidden = shown is not None and n // per_column >= len(shown[b])
        counters["clipped"] += seq_lens[b] < 0 or n >= room or hidden
        if n < room:
            going.append(b)
            if n % page_size == 0:
                asking.append(b)

    after, pairs, counted = take(pool, len(asking))
    counters.update(counted)
    counters["count_mismatch"] = int(pages is not None and pages != len(asking))
    given = dict(zip(asking, pairs, strict=True))

    token_ids = [-1] * len(req_rows)
    for b in going:
        r, n = req_rows[b], max(seq_lens[b], 0)
        q, offset = divmod(n, page_size)
        served = True
        if b in given:
            v, p = given[b]
            served = v != 0
        else:
            cell = rows[r][n - 1] if form == "token" else rows[r][q]
            v = -1 if cell < 0 else cell // page_size if form == "token" else cell
            if v >= len(pool.v2p) - 1:
                counters["bad_id"] += 1
                v = -1
            p = pool.v2p[v] if v >= 0 else -1
        if v >= 0:
            token_ids[b] = v * page_size + offset
        if p >= 0:
            after_slots[b] = p * multiplier * page_size + offset
        if form == "token":
            rows[r][n] = token_ids[b]
        elif b in given:
            rows[r][q] = v
        if not served:
            continue
        lens[b] = n + 1
        if shown is not None and n // per_column < len(shown[b]):
            if granularity == "token":
                shown[b][n] = after_slots[b]
            elif b in given:
                shown[b][q] = p * multiplier
    told = None
    if emitted is not None:
        most = len(emitted.new_ids)
        padded = (pairs + [(-1, -1)] * most)[:most]
        told = Emitted(token_ids, [v for v, _ in padded], [p for _, p in padded])
    return Advanced(rows, lens, after, after_slots, shown, told, counters)
