"""Reach every kernel variant of a backend with small launches: what to run under a memory or race checker.

    compute-sanitizer --tool memcheck python -m pagebind_conformance.launches --backend cuda --device cuda

Inputs are seeded, with faults of every kind among them. Values are the suite's business: this script checks none, but
for the audit of the tables at the end of each pool.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import Any

import torch
from pagebind import Backend, LaunchOptions, get_backend, ops
from pagebind.plan import Planned, plan_with
from pagebind.pool.audit import audit_tables
from pagebind.words import HOLE_TOP, WATERMARK, PageTables, new_state, new_tables

BS = 37
WIDTH = 300
PAGE_SIZES = (1, 3, 64)
PAGE_BYTES = (0, 16, 48, 4096)
DTYPES = (torch.int32, torch.int64)
NUM_PAGES = 5000
ITEMS = (1, 33, 700, 4500)

FORMS = ("token", "page")


class Small:
    """Seeded small inputs on one device, and the plans that take them."""

    def __init__(self, backend: Backend, device: torch.device) -> None:
        self.backend, self.device = backend, device
        self.random = torch.Generator().manual_seed(20260911)
        self.launched = 0

    def plan(self, operation: Any, **fields: Any) -> Callable[..., None]:
        """Plan and warm up an operation; each call of the result is counted."""
        planned: Planned = plan_with(
            self.backend, operation, operation.spec(**fields), self.device, "count", LaunchOptions()
        )
        planned.warmup()

        def call(*args: Any, **kwargs: Any) -> None:
            self.launched += 1
            planned(*args, **kwargs)

        return call

    def ints(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return random ints of `[low, high)` on the device."""
        return torch.randint(low, high, shape, generator=self.random).to(dtype).to(self.device)

    def lens(self, most: int, dtype: torch.dtype) -> torch.Tensor:
        """Return lengths of BS lanes: most of them valid, one negative, one huge, some zero."""
        lens = self.ints(0, most + 1, BS, dtype=dtype)
        lens[:3] = torch.tensor([0, -5, torch.iinfo(dtype).max], dtype=dtype)
        return lens

    def rows(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return BS different rows of `count`, two of them outside."""
        rows = torch.randperm(count, generator=self.random)[:BS].to(dtype)
        rows[3], rows[4] = -1, count
        return rows.to(self.device)

    def indptr(self, parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the offsets of parts laid end to end."""
        return torch.cat([parts.new_zeros(1), parts.cumsum(0)]).to(dtype)

    def garbage(self, num_virtual: int, page_size: int, form: str, width: int) -> torch.Tensor:
        """Return a request table whose ids are mostly good, some holes, some past the table; its rows are strided."""
        ids = num_virtual * (page_size if form == "token" else 1)
        cells = self.ints(-3, ids + 5, BS + 9, width + 7)
        cells[0, ::5] = 2**31 - 1
        cells[1, ::3] = -(2**31)
        return cells[:, :width]

    def bound(self, num: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a `v2p` of `num` ids, a tenth of them tombstones."""
        v2p = torch.randperm(num, generator=self.random)
        v2p[:: num // 10] = -1
        v2p[0] = 0
        return torch.cat([v2p, torch.tensor([-1])]).to(dtype).to(self.device)


def tables_of_lanes(small: Small) -> None:
    """Run read_table and read_stream in every form, granularity, fill, window and dtype."""
    num = 101
    for form, granularity, fill, windowed, dtype, page_size in product(
        FORMS, FORMS, ("prefix", "sink"), (False, True), DTYPES, PAGE_SIZES
    ):
        tokens = WIDTH if form == "token" else WIDTH * page_size
        columns = WIDTH if granularity == form else (tokens if granularity == "token" else -(-tokens // page_size))
        request_table = small.garbage(num, page_size, form, WIDTH)
        batch = (
            request_table,
            small.rows(BS + 9, dtype),
            small.lens(tokens, dtype),
            small.bound(num, dtype),
        )
        starts = {"starts": small.lens(tokens // 2, dtype)} if windowed else {}
        common = {
            "max_bs": BS,
            "page_size": page_size,
            "num_physical": num,
            "form": form,
            "granularity": granularity,
            "multiplier": 3,
            "windowed": windowed,
            "index_dtype": dtype,
            "row_dtype": dtype,
            "length_dtype": dtype,
            "out_dtype": dtype,
        }
        state = new_state(small.device)
        out = small.ints(0, 9, BS + 2, columns + 5, dtype=dtype)[:, :columns]
        table = small.plan(ops.READ_TABLE, max_width=columns, fill=fill, **common)
        table(*batch, out=out, state=state, seq_len_delta=2, **starts)
        parts = small.ints(0, columns, BS)
        indptr = small.indptr(parts, dtype)
        stream_out = small.ints(0, 9, int(parts.sum()) - 3, dtype=dtype)
        with_table = fill == "sink"  # a second axis of the stream in the place of the fill
        stream = small.plan(
            ops.READ_STREAM,
            max_items=len(stream_out),
            with_table=with_table,
            max_width=columns,
            indptr_dtype=dtype,
            **common,
        )
        stream(*batch, indptr, out=stream_out, state=state, **({"table": out} if with_table else {}), **starts)


def ids(small: Small) -> None:
    """Run translate, bind and unbind in every dtype, shape and size."""
    for dtype, page_size, ranks in product(DTYPES, PAGE_SIZES, (1, 2)):
        translate = small.plan(
            ops.TRANSLATE,
            max_items=10_000,
            page_size=page_size,
            num_physical=101,
            ranks=ranks,
            rank=ranks - 1,
            index_dtype=dtype,
            id_dtype=dtype,
            out_dtype=dtype,
        )
        v2p, state = small.bound(101, dtype), new_state(small.device)
        for shape in ((1,), (33,), (9000,), (5, 300)):
            tokens = small.ints(-2, 101 * page_size * ranks + 9, *shape, dtype=dtype)
            translate(tokens, v2p, out=torch.empty_like(tokens), state=state)
            translate(tokens[..., ::2], v2p, out=tokens[..., ::2], state=state)
    for dtype, id_dtype, n in product(DTYPES, DTYPES, ITEMS):
        tables = new_tables(NUM_PAGES, NUM_PAGES, small.device, dtype)
        bind = small.plan(ops.BIND, max_items=n, index_dtype=dtype, id_dtype=id_dtype)
        unbind = small.plan(ops.UNBIND, max_items=n, index_dtype=dtype, id_dtype=id_dtype)
        virtual = small.ints(-2, NUM_PAGES + 3, n, dtype=id_dtype)
        bind(virtual, small.ints(-2, NUM_PAGES + 3, n, dtype=id_dtype), tables.v2p, tables.p2v, state=tables.state)
        unbind(virtual, tables.v2p, tables.p2v, freed=torch.empty_like(virtual), state=tables.state)


def pools(small: Small) -> Iterator[PageTables]:
    """Run alloc, free, extend, truncate, assign and release in every form, dtype and size; yield the tables."""
    for dtype, id_dtype, n in product(DTYPES, DTYPES, ITEMS):
        tables = new_tables(NUM_PAGES, NUM_PAGES, small.device, dtype)
        kinds = {"max_items": n, "index_dtype": dtype, "id_dtype": id_dtype}
        alloc, free = small.plan(ops.ALLOC, **kinds), small.plan(ops.FREE, **kinds)
        taken, pages = (torch.empty(n, dtype=id_dtype, device=small.device) for _ in range(2))
        alloc(tables, ids=taken, pages=pages)
        free(taken, tables, freed=pages)
        alloc(tables, ids=taken, pages=pages)
        taken[::7] = -1
        taken[3::11] = taken[1 if n > 1 else 0]
        free(taken, tables, freed=pages)
        alloc(tables, ids=taken, pages=pages)
        alloc(tables, ids=taken, pages=pages)  # starves for the largest n
        yield tables
    for form, dtype, page_size in product(FORMS, DTYPES, PAGE_SIZES):
        tables = new_tables(1200, 1200, small.device, dtype)
        tokens = WIDTH if form == "token" else WIDTH * page_size
        lanes = {"max_bs": BS, "page_size": page_size, "form": form, "index_dtype": dtype, "row_dtype": dtype}
        extend = small.plan(
            ops.EXTEND,
            max_tokens=10**6,
            num_virtual=1200,
            num_physical=1200,
            length_dtype=dtype,
            indptr_dtype=dtype,
            out_dtype=dtype,
            **lanes,
        )
        cut = {"max_pages": 2000, "length_dtype": dtype, "id_dtype": dtype, **lanes}
        truncate = small.plan(ops.TRUNCATE, **cut)
        releases = {shared: small.plan(ops.RELEASE, shared=shared, **cut) for shared in (False, True)}
        assign = small.plan(ops.ASSIGN, max_bs=BS, max_items=10**6, row_dtype=dtype, indptr_dtype=dtype)
        request_table = torch.full((BS + 9, WIDTH + 7), -1, dtype=torch.int32, device=small.device)[:, :WIDTH]
        rows = small.rows(BS + 9, dtype)
        for prefix, most in (
            (small.lens(0, dtype).clamp(max=0), 90),
            (small.lens(60, dtype), 40),
            (small.lens(9, dtype), 9),
        ):
            parts = small.ints(0, min(most, tokens), BS)
            slots = torch.empty(int(parts.sum()) + 5, dtype=dtype, device=small.device)
            extend(request_table, rows, prefix, small.indptr(parts, dtype), tables, slots=slots, pages=7)
            freed = torch.empty(150, dtype=dtype, device=small.device)
            truncate(request_table, rows, small.lens(60, dtype), small.lens(50, dtype), tables, freed=freed, pages=7)
        shared_ids = small.ints(-1, 1300, 400)
        assign(request_table, rows, shared_ids, small.indptr(small.ints(0, 12, BS), dtype), state=tables.state)
        freed = torch.empty(1500, dtype=dtype, device=small.device)
        starts = small.lens(20, dtype)
        releases[True](request_table, rows, small.lens(tokens, dtype), tables, freed=freed, starts=starts)
        releases[False](request_table, rows, small.lens(tokens, dtype), tables, freed=freed)
        yield tables


def compactions(small: Small) -> Iterator[PageTables]:
    """Run compact with and without bytes, in every dtype and size, until no hole is left; yield the tables."""
    for dtype, id_dtype, page_bytes, n in product(DTYPES, DTYPES, PAGE_BYTES, ITEMS):
        tables = new_tables(NUM_PAGES, NUM_PAGES, small.device, dtype)
        kinds = {"index_dtype": dtype, "id_dtype": id_dtype}
        compact = small.plan(ops.COMPACT, max_pages=n, page_bytes=page_bytes, **kinds)
        taken, pages, sources, targets = (torch.empty(n, dtype=id_dtype, device=small.device) for _ in range(4))
        small.plan(ops.ALLOC, max_items=n, **kinds)(tables, ids=taken, pages=pages)
        holes = (n + 1) // 2
        some = taken[torch.randperm(n, generator=small.random)[:holes].to(small.device)]
        small.plan(ops.FREE, max_items=n, **kinds)(some, tables, freed=pages[:holes])
        buffer = torch.zeros(NUM_PAGES * page_bytes, dtype=torch.uint8, device=small.device) if page_bytes else None
        for retreat in (holes // 3, holes - holes // 3, 1):  # no hole is left for the last
            compact(tables, retreat=retreat, sources=sources, targets=targets, buffer=buffer)
        yield tables


def main() -> None:
    """Run every launch on the backend that the arguments name, and say how many there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="a backend's name or module:attribute")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    small = Small(get_backend(given.backend, device=given.device), torch.device(given.device))
    if small.device.type == "cuda":
        small.device = torch.device("cuda", torch.cuda.current_device())
    tables_of_lanes(small)
    ids(small)
    for tables in chain(pools(small), compactions(small)):
        words = tables.state.tolist()
        wrong = audit_tables(tables, words[WATERMARK] - words[HOLE_TOP], words[WATERMARK])
        if wrong:
            raise SystemExit(f"after {small.launched} calls the tables are not sound: {wrong[:4]}")
    print(
        f"{small.backend.name} on {small.device}: {small.launched} planned calls, every variant reached, tables sound"
    )


if __name__ == "__main__":
    main()
