"""The calls of one sub-pool that need no request table, planned once; those that its geometry has others plan."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from pagebind.backend import Backend
from pagebind.operation import LaunchOptions, Operation
from pagebind.ops import (
    ALLOC,
    COMPACT,
    FREE,
    READ_TABLE,
    REFRESH_TABLE,
    TRANSLATE,
    AllocSpec,
    Beside,
    CompactSpec,
    FreeSpec,
    ReadTableSpec,
    RefreshTableSpec,
    TranslateSpec,
)
from pagebind.ops.read_table import ReadTable
from pagebind.ops.refresh_table import RefreshTable
from pagebind.plan import Planned, plan_with
from pagebind.pool.chain import Place, SubPool


class Settings(Protocol):
    """What plans are made with."""

    backend: Backend
    device: torch.device
    checks: str
    index_dtype: torch.dtype
    buffer: torch.Tensor | None


class IdPlans:
    """Planned calls of one sub-pool by id."""

    def __init__(self, settings: Settings, spec: SubPool, place: Place, num_virtual: int) -> None:
        self.spec, self.place, self.num_virtual = spec, place, num_virtual
        self.index_dtype = settings.index_dtype
        self._settings = settings
        self.alloc = self.plan_alloc(torch.int32)
        self.free = self.plan(
            FREE,
            FreeSpec(max_items=num_virtual, borrowed=spec.ids_of is not None, index_dtype=settings.index_dtype),
        )
        self.compact = self.plan(
            COMPACT,
            CompactSpec(
                max_pages=place.num_physical,
                page_bytes=0 if settings.buffer is None else place.page_bytes,
                index_dtype=settings.index_dtype,
            ),
        )

    def plan_alloc(self, id_dtype: torch.dtype) -> Planned:
        """Plan takes whose ids are of `id_dtype`."""
        borrowed = self.spec.ids_of is not None
        spec = AllocSpec(max_items=self.num_virtual, borrowed=borrowed, index_dtype=self.index_dtype, id_dtype=id_dtype)
        return self.plan(ALLOC, spec)

    def read_table(self, **asked: Any) -> ReadTable:
        """Plan a read table; `asked` are fields of ReadTableSpec that the sub-pool leaves open."""
        return READ_TABLE.call_type(self.plan(READ_TABLE, ReadTableSpec(**self._table(), **asked)))

    def beside(self, *, windowed: bool) -> Beside:
        """Return what a plan of two read tables is told of the second one, which is over this sub-pool."""
        return Beside(self.place.num_physical, self.spec.multiplier, windowed)

    def refresh_table(self, **asked: Any) -> RefreshTable:
        """Plan the refresh of a read table; `asked` are fields of RefreshTableSpec that the sub-pool leaves open."""
        return REFRESH_TABLE.call_type(self.plan(REFRESH_TABLE, RefreshTableSpec(**self._table(), **asked)))

    def _table(self) -> dict[str, Any]:
        return {
            "num_physical": self.place.num_physical,
            "multiplier": self.spec.multiplier,
            "index_dtype": self.index_dtype,
        }

    def plan_translate(self, max_items: int, id_dtype: torch.dtype, out_dtype: torch.dtype, **ranks: int) -> Planned:
        """Plan a translation of token ids; `ranks` and `rank` for a context-parallel group."""
        spec = TranslateSpec(
            max_items=max_items,
            page_size=self.spec.page_size,
            num_physical=self.place.num_physical,
            multiplier=self.spec.multiplier,
            index_dtype=self.index_dtype,
            id_dtype=id_dtype,
            out_dtype=out_dtype,
            **ranks,
        )
        return self.plan(TRANSLATE, spec)

    def warmup(self) -> None:
        """Compile every variant that the calls can need."""
        for planned in (self.alloc, self.free, self.compact):
            planned.warmup()

    def plan(self, operation: Operation[Any, Any], spec: Any) -> Planned:
        """Plan an operation on the pool's backend and device."""
        s = self._settings
        return plan_with(s.backend, operation, spec, s.device, s.checks, LaunchOptions())
