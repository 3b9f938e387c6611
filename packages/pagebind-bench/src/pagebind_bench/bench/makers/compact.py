"""compact: move scattered live pages into scattered holes, against the bandwidth of a plain copy.

Pages 1 to 2n hold n live pages and n holes, at random; the band above them, which is left, holds as many of both: n
pages move.
"""

from __future__ import annotations

from functools import cache

import torch
from pagebind import Backend
from pagebind.ops import COMPACT, CompactSpec

from pagebind_bench.bench.inputs import DTYPES, Pool, page_tables, pool, seed
from pagebind_bench.bench.kinds import CompactCase
from pagebind_bench.bench.lab import Contender, Lab, Work


def contenders(case: CompactCase, lab: Lab) -> list[Contender]:
    """Return who compacts. The bytes are moved anew by every call, whatever they are: only tables are restored."""
    n = case.pages
    retreat = 2 * n

    @cache
    def given() -> Pool:
        random = torch.Generator().manual_seed(seed(case))
        low = torch.randperm(retreat, generator=random) + 1
        high = torch.randperm(retreat, generator=random) + 1 + retreat
        holes = torch.cat((low[:n], high[:n]))[torch.randperm(retreat, generator=random)]
        span = torch.cat((holes, low[n:], high[n:]))
        return pool(2 * retreat, span, retreat, scattered=True, random=random)

    @cache
    def buffer() -> torch.Tensor:
        size = given().num_physical * case.page_bytes
        words = torch.randint(2**62, (size // 8,), dtype=torch.int64, device=lab.device)
        return words.view(torch.uint8)

    def own(backend: Backend) -> Work:
        dtype = DTYPES[case.dtype]
        spec = CompactSpec(max_pages=retreat, page_bytes=case.page_bytes, index_dtype=dtype, id_dtype=dtype)
        planned = lab.plan(backend, COMPACT, spec)
        arena, moving = given().arena(lab.device, dtype), buffer()
        tables = page_tables(arena)
        sources, targets = (torch.zeros(retreat, dtype=dtype, device=lab.device) for _ in range(2))

        def call() -> None:
            planned(tables, retreat=retreat, sources=sources, targets=targets, buffer=moving)

        return Work(
            call,
            COMPACT.bytes_moved(spec, lanes=1, items=n),
            result=lambda: torch.cat((sources, targets)).long(),
            restore=arena.restore,
            state=tables.state,
        )

    return lab.own(own)
