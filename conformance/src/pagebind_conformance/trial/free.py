"""A free on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagebind.ops import FREE, FreeSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold, released, repeating


def free(
    subject: Subject,
    spec: FreeSpec,
    pool: SubPool,
    ids: Sequence[int],
    placed: GuardedPool | None = None,
    how: How = USUAL,
    pages: int | None = None,
) -> tuple[SubPool, list[int]]:
    """Free the ids; return the sub-pool and `freed`, where ids repeat as the backend left them."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    arguments: dict[str, Any] = {
        "ids": Guarded(ids, spec.id_dtype, subject.device, how.layout("ids")),
        "tables": placed,
        "freed": Guarded.poisoned((len(ids),), spec.id_dtype, subject.device, how.layout("freed")),
    }
    if pages is not None:
        arguments["pages"] = pages
    after, freed, counters = oracle.free(pool, ids, borrowed=spec.borrowed, pages=pages)
    seen = counters if how.checks != "off" else {}
    expected = placed.expected(pool, after, seen, pushes=True, repeats=repeating(ids), borrowed=spec.borrowed)
    hold(subject, FREE, spec, arguments, expected | {"freed": released(freed, ids)}, how)
    return as_left(after, placed), arguments["freed"].values()


def as_left(pool: SubPool, placed: GuardedPool) -> SubPool:
    """Return `pool` with the stacks as they lie on the device: after repeats their order is the backend's own."""
    return pool._replace(
        virtual_stack=placed.parts["virtual_stack"].before_values(),
        hole_stack=placed.parts["hole_stack"].before_values(),
    )
