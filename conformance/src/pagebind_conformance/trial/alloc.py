"""An allocation on lists, held against the oracle."""

from __future__ import annotations

from typing import Any

from pagebind.ops import ALLOC, AllocSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold


def alloc(
    subject: Subject,
    spec: AllocSpec,
    pool: SubPool,
    asked: int,
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[SubPool, list[int], list[int]]:
    """Take `asked` pages; return the sub-pool afterwards, ids and pages. `placed` is where `pool` lies already."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    arguments: dict[str, Any] = {
        "tables": placed,
        "ids": Guarded.poisoned((asked,), spec.id_dtype, subject.device, how.layout("ids")),
        "pages": Guarded.poisoned((asked,), spec.id_dtype, subject.device, how.layout("pages")),
    }
    after, ids, pages, counters = oracle.alloc(pool, asked)
    expected = placed.expected(pool, after, counters if how.checks != "off" else {})
    hold(subject, ALLOC, spec, arguments, expected | {"ids": ids, "pages": pages}, how)
    return after, ids, pages
