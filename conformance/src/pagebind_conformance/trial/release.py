"""A release on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import RELEASE, ReleaseSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, released, repeating, shape_of
from pagebind_conformance.trial.free import as_left
from pagebind_conformance.trial.truncate import ids_to_free


def release(
    subject: Subject,
    spec: ReleaseSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    pool: SubPool,
    *,
    capacity: int,
    starts: Sequence[int] | None = None,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[list[list[int]], SubPool, list[int]]:
    """Empty the rows; return the request table, the sub-pool and `freed`."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    table = request_table
    if not isinstance(table, Guarded):
        table = Guarded(table, torch.int32, subject.device, how.layout("request_table"), shape_of(table))
    arguments: dict[str, Any] = {
        "request_table": table,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "seq_lens": Guarded(seq_lens, spec.length_dtype, subject.device, how.layout("seq_lens")),
        "tables": placed,
        "freed": Guarded.poisoned((capacity,), spec.id_dtype, subject.device, how.layout("freed")),
        "starts": None,
        "pages": pages,
    }
    if starts is not None:
        arguments["starts"] = Guarded(starts, spec.length_dtype, subject.device, how.layout("starts"))
    before = table.before_values()
    rows, after, freed, counters = oracle.release(
        before,
        req_rows,
        seq_lens,
        pool,
        [POISON[spec.id_dtype]] * capacity,
        page_size=spec.page_size,
        form=spec.form,
        starts=starts,
        pages=pages,
    )
    keep = starts if starts is not None else [0] * len(req_rows)
    ids = ids_to_free(before, req_rows, seq_lens, keep, capacity, spec.page_size, spec.form)
    expected = placed.expected(pool, after, counters if how.checks != "off" else {}, repeating(ids))
    expected |= {"request_table": rows, "freed": released(freed, ids)}
    hold(subject, RELEASE, spec, arguments, expected, how)
    return rows, as_left(after, placed), arguments["freed"].values()
