"""extend on lists: pages for every lane's new tokens, their ids in the request table, and the write slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagebind_conformance.oracle.subpool import SubPool, take


class Emitted(NamedTuple):
    """What a plan that emits writes besides: a token id behind every slot, and the pages that the call took."""

    token_ids: list[int]  # [capacity]
    new_ids: list[int]  # [m]
    new_pages: list[int]  # [m]


def extend(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    prefix_lens: Sequence[int],
    indptr: Sequence[int],
    pool: SubPool,
    slots: Sequence[int],
    *,
    page_size: int,
    form: str = "token",
    multiplier: int = 1,
    pages: int | None = None,
    emitted: Emitted | None = None,
) -> tuple[list[list[int]], SubPool, list[int], Emitted | None, dict[str, int]]:
    """Return the request table, the sub-pool, `slots` and `emitted` as they must be afterwards, and the counters.

    `slots` and `emitted` are what they hold before; `emitted` None for a plan that emits nothing.
    """
    table = [list(row) for row in request_table]
    after_slots = list(slots)
    token_ids = list(emitted.token_ids) if emitted else [-1] * len(after_slots)
    counters = {"clipped": 0, "bad_row": 0, "bad_id": 0, "starved": 0, "bad_bind": 0, "count_mismatch": 0}
    if not req_rows:
        return table, pool.copy(), after_slots, emitted, counters
    width = (len(table[0]) if table else 0) * (1 if form == "token" else page_size)
    num_virtual = len(pool.v2p) - 1

    # First what every lane asks for: (lane's row, first slot, prefix, tokens with room, new pages).
    lanes = []
    for b, r in enumerate(req_rows):
        low, high = (min(max(x, 0), len(after_slots)) for x in (indptr[b], indptr[b + 1]))
        n = max(high - low, 0)
        after_slots[low : low + n] = [0] * n
        token_ids[low : low + n] = [-1] * n
        if not 0 <= r < len(table):
            counters["bad_row"] += 1
            continue
        prefix = min(max(prefix_lens[b], 0), width)
        fits = min(n, width - prefix)
        clipped = (low, high) != (indptr[b], indptr[b + 1]) or high < low or prefix != prefix_lens[b] or fits < n
        counters["clipped"] += clipped
        lanes.append((r, low, prefix, fits, -(-(prefix + fits) // page_size) - -(-prefix // page_size)))

    asked = sum(lane[4] for lane in lanes)
    after, pairs, taken = take(pool, asked)
    counters.update(taken)
    counters["count_mismatch"] = int(pages is not None and pages != asked)

    g = 0
    for r, low, prefix, fits, _ in lanes:
        virtual = page = -1  # of the page at hand; negative where there is none
        if prefix % page_size and fits:
            cell = table[r][prefix - 1] if form == "token" else table[r][prefix // page_size]
            held = -1 if cell < 0 else cell // page_size if form == "token" else cell
            if held >= num_virtual:
                counters["bad_id"] += 1
            elif held >= 0:
                virtual, page = held, pool.v2p[held]
        for j in range(fits):
            token = prefix + j
            offset = token % page_size
            if offset == 0:
                virtual, page = pairs[g]
                g += 1
                if form == "page":
                    table[r][token // page_size] = virtual
            token_id = virtual * page_size + offset if virtual >= 0 else -1
            token_ids[low + j] = token_id
            if form == "token":
                table[r][token] = token_id
            after_slots[low + j] = page * multiplier * page_size + offset if page >= 0 else 0
    told = None
    if emitted is not None:
        most = len(emitted.new_ids)
        rest = [(-1, -1)] * most
        told = Emitted(token_ids, *([pair[i] for pair in (pairs + rest)[:most]] for i in (0, 1)))
    return table, after, after_slots, told, counters
