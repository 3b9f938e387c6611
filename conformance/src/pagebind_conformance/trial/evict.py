"""An eviction on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import EVICT, EvictSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.oracle.evict import ids_to_evict
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, released, repeating, shape_of
from pagebind_conformance.trial.free import as_left


def evict(
    subject: Subject,
    spec: EvictSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    starts: Sequence[int],
    lens: Sequence[int],
    pool: SubPool,
    first: Sequence[int] | Guarded,
    *,
    capacity: int,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[SubPool, list[int], list[int]]:
    """Give back pages of the rows; return the sub-pool, `first` and `freed`."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    table, moving = request_table, first
    if not isinstance(table, Guarded):
        table = Guarded(table, torch.int32, subject.device, how.layout("request_table"), shape_of(table))
    if not isinstance(moving, Guarded):
        moving = Guarded(moving, torch.int32, subject.device, how.layout("first"))
    arguments: dict[str, Any] = {
        "request_table": table,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "starts": Guarded(starts, spec.length_dtype, subject.device, how.layout("starts")),
        "lens": Guarded(lens, spec.length_dtype, subject.device, how.layout("lens")),
        "tables": placed,
        "first": moving,
        "freed": Guarded.poisoned((capacity,), spec.id_dtype, subject.device, how.layout("freed")),
        "pages": pages,
    }
    rows, begun = table.before_values(), moving.before_values()
    lanes: dict[str, Any] = {"part": spec.part, "page_size": spec.page_size, "form": spec.form}
    after, moved, freed, counters = oracle.evict(
        rows, req_rows, starts, lens, pool, begun, [POISON[spec.id_dtype]] * capacity, pages=pages, **lanes
    )
    ids, _, _ = ids_to_evict(rows, req_rows, starts, lens, begun, capacity, **lanes)
    seen = counters if how.checks != "off" else {}
    expected = placed.expected(pool, after, seen, pushes=True, repeats=repeating(ids), borrowed=True)
    hold(subject, EVICT, spec, arguments, expected | {"first": moved, "freed": released(freed, ids)}, how)
    return as_left(after, placed), moved, arguments["freed"].values()
