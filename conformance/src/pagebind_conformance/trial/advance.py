"""A decode step on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import ADVANCE, AdvanceSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.oracle import Advanced, Emitted, SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, shape_of


def advance(
    subject: Subject,
    spec: AdvanceSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    seq_lens: Sequence[int] | Guarded,
    pool: SubPool,
    *,
    table: Sequence[Sequence[int]] | Guarded | None = None,
    told: int | None = None,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> Advanced:
    """Take one step and return what it leaves.

    A plan that appends needs a `table`; one that emits has `told` cells for new pages, one a lane where None. Tensors
    that are given stay the caller's: the next step goes on with them.
    """
    arguments = advance_case(subject, spec, request_table, req_rows, seq_lens, pool, table, told, pages, placed, how)
    after, expected = expected_of(spec, arguments, pool, counts=how.checks != "off")
    hold(subject, ADVANCE, spec, arguments, expected, how)
    return after


def advance_case(
    subject: Subject,
    spec: AdvanceSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    seq_lens: Sequence[int] | Guarded,
    pool: SubPool,
    table: Sequence[Sequence[int]] | Guarded | None = None,
    told: int | None = None,
    pages: int | None = None,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> dict[str, Any]:
    """Return the arguments of a step, placed between guard bands."""

    def place(name: str, values: Any, dtype: torch.dtype) -> Guarded:
        if isinstance(values, Guarded):
            return values
        shape = shape_of(values) if name in ("request_table", "table") else None
        return Guarded(values, dtype, subject.device, how.layout(name), shape)

    bs = len(req_rows)
    arguments: dict[str, Any] = {
        "request_table": place("request_table", request_table, torch.int32),
        "req_rows": place("req_rows", req_rows, spec.row_dtype),
        "seq_lens": place("seq_lens", seq_lens, spec.length_dtype),
        "tables": placed or GuardedPool(pool, spec.index_dtype, subject.device, how),
        "slots": Guarded.poisoned((bs,), spec.out_dtype, subject.device, how.layout("slots")),
        "pages": pages,
    }
    if table is not None:
        arguments["table"] = place("table", table, spec.table_dtype)
    if spec.emits:
        told = bs if told is None else told
        for name, length in (("token_ids", bs), ("new_ids", told), ("new_pages", told)):
            arguments[name] = Guarded.poisoned((length,), spec.id_dtype, subject.device, how.layout(name))
    return arguments


def expected_of(
    spec: AdvanceSpec, arguments: dict[str, Any], pool: SubPool, *, counts: bool = True
) -> tuple[Advanced, dict[str, Any]]:
    """Return what a step leaves of the values that its arguments were last verified to hold, also by their names."""
    before = {name: part.before_values() for name, part in arguments.items() if isinstance(part, Guarded)}
    emitted = None
    if spec.emits:
        poison = POISON[spec.id_dtype]
        lengths = [len(before[name]) for name in Emitted._fields]
        emitted = Emitted(*([poison] * length for length in lengths))
    after = oracle.advance(
        before["request_table"],
        before["req_rows"],
        before["seq_lens"],
        pool,
        before["slots"],
        page_size=spec.page_size,
        longest=torch.iinfo(spec.length_dtype).max,
        form=spec.form,
        multiplier=spec.multiplier,
        pages=arguments["pages"],
        table=before.get("table"),
        granularity=spec.granularity,
        emitted=emitted,
    )
    expected = arguments["tables"].expected(pool, after.pool, after.counters if counts else {})
    expected |= {"request_table": after.request_table, "seq_lens": after.seq_lens, "slots": after.slots}
    expected |= {} if after.table is None else {"table": after.table}
    expected |= after.emitted._asdict() if after.emitted else {}
    return after, expected
