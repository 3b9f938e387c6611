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
from pagebind.ops.refresh_table import BUILT_ROW, BUILT_WORDS, new_built
from pagebind.ops.touch import new_versions
from pagebind.plan import Planned, plan_with
from pagebind.pool.audit import audit_tables
from pagebind.words import (
    BASE,
    DOWN,
    EPOCH,
    FLOAT,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    UP,
    WATERMARK,
    PageTables,
    new_state,
    new_tables,
)

BS = 37
WIDTH = 300
PAGE_SIZES = (1, 3, 64)
BYTES_OF_PAGES = (0, 16, 48, 4096)
DTYPES = (torch.int32, torch.int64)
NUM_PAGES = 5000
ITEMS = (1, 33, 700, 4500)

FORMS = ("token", "page")
PARTS = ("head", "tail", "row")

Audited = tuple[PageTables, bool]
"""Tables that have to be sound, and whether their ids are borrowed."""


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


def chain_of(small: Small, num: int, dtype: torch.dtype, page_bytes: int = 16) -> list[PageTables]:
    """Return the tables of three empty sub-pools that share a buffer, about `num` pages of each in it.

    One grows up, one floats and borrows its ids, one grows down.
    """
    sizes = (page_bytes, 3 * page_bytes, page_bytes)
    sinks, total = sum(sizes), num * sum(sizes)
    chain = torch.zeros(3, STATE_WORDS, dtype=torch.int64)
    nums = []
    for j, (growth, size) in enumerate(zip((UP, FLOAT, DOWN), sizes, strict=True)):
        base = sum(sizes[:j])
        nums.append((total - base) // size)
        chain[j, GROWTH], chain[j, BASE], chain[j, PAGE_BYTES] = growth, base, size
        chain[j, SEAT] = nums[j] - 1 if growth == DOWN else -(-(sinks - base) // size) - 1
    chain = chain.to(small.device)
    virtual = nums[0]
    return [
        new_tables(virtual if j == 1 else num, num, small.device, dtype, borrows=j == 1, chain=chain, place=j)
        for j, num in enumerate(nums)
    ]


def positions(tables: PageTables) -> tuple[int, int]:
    """Return the holes and the span of a sub-pool. Waits for the device."""
    words = tables.state.tolist()
    return words[HOLE_TOP], words[WATERMARK]


def tables_of_lanes(small: Small) -> None:
    """Run read_table, alone and with a second table, and read_stream in every form, granularity, fill and dtype."""
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
        if "beside" in small.backend.features:
            second = ops.SecondTable(
                small.bound(num, dtype),
                small.ints(0, 9, BS + 1, columns + 5, dtype=dtype)[:, : columns - 1],
                None if windowed else small.lens(tokens // 2, dtype),
                new_state(small.device),
            )
            beside = ops.Beside(num, multiplier=5, windowed=not windowed)
            tables = small.plan(ops.READ_TABLE, max_width=columns, fill=fill, beside=beside, **common)
            tables(*batch, out=out, state=state, seq_len_delta=2, beside=second, **starts)
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


def refreshed(small: Small) -> None:
    """Run touch and refresh_table in every form, granularity, fill, window and dtype, with something to keep or not."""
    num = 101
    for form, granularity, fill, (windowed, borrowed), dtype, page_size in product(
        FORMS, FORMS, ("prefix", "sink"), ((False, False), (True, False), (True, True)), DTYPES, PAGE_SIZES
    ):
        tokens = WIDTH if form == "token" else WIDTH * page_size
        columns = WIDTH if granularity == form else (tokens if granularity == "token" else -(-tokens // page_size))
        kinds = {"row_dtype": dtype, "length_dtype": dtype}
        refresh = small.plan(
            ops.REFRESH_TABLE,
            max_bs=BS,
            max_width=columns,
            page_size=page_size,
            num_physical=num,
            form=form,
            granularity=granularity,
            fill=fill,
            multiplier=3,
            windowed=windowed,
            borrowed=borrowed,
            index_dtype=dtype,
            out_dtype=dtype,
            **kinds,
        )
        touch = small.plan(ops.TOUCH, max_bs=BS, **kinds)
        request_table, v2p = small.garbage(num, page_size, form, WIDTH), small.bound(num, dtype)
        rows, lens = small.rows(BS + 9, dtype), small.lens(tokens, dtype)
        state, versions = new_state(small.device), new_versions(BS + 9, small.device)
        versions[:, 0] = 2**31 - 1
        out = small.ints(0, 9, BS + 2, columns + 5, dtype=dtype)[:, :columns]
        kept: dict[str, torch.Tensor] = {
            "out": out, "built": new_built(BS + 2, columns, small.device), "versions": versions, "state": state,
        }  # fmt: skip
        if windowed:
            kept["starts"] = small.lens(tokens // 2, dtype)
        if borrowed:
            kept["first"] = small.ints(-1, 40, BS + 9)
        for step in range(4):
            refresh(request_table, rows, lens, v2p, seq_len_delta=step, **kept)
            touch(versions, rows[step : step + 9], lens[:9].clone(), state=state)
            lens[5:25] += 1
        some = {name: t[:9] if name == "starts" else t for name, t in kept.items()}
        refresh(request_table, rows[3:12], lens[3:12].clone(), v2p, **some)
        state[EPOCH] += 1
        for tensor in (rows, kept["built"]):
            tensor.copy_(tensor.flip(0))
        if borrowed:
            kept["first"] += 2
        refresh(request_table, rows, lens, v2p, **kept)
        kept["built"].copy_(small.ints(-(2**31), 2**31, BS + 2, BUILT_WORDS))
        kept["built"][:BS, BUILT_ROW] = rows
        refresh(request_table, rows, lens, v2p, **kept)


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


def pools(small: Small) -> Iterator[Audited]:
    """Run alloc and free, with ids of their own and borrowed, in every dtype and size; yield the tables."""
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
        free(taken, tables, freed=pages, pages=n)
        alloc(tables, ids=taken, pages=pages)
        alloc(tables, ids=taken, pages=pages)  # starves for the largest n
        yield tables, False

        up, window, down = chain_of(small, n // 2 + 9, dtype)
        borrow, give = small.plan(ops.ALLOC, borrowed=True, **kinds), small.plan(ops.FREE, borrowed=True, **kinds)
        for _ in range(2):  # they meet in the second turn
            up.state[REACH] = n // 3
            alloc(up, ids=taken, pages=pages)
            alloc(down, ids=small.ints(0, 9, n, dtype=id_dtype), pages=pages)
            taken[::5] = -1
            borrow(window, ids=taken, pages=pages)
            gone = torch.cat([taken[::2], small.ints(-2, n + 3, n, dtype=id_dtype)])[:n].contiguous()
            give(gone, window, freed=pages, pages=n // 2)
        yield from ((up, False), (window, True), (down, False))
        lost = new_tables(NUM_PAGES, NUM_PAGES, small.device, dtype, borrows=True)
        borrow(lost, ids=small.ints(-2, NUM_PAGES + 3, n, dtype=id_dtype), pages=pages)  # repeats lose their pages
        give(small.ints(-2, NUM_PAGES + 3, n, dtype=id_dtype), lost, freed=pages)


def rows(small: Small) -> Iterator[Audited]:
    """Run extend, truncate, assign, release and evict in every form and dtype, alone and chained; yield the tables."""
    for form, dtype, page_size, (emits, place) in product(
        FORMS, DTYPES, PAGE_SIZES, ((False, None), (True, 0), (False, 2), (True, None))
    ):
        chained = chain_of(small, 500, dtype)
        tables = new_tables(1200, 1200, small.device, dtype) if place is None else chained[place]
        num_virtual, num_physical = tables.v2p.shape[0] - 1, tables.p2v.shape[0] - 1
        tokens = WIDTH if form == "token" else WIDTH * page_size
        lanes = {"max_bs": BS, "page_size": page_size, "form": form, "index_dtype": dtype, "row_dtype": dtype}
        extend = small.plan(
            ops.EXTEND,
            max_tokens=10**6,
            num_virtual=num_virtual,
            num_physical=num_physical,
            emits=emits,
            length_dtype=dtype,
            indptr_dtype=dtype,
            out_dtype=dtype,
            id_dtype=dtype,
            **lanes,
        )
        cut = {"max_pages": 2000, "length_dtype": dtype, "id_dtype": dtype, **lanes}
        truncate = small.plan(ops.TRUNCATE, **cut)
        releases = {shared: small.plan(ops.RELEASE, shared=shared, **cut) for shared in (False, True)}
        assign = small.plan(ops.ASSIGN, max_bs=BS, max_items=10**6, row_dtype=dtype, indptr_dtype=dtype)
        borrow = small.plan(ops.ALLOC, max_items=700, borrowed=True, index_dtype=dtype, id_dtype=dtype)
        evict = {part: small.plan(ops.EVICT, part=part, **cut) for part in PARTS} if emits else {}
        window = chained[1] if place is not None else new_tables(1200, 400, small.device, dtype, borrows=True)
        first = small.ints(0, 9, BS + 9)
        request_table = torch.full((BS + 9, WIDTH + 7), -1, dtype=torch.int32, device=small.device)[:, :WIDTH]
        batch = small.rows(BS + 9, dtype)
        for prefix, most in (
            (small.lens(0, dtype).clamp(max=0), 90),
            (small.lens(60, dtype), 40),
            (small.lens(9, dtype), 9),
        ):
            parts = small.ints(0, min(most, tokens), BS)
            slots = torch.empty(int(parts.sum()) + 5, dtype=dtype, device=small.device)
            told: dict[str, torch.Tensor] = {}
            if emits:
                told = {"token_ids": torch.empty_like(slots)}
                told |= {name: torch.empty(700, dtype=dtype, device=small.device) for name in ("new_ids", "new_pages")}
            extend(request_table, batch, prefix, small.indptr(parts, dtype), tables, slots=slots, pages=7, **told)
            lens = small.lens(60, dtype)
            if emits:
                pages = torch.empty_like(told["new_ids"])
                borrow(window, ids=told["new_ids"], pages=pages)
                for part, starts in (("head", small.lens(2, dtype)), ("tail", small.lens(50, dtype))):
                    freed = torch.empty(90, dtype=dtype, device=small.device)
                    evict[part](request_table, batch, starts, lens, window, first=first, freed=freed, pages=7)
            freed = torch.empty(150, dtype=dtype, device=small.device)
            truncate(request_table, batch, lens, small.lens(50, dtype), tables, freed=freed, pages=7)
        shared_ids = small.ints(-1, 1300, 400)
        assign(request_table, batch, shared_ids, small.indptr(small.ints(0, 12, BS), dtype), state=tables.state)
        freed = torch.empty(1500, dtype=dtype, device=small.device)
        starts, lens = small.lens(20, dtype), small.lens(tokens, dtype)
        if emits:
            evict["row"](request_table, batch, starts, lens, window, first=first, freed=freed)
        releases[True](request_table, batch, lens, tables, freed=freed, starts=starts)
        releases[False](request_table, batch, small.lens(tokens, dtype), tables, freed=freed)
        yield (
            tables,
            False,
        )  # the window has lost pages to ids that were bound in it still when their owner gave them anew


def steps(small: Small) -> Iterator[Audited]:
    """Run advance in every form, dtype and kind of table, alone and chained, until pages run out; yield the tables."""
    kinds = ((False, False, "page"), (True, True, "page"), (False, True, "token"), (True, False, "page"))
    for form, dtype, page_size, (emits, appends, granularity), place in product(
        FORMS, DTYPES, PAGE_SIZES, kinds, (None, 0, 1, 2)
    ):
        bs = 2100 if place is None and page_size == 3 else BS  # more than a block has lanes
        tables = (
            chain_of(small, 60, dtype)[place]
            if place is not None
            else new_tables(2 * bs, 2 * bs + 9, small.device, dtype)
        )
        tokens = WIDTH if form == "token" else WIDTH * page_size
        advance = small.plan(
            ops.ADVANCE,
            max_bs=bs,
            page_size=page_size,
            num_virtual=tables.v2p.shape[0] - 1,
            num_physical=tables.p2v.shape[0] - 1,
            form=form,
            emits=emits,
            appends=appends,
            granularity=granularity,
            index_dtype=dtype,
            row_dtype=dtype,
            length_dtype=dtype,
            out_dtype=dtype,
            table_dtype=dtype,
            id_dtype=dtype,
        )
        request_table = small.garbage(bs, page_size, form, WIDTH).repeat(bs // BS + 1, 1)
        rows = torch.randperm(bs + 9, generator=small.random)[:bs].to(dtype).to(small.device)
        lens = small.ints(-2, tokens + 3, bs, dtype=dtype)
        lens[::2] = 0
        rows[3], rows[4], lens[5], lens[6] = -1, len(request_table), -5, torch.iinfo(dtype).max
        told: dict[str, torch.Tensor] = {"slots": torch.empty_like(lens)}
        if emits:
            told |= {name: torch.empty_like(lens) for name in ("token_ids", "new_ids", "new_pages")}
        if appends:
            told["table"] = small.ints(0, 9, bs + 2, 55, dtype=dtype)[:, :50]
        for pages in (None, 7, 0):
            advance(request_table, rows, lens, tables, pages=pages, **told)
        yield tables, place == 1


def compactions(small: Small) -> Iterator[Audited]:
    """Run compact at either end, with and without bytes, in every dtype and size; yield the tables."""
    for dtype, id_dtype, page_bytes, n in product(DTYPES, DTYPES, BYTES_OF_PAGES, ITEMS):
        kinds = {"index_dtype": dtype, "id_dtype": id_dtype}
        compact = small.plan(ops.COMPACT, max_pages=n, page_bytes=page_bytes, **kinds)
        alloc, free = small.plan(ops.ALLOC, max_items=n, **kinds), small.plan(ops.FREE, max_items=n, **kinds)
        borrow = small.plan(ops.ALLOC, max_items=n, borrowed=True, **kinds)
        give = small.plan(ops.FREE, max_items=n, borrowed=True, **kinds)
        taken, pages, sources, targets = (torch.empty(n, dtype=id_dtype, device=small.device) for _ in range(4))
        holes = (n + 1) // 2
        _, window, down = chain_of(small, 2 * n + 20, dtype)
        for tables, sides in (
            (new_tables(NUM_PAGES, NUM_PAGES, small.device, dtype), ("high", "high")),
            (window, ("low", "high")),
            (down, ("low", "low")),
        ):
            borrows = tables is window
            if borrows:
                taken.copy_(torch.arange(1, n + 1))
            (borrow if borrows else alloc)(tables, ids=taken, pages=pages)
            some = taken[torch.randperm(n, generator=small.random)[:holes].to(small.device)]
            (give if borrows else free)(some, tables, freed=pages[:holes])
            size = (tables.p2v.shape[0] - 1) * page_bytes
            out: dict[str, Any] = {"sources": sources, "targets": targets}
            out["buffer"] = torch.zeros(size, dtype=torch.uint8, device=small.device) if page_bytes else None
            for side, retreat in zip(sides, (holes // 3, holes // 4), strict=True):
                compact(tables, retreat=retreat, side=side, **out)
            left, span = positions(tables)
            if borrows:  # past its holes, and then all of it goes elsewhere
                compact(tables, retreat=span, side="high", fresh=span - left, skip=2, **out)
                for side in ("low", "high"):
                    left, span = positions(tables)
                    some_more = (span + left) // 2
                    compact(tables, retreat=some_more, side=side, fresh=some_more - left, **out)
            else:
                compact(tables, retreat=left, side=sides[0], **out)
            compact(tables, retreat=1, side=sides[0], **out)  # no hole is left
            yield tables, borrows


def on_its_own(reach: Callable[[Small], None]) -> Callable[[Small], Iterator[Audited]]:
    """Return a part that leaves no tables behind."""

    def run(small: Small) -> Iterator[Audited]:
        reach(small)
        yield from ()

    return run


LAUNCHES: dict[str, Callable[[Small], Iterator[Audited]]] = {
    "tables": on_its_own(tables_of_lanes),
    "refreshed": on_its_own(refreshed),
    "ids": on_its_own(ids),
    "pools": pools,
    "rows": rows,
    "steps": steps,
    "compactions": compactions,
}
"""What runs, in this order. A checker makes each of them slow, and they may run side by side."""


def main() -> None:
    """Run the launches that the arguments name, all of them unless told otherwise, and say how many there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="a backend's name or module:attribute")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", action="append", choices=LAUNCHES, help="may be repeated; left out: all")
    given = parser.parse_args()
    small = Small(get_backend(given.backend, device=given.device), torch.device(given.device))
    if small.device.type == "cuda":
        small.device = torch.device("cuda", torch.cuda.current_device())
    chosen = [name for name in LAUNCHES if not given.part or name in given.part]
    for tables, borrows in chain.from_iterable(LAUNCHES[name](small) for name in chosen):
        holes, span = positions(tables)
        wrong = audit_tables(tables, span - holes, span, int(tables.state[SEAT]), borrows=borrows)
        if wrong:
            raise SystemExit(f"after {small.launched} calls the tables are not sound: {wrong[:4]}")
    reached = (
        "every variant reached" if len(chosen) == len(LAUNCHES) else f"every variant of {', '.join(chosen)} reached"
    )
    print(f"{small.backend.name} on {small.device}: {small.launched} planned calls, {reached}, tables sound")


if __name__ == "__main__":
    main()
