"""free: unbind ids and give them and their pages back, beside what SGLang's allocator does for the same."""

from __future__ import annotations

from functools import cache

import torch
from pagebind import Backend
from pagebind.ops import FREE, FreeSpec

from pagebind_bench.bench.inputs import DTYPES, Pool, half_live, page_tables, seed
from pagebind_bench.bench.kinds import FreeCase
from pagebind_bench.bench.lab import Contender, Lab, Work
from pagebind_bench.bench.sglang import Sglang


def contenders(case: FreeCase, lab: Lab) -> list[Contender]:
    """Return who frees the ids of a case."""

    @cache
    def given() -> tuple[Pool, torch.Tensor]:
        random = torch.Generator().manual_seed(seed(case))
        pool = half_live(case.pool, case.holes, scattered=case.layout == "scattered", random=random)
        return pool, pool.bound[: case.pages]

    def spec(dtype: torch.dtype) -> FreeSpec:
        return FreeSpec(max_items=case.pages, index_dtype=dtype, id_dtype=dtype)

    def own(backend: Backend) -> Work:
        dtype = DTYPES[case.dtype]
        pool, ids = given()
        planned = lab.plan(backend, FREE, spec(dtype))
        arena = pool.arena(lab.device, dtype)
        tables, mine = page_tables(arena), ids.to(lab.device, dtype)
        freed = torch.zeros_like(mine)

        def call() -> None:
            planned(mine, tables, freed=freed, pages=case.pages)

        return Work(
            call,
            FREE.bytes_moved(spec(dtype), lanes=1, items=case.pages),
            result=freed.long,
            restore=arena.restore,
            state=tables.state,
        )

    def sglang(peer: Sglang) -> Work:
        pool, ids = given()
        arena = pool.arena(lab.device, torch.int64)
        v2p, p2v = arena["v2p"], arena["p2v"]
        theirs, free, holes = (x.to(lab.device) for x in (ids, pool.free, pool.holes))
        kept: dict[str, torch.Tensor] = {}

        def call() -> None:
            kept["freed"] = peer.free_unbind_inplace(theirs, v2p, p2v)
            # The lists are replaced: each free copies both of them whole.
            kept["free"] = torch.cat((free, theirs))
            kept["holes"] = torch.cat((holes, kept["freed"]))

        return Work(
            call,
            FREE.bytes_moved(spec(torch.int64), lanes=1, items=case.pages),
            result=lambda: kept["freed"],
            restore=arena.restore,
        )

    found = lab.own(own)
    if lab.sglang is not None:
        peer = lab.sglang
        found.append(Contender("sglang", lambda: sglang(peer)))
    return found
