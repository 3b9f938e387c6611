"""The calls of a pool, planned once over its geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pagebind.backend import Backend
from pagebind.operation import INT32_MAX, LaunchOptions, Operation
from pagebind.ops import (
    ALLOC,
    ASSIGN,
    COMPACT,
    EXTEND,
    FREE,
    READ_TABLE,
    RELEASE,
    TRUNCATE,
    AllocSpec,
    AssignSpec,
    CompactSpec,
    ExtendSpec,
    FreeSpec,
    ReadTableSpec,
    ReleaseSpec,
    TruncateSpec,
)
from pagebind.ops.read_table import ReadTable
from pagebind.plan import plan_with
from pagebind.words import Form


@dataclass(frozen=True)
class Geometry:
    """Sizes of a pool. `num_pages` does not count the sink."""

    num_pages: int
    page_size: int  # tokens
    form: Form
    multiplier: int
    page_bytes: int
    max_bs: int
    max_tokens: int
    index_dtype: torch.dtype


class PoolPlans:
    """Every planned call of a pool on one backend and device; `release[shared]` has one for each kind."""

    def __init__(self, geometry: Geometry, backend: Backend, device: torch.device, checks: str) -> None:
        self._geometry = g = geometry
        self._backend, self._device, self._checks = backend, device, checks
        dtype, num = g.index_dtype, g.num_pages + 1
        rows: dict[str, Any] = {"max_bs": g.max_bs, "page_size": g.page_size, "form": g.form, "index_dtype": dtype}
        self.alloc = self._plan(ALLOC, AllocSpec(max_items=g.num_pages, index_dtype=dtype))
        self.free = self._plan(FREE, FreeSpec(max_items=g.num_pages, index_dtype=dtype))
        self.extend = self._plan(
            EXTEND,
            ExtendSpec(max_tokens=g.max_tokens, num_virtual=num, num_physical=num, multiplier=g.multiplier, **rows),
        )
        self.truncate = self._plan(TRUNCATE, TruncateSpec(max_pages=g.num_pages, **rows))
        self.release = {
            shared: self._plan(RELEASE, ReleaseSpec(max_pages=g.num_pages, shared=shared, **rows))
            for shared in (False, True)
        }
        self.assign = self._plan(ASSIGN, AssignSpec(max_bs=g.max_bs, max_items=INT32_MAX))
        self.compact = self._plan(
            COMPACT, CompactSpec(max_pages=g.num_pages, page_bytes=g.page_bytes, index_dtype=dtype)
        )

    def read_table(self, max_width: int, **asked: Any) -> ReadTable:
        """Plan a read table; `asked` are fields of ReadTableSpec that the geometry leaves open."""
        g = self._geometry
        spec = ReadTableSpec(
            max_bs=g.max_bs,
            max_width=max_width,
            page_size=g.page_size,
            num_physical=g.num_pages + 1,
            form=g.form,
            multiplier=g.multiplier,
            index_dtype=g.index_dtype,
            **asked,
        )
        return READ_TABLE.call_type(self._plan(READ_TABLE, spec))

    def warmup(self) -> None:
        """Compile every variant that the calls can need."""
        some = (self.alloc, self.free, self.extend, self.truncate, self.assign, self.compact)
        for planned in (*some, *self.release.values()):
            planned.warmup()

    def _plan(self, operation: Operation[Any, Any], spec: Any) -> Any:
        return plan_with(self._backend, operation, spec, self._device, self._checks, LaunchOptions())
