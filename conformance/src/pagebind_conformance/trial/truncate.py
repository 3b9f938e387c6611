"""A truncation on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import TRUNCATE, TruncateSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, released, repeating, shape_of
from pagebind_conformance.trial.free import as_left


def truncate(
    subject: Subject,
    spec: TruncateSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    keep_lens: Sequence[int],
    pool: SubPool,
    *,
    capacity: int,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[list[list[int]], SubPool, list[int]]:
    """Cut the rows; return the request table, the sub-pool and `freed`."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    table = request_table
    if not isinstance(table, Guarded):
        table = Guarded(table, torch.int32, subject.device, how.layout("request_table"), shape_of(table))
    arguments: dict[str, Any] = {
        "request_table": table,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "seq_lens": Guarded(seq_lens, spec.length_dtype, subject.device, how.layout("seq_lens")),
        "keep_lens": Guarded(keep_lens, spec.length_dtype, subject.device, how.layout("keep_lens")),
        "tables": placed,
        "freed": Guarded.poisoned((capacity,), spec.id_dtype, subject.device, how.layout("freed")),
        "pages": pages,
    }
    before = table.before_values()
    rows, after, freed, counters = oracle.truncate(
        before,
        req_rows,
        seq_lens,
        keep_lens,
        pool,
        [POISON[spec.id_dtype]] * capacity,
        page_size=spec.page_size,
        form=spec.form,
        pages=pages,
    )
    ids = ids_to_free(before, req_rows, seq_lens, keep_lens, capacity, spec.page_size, spec.form)
    expected = placed.expected(pool, after, counters if how.checks != "off" else {}, repeating(ids))
    expected |= {"request_table": rows, "freed": released(freed, ids)}
    hold(subject, TRUNCATE, spec, arguments, expected, how)
    return rows, as_left(after, placed), arguments["freed"].values()


def ids_to_free(
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    keep_lens: Sequence[int],
    capacity: int,
    page_size: int,
    form: str,
) -> list[int]:
    """Return the ids of the pages the lanes free, in their order, so that repeats can be told."""
    unit = page_size if form == "token" else 1
    width = (len(request_table[0]) if request_table else 0) * page_size // unit
    ids = []
    for r, length, keep in zip(req_rows, seq_lens, keep_lens, strict=True):
        if 0 <= r < len(request_table):
            last = -(-min(max(length, 0), width) // page_size)
            cells = [request_table[r][q * unit] for q in range(-(-min(max(keep, 0), width) // page_size), last)]
            ids += [max(cell // unit, -1) for cell in cells]
    return ids[:capacity]
