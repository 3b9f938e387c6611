"""A few calls to look at under a profiler, eager, each made three times: `python -m pagebind_bench.bench.profiled`.

They are outside of the bench, because a profiler replays each kernel by itself and would find a graph's in the way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from pagebind import plan
from pagebind.ops import COMPACT, READ_TABLE, REFRESH_TABLE, CompactSpec, ReadTableSpec, RefreshTableSpec
from pagebind.ops.refresh_table import new_built
from pagebind.ops.touch import new_versions
from pagebind.words import HOLE, HOLE_TOP, SINK, TOMBSTONE, WATERMARK, new_state, new_tables

TIMES = 3
"""Calls of each, and of a refresh one more: the first builds its table."""


class Table:
    """A batch of `bs` rows of `length` tokens with room for TIMES more, ids and pages from a pool of `pool` pages."""

    def __init__(self, bs: int, length: int, pool: int, device: torch.device, *, scattered: bool = True) -> None:
        wide, width = length + TIMES, max(length + TIMES, min(131_072, pool))
        pool = max(pool, bs * wide * 5 // 4)

        def order() -> torch.Tensor:
            return torch.randperm(pool, device=device) if scattered else torch.arange(pool, device=device)

        self.request_table = torch.full((bs, width), HOLE, dtype=torch.int32, device=device)
        self.request_table[:, :wide] = (order()[: bs * wide] + 1).view(bs, wide)
        sink, sentinel = (torch.tensor([end], device=device) for end in (SINK, TOMBSTONE))
        self.v2p = torch.cat((sink, order() + 1, sentinel)).to(torch.int32)
        self.rows = torch.arange(bs, dtype=torch.int32, device=device)
        self.lens = torch.full((bs,), length, dtype=torch.int32, device=device)
        self.out = torch.zeros((bs, width), dtype=torch.int32, device=device)
        self.sizes: dict[str, Any] = {"max_bs": bs, "max_width": width, "page_size": 1, "num_physical": pool + 1}


def build(table: Table, **where: Any) -> None:
    """Build a table anew, TIMES times."""
    call = plan(READ_TABLE, ReadTableSpec(**table.sizes), **where)
    state = new_state(table.out.device)
    for _ in range(TIMES):
        call(table.request_table, table.rows, table.lens, table.v2p, out=table.out, state=state)


def refresh(table: Table, **where: Any) -> None:
    """Build a table, and bring it up to date TIMES times, each with a token more a row."""
    call = plan(REFRESH_TABLE, RefreshTableSpec(**table.sizes), **where)
    bs, width = table.out.shape
    device = table.out.device
    built, versions, state = new_built(bs, width, device), new_versions(bs, device), new_state(device)
    for step in range(TIMES + 1):
        lens = table.lens + step
        call(
            table.request_table, table.rows, lens, table.v2p, out=table.out, built=built, versions=versions, state=state
        )


def compact(pages: int, page_bytes: int, device: torch.device, **where: Any) -> torch.Tensor:
    """Retreat a span of which half the pages, at random, are holes, by as many: about half as many move."""
    tables = new_tables(2 * pages + 1, 2 * pages + 1, device)
    places = torch.randperm(2 * pages, device=device) + 1
    ids, live = torch.arange(1, pages + 1, device=device), places[:pages]
    tables.v2p[ids], tables.p2v[live] = live.int(), ids.int()
    tables.hole_stack[:pages] = places[pages:].int()
    tables.state[HOLE_TOP], tables.state[WATERMARK] = pages, 2 * pages
    call = plan(COMPACT, CompactSpec(max_pages=2 * pages, page_bytes=page_bytes), device=device, **where)
    moved = [torch.empty(pages, dtype=torch.int32, device=device) for _ in range(2)]
    buffer = torch.zeros((2 * pages + 1) * page_bytes, dtype=torch.uint8, device=device)
    call(tables, retreat=pages, sources=moved[0], targets=moved[1], buffer=buffer)
    return tables.v2p


def run(backend: str, device: torch.device, scale: int = 1) -> None:
    """Make the calls, with lengths, pools and pages divided by `scale`."""
    where: dict[str, Any] = {"backend": backend}
    pool = 2**22 // scale
    shapes: list[tuple[Callable[..., None], int, int, bool]] = [
        (refresh, 64, 8_224, True),
        (refresh, 256, 131_072, True),
        (build, 64, 1_024, False),
        (build, 64, 8_224, True),
        (build, 256, 8_224, True),
        (build, 256, 131_072, True),
        (build, 256, 131_072, False),
    ]
    for call, bs, length, scattered in shapes:
        call(Table(bs, max(length // scale, 1), pool, device, scattered=scattered), **where, device=device)
    for page_bytes in (65_536, 4_096):
        compact(max(16_384 // scale, 1), page_bytes, device, **where)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Make the calls of the command line's backend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="divide lengths, pools and pages by this")
    given = parser.parse_args()
    run(given.backend, torch.device(given.device), given.scale)


if __name__ == "__main__":
    main()
