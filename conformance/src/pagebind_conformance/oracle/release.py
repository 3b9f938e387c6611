"""release on lists: rows emptied, all their pages freed but those of a shared prefix."""

from __future__ import annotations

from collections.abc import Sequence

from pagebind_conformance.oracle.subpool import SubPool
from pagebind_conformance.oracle.truncate import cut


def release(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    pool: SubPool,
    freed: Sequence[int],
    *,
    page_size: int,
    form: str = "token",
    starts: Sequence[int] | None = None,
    pages: int | None = None,
) -> tuple[list[list[int]], SubPool, list[int], dict[str, int]]:
    """Return the request table, the sub-pool and `freed` as they must be afterwards, and the counters."""
    keep = list(starts) if starts is not None else [0] * len(req_rows)
    cleared_from = [0] * len(req_rows)
    return cut(request_table, req_rows, seq_lens, keep, cleared_from, pool, freed, page_size, form, pages)
