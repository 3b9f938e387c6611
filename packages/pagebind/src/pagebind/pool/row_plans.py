"""The calls of a pool over rows of its request table, planned once: of the owner of the rows' ids, and of borrowers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pagebind.errors import InvalidArgument, Unsupported
from pagebind.operation import INT32_MAX, largest_entry
from pagebind.ops import (
    ADVANCE,
    ASSIGN,
    EVICT,
    EXTEND,
    RELEASE,
    TOUCH,
    TRUNCATE,
    AdvanceSpec,
    AssignSpec,
    EvictSpec,
    ExtendSpec,
    ReleaseSpec,
    TouchSpec,
    TruncateSpec,
)
from pagebind.ops.evict import PARTS, Part
from pagebind.plan import Planned
from pagebind.pool.id_plans import IdPlans
from pagebind.words import Form

TABLES: tuple[Form, ...] = ("page", "token")
"""Cells of a read table that a decode step may append to; those of a context-parallel group hold pages."""


@dataclass(frozen=True)
class Sizes:
    """What calls over rows are planned for."""

    form: Form
    max_bs: int
    max_tokens: int
    id_dtype: torch.dtype  # of virtual token ids and of what goes with them
    ranks: int  # of the context-parallel group
    rank: int


class OwnerPlans:
    """Calls of the sub-pool whose ids the rows hold; `release[shared]` has one for each kind."""

    def __init__(self, of: IdPlans, sizes: Sizes, *, emits: bool) -> None:
        _need_slots_fit(of)
        rows, num = _rows(of, sizes), of.place.num_physical
        self.extend = of.plan(
            EXTEND,
            ExtendSpec(
                max_tokens=sizes.max_tokens,
                num_virtual=of.num_virtual,
                num_physical=num,
                multiplier=of.spec.multiplier,
                emits=emits,
                id_dtype=sizes.id_dtype,
                out_dtype=torch.int32 if sizes.ranks == 1 else torch.int64,
                **rows,
            ),
        )
        self._of = of
        self._step: dict[str, Any] = {
            "num_virtual": of.num_virtual,
            "num_physical": num,
            "multiplier": of.spec.multiplier,
            "emits": emits,
            "id_dtype": sizes.id_dtype,
            "out_dtype": torch.int32 if sizes.ranks == 1 else torch.int64,
            **rows,
        }
        self._steps: dict[Form | None, Planned] = {None: self._plan_step(None)}
        for granularity in TABLES if sizes.ranks == 1 else TABLES[:1]:
            with suppress(Unsupported):  # a call that asks for it is told
                self._steps[granularity] = self._plan_step(granularity)
        self.truncate = of.plan(TRUNCATE, TruncateSpec(max_pages=num, **rows))
        self.release = {
            shared: of.plan(RELEASE, ReleaseSpec(max_pages=num, shared=shared, **rows)) for shared in (False, True)
        }
        self.assign = of.plan(ASSIGN, AssignSpec(max_bs=sizes.max_bs, max_items=INT32_MAX))
        self.touch = of.plan(TOUCH, TouchSpec(max_bs=sizes.max_bs))
        self.slots = _slots(of, sizes)

    def advance(self, granularity: Form | None) -> Planned:
        """Return the plan of a decode step: with a read table of such cells, int32, or without one.

        Raises Unsupported where the backend does not declare it.
        """
        return self._steps.get(granularity) or self._plan_step(granularity)

    def _plan_step(self, granularity: Form | None) -> Planned:
        appends: dict[str, Any] = {} if granularity is None else {"appends": True, "granularity": granularity}
        return self._of.plan(ADVANCE, AdvanceSpec(**self._step, **appends))

    def warmup(self) -> None:
        """Compile every variant that the calls can need."""
        for planned in self._steps.values():
            planned.warmup()
        for planned in (self.extend, self.truncate, *self.release.values(), self.assign, self.touch, self.slots):
            planned.warmup()


class BorrowerPlans:
    """Calls of a sub-pool that binds pages of its own to the rows' ids."""

    def __init__(self, of: IdPlans, sizes: Sizes) -> None:
        _need_slots_fit(of)
        rows = _rows(of, sizes)
        self.borrow = of.plan_alloc(sizes.id_dtype)
        self.slots = _slots(of, sizes)
        self.evict: dict[Part, Planned] = {
            part: of.plan(EVICT, EvictSpec(part=part, max_pages=of.num_virtual, **rows)) for part in PARTS
        }

    def warmup(self) -> None:
        """Compile every variant that the calls can need."""
        for planned in (self.borrow, self.slots, *self.evict.values()):
            planned.warmup()


def _need_slots_fit(of: IdPlans) -> None:
    # The slots of a pool are int32. Where they fit, so do the entries of all other plans over rows.
    num, spec = of.place.num_physical, of.spec
    largest = largest_entry(num, spec.multiplier, spec.page_size, "token")
    if largest > INT32_MAX:
        raise InvalidArgument(
            f"the largest slot of sub-pool {spec.name!r} is {largest} ({num} pages with the sink, multiplier "
            f"{spec.multiplier}, page_size {spec.page_size}), more than the int32 slots of a pool hold ({INT32_MAX}); "
            "make the pool smaller, or lower the sub-pool's multiplier or page_size"
        )


def _rows(of: IdPlans, sizes: Sizes) -> dict[str, Any]:
    return {
        "max_bs": sizes.max_bs,
        "page_size": of.spec.page_size * sizes.ranks,
        "form": sizes.form,
        "index_dtype": of.index_dtype,
    }


def _slots(of: IdPlans, sizes: Sizes) -> Planned:
    return of.plan_translate(
        max(sizes.max_tokens, sizes.max_bs), sizes.id_dtype, torch.int32, ranks=sizes.ranks, rank=sizes.rank
    )
