"""Pools to prove things on: every chain, page sizes 1 to 4, so few bytes that neighbours are always in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pagebind.operation import Checks
from pagebind.words import Form

from pagebind_conformance.pool_model import Kind

Shape = Literal["single", "two ends", "end + float + end"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One pool; fields as in `pagebind.pool.UnifiedPool`."""

    shape: Shape
    kinds: tuple[Kind, ...]
    total_bytes: int
    form: Form
    rows_of: str | None = None
    buffer: bool = True
    checks: Checks = "count"
    index_dtype: torch.dtype = torch.int32
    ranks: int = 1
    rank: int = 0
    max_requests: int = 4
    max_context: int = 24
    max_bs: int = 3
    max_tokens: int = 24

    @property
    def owner(self) -> Kind:
        """The kind whose ids rows hold."""
        owners = [kind for kind in self.kinds if kind.ids_of is None]
        return next((kind for kind in owners if kind.name == self.rows_of), owners[0])


SETUPS: dict[str, Setup] = {
    "up": Setup(
        shape="single",
        kinds=(Kind(name="kv", page_size=3, page_bytes=16, grows="up", multiplier=5),),
        total_bytes=16 * 15,
        form="token",
    ),
    "down": Setup(
        shape="single",
        kinds=(Kind(name="kv", page_size=4, page_bytes=48, grows="down", max_pages=11),),
        total_bytes=48 * 14 + 16,
        form="page",
        index_dtype=torch.int64,
    ),
    "full+window": Setup(
        shape="two ends",
        kinds=(
            Kind(name="full", page_size=1, page_bytes=48, grows="up"),
            Kind(name="window", page_size=1, page_bytes=32, grows="down", ids_of="full", multiplier=3),
        ),
        total_bytes=80 + 48 * 7 + 32 * 5 + 8,
        form="page",
    ),
    "window+full": Setup(
        shape="two ends",
        kinds=(
            Kind(name="window", page_size=3, page_bytes=16, grows="up", ids_of="full", zero_on_alloc=True),
            Kind(name="full", page_size=3, page_bytes=64, grows="down", multiplier=2),
        ),
        total_bytes=80 + 64 * 5 + 16 * 5,
        form="token",
    ),
    "full+window+state": Setup(
        shape="end + float + end",
        kinds=(
            Kind(name="full", page_size=4, page_bytes=64, grows="up"),
            Kind(name="window", page_size=4, page_bytes=32, grows="float", ids_of="full"),
            Kind(name="state", page_size=1, page_bytes=80, grows="down", zero_on_alloc=True, max_pages=4),
        ),
        total_bytes=176 + 64 * 4 + 32 * 5 + 80 * 3 + 24,
        form="page",
    ),
    "full+near+far": Setup(
        shape="end + float + end",
        kinds=(
            Kind(name="full", page_size=3, page_bytes=32, grows="up", zero_on_alloc=True),
            Kind(name="near", page_size=3, page_bytes=48, grows="float", ids_of="full", zero_on_alloc=True),
            Kind(name="far", page_size=3, page_bytes=16, grows="down", ids_of="full", multiplier=7),
        ),
        total_bytes=96 + 32 * 6 + 48 * 4 + 16 * 5,
        form="token",
    ),
    "state+rows+aux": Setup(
        shape="end + float + end",
        kinds=(
            Kind(name="state", page_size=1, page_bytes=112, grows="up", max_pages=3),
            Kind(name="kv", page_size=3, page_bytes=32, grows="float"),
            Kind(name="aux", page_size=1, page_bytes=48, grows="down"),
        ),
        total_bytes=192 + 112 * 2 + 32 * 8 + 48 * 3,
        form="page",
        rows_of="kv",
    ),
    "bytes-3-2-5": Setup(
        shape="end + float + end",
        kinds=(
            Kind(name="full", page_size=1, page_bytes=3, grows="up"),
            Kind(name="window", page_size=1, page_bytes=2, grows="float", ids_of="full"),
            Kind(name="state", page_size=1, page_bytes=5, grows="down"),
        ),
        total_bytes=10 + 31,
        form="token",
        buffer=False,
    ),
    "bytes-1-4-2": Setup(
        shape="end + float + end",
        kinds=(
            Kind(name="full", page_size=4, page_bytes=1, grows="up"),
            Kind(name="window", page_size=4, page_bytes=4, grows="float", ids_of="full"),
            Kind(name="state", page_size=1, page_bytes=2, grows="down"),
        ),
        total_bytes=7 + 29,
        form="page",
        buffer=False,
    ),
    "bytes-5-2": Setup(
        shape="two ends",
        kinds=(
            Kind(name="kv", page_size=1, page_bytes=5, grows="up"),
            Kind(name="state", page_size=1, page_bytes=2, grows="down"),
        ),
        total_bytes=7 + 44,
        form="page",
        buffer=False,
    ),
    "rank-1-of-2": Setup(
        shape="two ends",
        kinds=(
            Kind(name="full", page_size=3, page_bytes=48, grows="up", multiplier=2),
            Kind(name="window", page_size=3, page_bytes=16, grows="down", ids_of="full", zero_on_alloc=True),
        ),
        total_bytes=64 + 48 * 4 + 16 * 3,
        form="token",
        ranks=2,
        rank=1,
    ),
    "full-checks": Setup(
        shape="two ends",
        kinds=(
            Kind(name="full", page_size=3, page_bytes=32, grows="up"),
            Kind(name="window", page_size=3, page_bytes=16, grows="down", ids_of="full"),
        ),
        total_bytes=48 + 32 * 6 + 16 * 5,
        form="page",
        checks="full",
    ),
}
"""By name."""
