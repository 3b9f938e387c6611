"""An extension on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import EXTEND, ExtendSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.oracle import Emitted, SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, shape_of


def extend(
    subject: Subject,
    spec: ExtendSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    prefix_lens: Sequence[int],
    indptr: Sequence[int],
    pool: SubPool,
    *,
    capacity: int,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[list[list[int]], SubPool, list[int]]:
    """Extend the rows; return the request table, the sub-pool and the slots. A plan that emits has room for all."""
    room = [capacity + len(req_rows)] if spec.emits else []
    rows, after, slots, _ = extend_and_tell(
        subject, spec, request_table, req_rows, prefix_lens, indptr, pool, *room,
        capacity=capacity, pages=pages, placed=placed, how=how,
    )  # fmt: skip
    return rows, after, slots


def extend_and_tell(
    subject: Subject,
    spec: ExtendSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    prefix_lens: Sequence[int],
    indptr: Sequence[int],
    pool: SubPool,
    told: int | None = None,
    *,
    capacity: int,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[list[list[int]], SubPool, list[int], Emitted | None]:
    """Extend the rows; return the request table, the sub-pool, the slots and what is emitted.

    `told` is the length of new_ids and new_pages, None for a plan that emits nothing.
    """
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    table = request_table
    if not isinstance(table, Guarded):
        table = Guarded(table, torch.int32, subject.device, how.layout("request_table"), shape_of(table))
    arguments: dict[str, Any] = {
        "request_table": table,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "prefix_lens": Guarded(prefix_lens, spec.length_dtype, subject.device, how.layout("prefix_lens")),
        "indptr": Guarded(indptr, spec.indptr_dtype, subject.device, how.layout("indptr")),
        "tables": placed,
        "slots": Guarded.poisoned((capacity,), spec.out_dtype, subject.device, how.layout("slots")),
        "pages": pages,
    }
    emitted = None
    if told is not None:
        for name, length in (("token_ids", capacity), ("new_ids", told), ("new_pages", told)):
            arguments[name] = Guarded.poisoned((length,), spec.id_dtype, subject.device, how.layout(name))
        poison = [POISON[spec.id_dtype]]
        emitted = Emitted(poison * capacity, poison * told, poison * told)
    rows, after, slots, emitted, counters = oracle.extend(
        table.before_values(),
        req_rows,
        prefix_lens,
        indptr,
        pool,
        [POISON[spec.out_dtype]] * capacity,
        page_size=spec.page_size,
        form=spec.form,
        multiplier=spec.multiplier,
        pages=pages,
        emitted=emitted,
    )
    expected = placed.expected(pool, after, counters if how.checks != "off" else {})
    expected |= {"request_table": rows, "slots": slots, **(emitted._asdict() if emitted else {})}
    hold(subject, EXTEND, spec, arguments, expected, how)
    return rows, after, slots, emitted
