"""The calls of a pool over rows of its request table, planned once: of the owner of the rows' ids, and of borrowers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pagebind.operation import INT32_MAX
from pagebind.ops import (
    ASSIGN,
    EVICT,
    EXTEND,
    RELEASE,
    TRUNCATE,
    AssignSpec,
    EvictSpec,
    ExtendSpec,
    ReleaseSpec,
    TruncateSpec,
)
from pagebind.ops.evict import PARTS, Part
from pagebind.plan import Planned
from pagebind.pool.id_plans import IdPlans
from pagebind.words import Form


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
        self.truncate = of.plan(TRUNCATE, TruncateSpec(max_pages=num, **rows))
        self.release = {
            shared: of.plan(RELEASE, ReleaseSpec(max_pages=num, shared=shared, **rows)) for shared in (False, True)
        }
        self.assign = of.plan(ASSIGN, AssignSpec(max_bs=sizes.max_bs, max_items=INT32_MAX))
        self.slots = _slots(of, sizes)

    def warmup(self) -> None:
        """Compile every variant that the calls can need."""
        for planned in (self.extend, self.truncate, *self.release.values(), self.assign, self.slots):
            planned.warmup()


class BorrowerPlans:
    """Calls of a sub-pool that binds pages of its own to the rows' ids."""

    def __init__(self, of: IdPlans, sizes: Sizes) -> None:
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


def _rows(of: IdPlans, sizes: Sizes) -> dict[str, Any]:
    return {
        "max_bs": sizes.max_bs,
        "page_size": of.spec.page_size * sizes.ranks,
        "form": sizes.form,
        "index_dtype": of.index_dtype,
    }


def _slots(of: IdPlans, sizes: Sizes) -> Planned:
    return of.plan_translate(sizes.max_tokens, sizes.id_dtype, torch.int32, ranks=sizes.ranks, rank=sizes.rank)
