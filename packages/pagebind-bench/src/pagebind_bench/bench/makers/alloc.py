"""alloc: take pages off the stacks and bind them, beside what SGLang's allocator does for the same."""

from __future__ import annotations

from functools import cache

import torch
from pagebind import Backend
from pagebind.ops import ALLOC, AllocSpec

from pagebind_bench.bench.inputs import DTYPES, Pool, half_live, page_tables, seed
from pagebind_bench.bench.kinds import AllocCase
from pagebind_bench.bench.lab import Contender, Lab, Work
from pagebind_bench.bench.sglang import Sglang


def contenders(case: AllocCase, lab: Lab) -> list[Contender]:
    """Return who takes the pages of a case."""

    @cache
    def given() -> Pool:
        random = torch.Generator().manual_seed(seed(case))
        return half_live(case.pool, case.holes, scattered=case.layout == "scattered", random=random)

    def spec(dtype: torch.dtype) -> AllocSpec:
        return AllocSpec(max_items=case.pages, index_dtype=dtype, id_dtype=dtype)

    def own(backend: Backend) -> Work:
        dtype = DTYPES[case.dtype]
        planned = lab.plan(backend, ALLOC, spec(dtype))
        arena = given().arena(lab.device, dtype)
        tables = page_tables(arena)
        ids, pages = (torch.zeros(case.pages, dtype=dtype, device=lab.device) for _ in range(2))

        def call() -> None:
            planned(tables, ids=ids, pages=pages)

        return Work(
            call,
            ALLOC.bytes_moved(spec(dtype), lanes=1, items=case.pages),
            result=ids.long,
            restore=arena.restore,
            state=tables.state,
        )

    def sglang(peer: Sglang) -> Work:
        arena = given().arena(lab.device, torch.int64)
        v2p, p2v = arena["v2p"], arena["p2v"]
        # Its lists are tensors that calls replace and never write; both are taken from the front.
        free, holes = given().free.flip(0).to(lab.device), given().holes.flip(0).to(lab.device)
        kept: dict[str, torch.Tensor] = {}

        def call() -> None:
            virtual, kept["free"] = free[: case.pages], free[case.pages :]
            begin = given().watermark + 1
            if not case.holes:
                kept["pages"] = peer.alloc_bind_inplace(virtual, v2p, p2v, begin)
            else:
                kept["pages"], kept["holes"] = _drained(holes, case.pages, begin)
                peer.bind_inplace(virtual, kept["pages"], v2p, p2v)
            kept["ids"] = virtual

        return Work(
            call,
            ALLOC.bytes_moved(spec(torch.int64), lanes=1, items=case.pages),
            result=lambda: kept["ids"],
            restore=arena.restore,
        )

    found = lab.own(own)
    if lab.sglang is not None:
        peer = lab.sglang
        found.append(Contender("sglang", lambda: sglang(peer)))
    return found


def _drained(holes: torch.Tensor, asked: int, begin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pages that a lazy, growing-up `take_physical` returns, and the holes that it leaves.

    All holes where that is not too many, else the lowest of them in order; then pages from the frontier `begin`.
    """
    drained = min(asked, holes.shape[0])
    if drained == holes.shape[0]:
        taken, left = holes, holes[:0]
    else:
        ordered, _ = torch.sort(holes)
        taken, left = ordered[:drained], ordered[drained:]
    if asked == drained:
        return taken.clone(), left
    grown = torch.arange(begin, begin + asked - drained, dtype=torch.int64, device=holes.device)
    return torch.cat((taken, grown)), left
