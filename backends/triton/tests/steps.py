"""Take decode steps with several launch sizes, by the kernels and by the composed form; print how many agree.

Sub-pools of every growth, alone or between neighbours, some starved and some with words or cells that hold anything;
batches of one program's block and of several; lanes with rows and lengths of every kind.
"""

import json
import random
import sys

import torch
from pagebind import LaunchOptions
from pagebind.ops import ADVANCE, AdvanceSpec, stacks
from pagebind.words import (
    BASE,
    DOWN,
    FLOAT,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    SINK,
    STATE_WORDS,
    TICKET,
    TOMBSTONE,
    UP,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
)
from pagebind_triton import backend

CPU = torch.device("cpu")
DTYPES = (torch.int32, torch.int64)
# threads and programs: one program for any batch here, or of small blocks, few programs with several trips and many
SIZES = ((2048, 1), (256, 3), (256, 1))
SMALL_SIZES = ((128, 1), (16, 2), (4, 3), (8, 64))
POISON = 88
WILD = (0, 1, 30, -1, -5, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))
GEOMETRY = (VIRTUAL_TOP, HOLE_TOP, WATERMARK, SEAT, REACH, GROWTH, BASE, PAGE_BYTES)


def copied(tables):
    """Return tables of equal cells in memory of their own."""
    cells = [cells.clone() for cells in tables[:5]]
    if tables.chain is None:
        return PageTables(*cells)
    chain = tables.chain.clone()
    return PageTables(*cells[:4], chain[tables.place], chain, tables.place)


def pool_of(rng, dtype, place, span, free, holes, spoiled):
    """Return tables with a span of bound pages and some holes, `free` ids on their stack, and the bound ids.

    `place` is the sub-pool's in a chain of three, or None for one alone; words of any block are `spoiled`.
    """
    chain = torch.zeros(3, STATE_WORDS, dtype=torch.int64)
    for at, (growth, seat) in enumerate(((UP, 2), (FLOAT, 900 + span), (DOWN, 4000 + 2 * span))):
        words = {GROWTH: growth, SEAT: seat, PAGE_BYTES: 16, BASE: 16 * at, WATERMARK: rng.choice((0, 40))}
        for word, value in words.items():
            chain[at, word] = value
    state = chain[place or 0]
    state[WATERMARK] = span
    if place is None:
        state[SEAT] = 0
    seat = int(state[SEAT])
    num_virtual, num_physical = span - holes + free + 1, seat + span + 1 + rng.choice((0, 7, 2 * free))
    v2p, p2v = (torch.full((num + 1,), TOMBSTONE, dtype=dtype) for num in (num_virtual, num_physical))
    v2p[SINK] = p2v[SINK] = SINK
    pages = torch.tensor(rng.sample(range(seat + 1, seat + span + 1), span), dtype=dtype)
    ids = torch.tensor(rng.sample(range(1, num_virtual), num_virtual - 1), dtype=dtype)
    bound, unbound = ids[: span - holes], ids[span - holes :]
    v2p[bound.long()], p2v[pages[holes:].long()] = pages[holes:], bound
    virtual_stack, hole_stack = (torch.zeros(num, dtype=dtype) for num in (num_virtual, num_physical))
    virtual_stack[: len(unbound)], hole_stack[:holes] = unbound, pages[:holes]
    state[VIRTUAL_TOP], state[HOLE_TOP] = len(unbound), holes
    for _ in range(spoiled):
        chain[rng.randrange(3), rng.choice(GEOMETRY)] = rng.choice(WILD)
    tables = PageTables(v2p, p2v, virtual_stack, hole_stack, state)
    return tables if place is None else tables._replace(chain=chain, place=place), bound.tolist()


def case_of(rng, tables, bound, index_dtype, bs):
    """Return a spec, and what makes a step with a launch on a copy of everything."""
    ps, pages, form = rng.choice((1, 3, 4)), 5, rng.choice(("token", "page"))
    columns = pages if form == "page" else pages * ps
    num_virtual = tables.v2p.shape[0] - 1
    odd = (-1, -9, -(2**31), SINK, num_virtual, 2**28)
    held = [rng.choice(bound) if bound and rng.random() < 0.8 else rng.choice(odd) for _ in range(bs * pages)]
    rows = torch.tensor(held, dtype=torch.int32).view(bs, pages)
    if form == "token":
        rows = torch.where(rows < 0, rows, rows * ps).repeat_interleave(ps, dim=1)
    row, length, out, shown, emitted = rng.choices(DTYPES, k=5)
    wild = (-1, pages * ps, torch.iinfo(length).max, torch.iinfo(length).min)
    lens = [rng.choice(wild) if rng.random() < 0.1 else rng.randint(0, pages * ps) for _ in range(bs)]
    seq_lens = torch.tensor(lens, dtype=length)
    req_rows = torch.tensor(rng.sample(range(-1, bs), bs), dtype=row)
    width, told, expected = rng.choice((0, 3, pages * ps)), rng.choice((0, 3, bs + 5)), rng.choice((None, 0, bs // 2))
    spec = AdvanceSpec(
        max_bs=bs + rng.choice((0, 50)),
        page_size=ps,
        num_virtual=num_virtual,
        num_physical=tables.p2v.shape[0] - 1,
        form=form,
        multiplier=rng.choice((1, 3)),
        emits=rng.random() < 0.5,
        appends=rng.random() < 0.6,
        granularity=rng.choice(("page", "token")),
        index_dtype=index_dtype,
        row_dtype=row,
        length_dtype=length,
        out_dtype=out,
        table_dtype=shown,
        id_dtype=emitted,
    )

    def step(launch):
        wide_rows = torch.full((bs, columns + 3), POISON, dtype=torch.int32)
        wide_rows[:, :columns] = rows
        now, given = seq_lens.clone(), copied(tables)
        slots = torch.full((bs + 4,), POISON, dtype=out)
        table = torch.full((bs + 1, width + 2), POISON, dtype=shown)
        sizes = {"token_ids": bs, "new_ids": told, "new_pages": told}
        outs = {name: torch.full((size + 4,), POISON, dtype=emitted) for name, size in sizes.items()}
        launch(
            wide_rows[:, :columns],
            req_rows,
            now,
            given,
            slots=slots[:bs],
            table=table[:, :width] if spec.appends else None,
            pages=expected,
            **({name: outs[name][:size] for name, size in sizes.items()} if spec.emits else {}),
        )
        chain = [] if given.chain is None else given.chain.tolist()
        cells = (*given[:5], wide_rows, now, slots, table, *outs.values())
        return [*(one.tolist() for one in cells), chain]

    return spec, step


def twice(tables, count):
    """Return whether two lanes get one page: a spoiled span may grow over its holes; which lane wins is then open."""
    found = stacks.find(copied(tables), count)
    return any(len(set(of.tolist())) < len(of) for of in (found.virtual, found.physical))


def cases(rng):
    """Yield tables, a spec, its step, and the launch sizes to take it with."""
    number = 0
    for bs, sizes, draws in (
        (1, SMALL_SIZES[1:2], 8),
        (33, SMALL_SIZES, 20),
        (70, SMALL_SIZES[:3], 10),
        (1100, SIZES, 4),
    ):
        for draw in range(draws):
            number += 1
            dtype = rng.choice(DTYPES)
            place, spoiled = (None, 0, 1, 2)[number % 4], rng.choice((0, 0, 1, 3)) if draw % 2 else 0
            span = rng.choice((3, bs + 3))
            pool = pool_of(rng, dtype, place, span, rng.choice((0, bs // 4, 2 * bs)), rng.choice((0, 3)), spoiled)
            tables, bound = pool
            if twice(tables, bs):
                continue
            for v in rng.sample(bound, len(bound) // 3) if draw % 3 == 2 else ():
                tables.v2p[v] = rng.choice((-7, 0, 2**31 - 1, torch.iinfo(dtype).min, torch.iinfo(dtype).max))
            for p in rng.sample(range(1, tables.p2v.shape[0] - 1), span // 3) if draw % 5 == 4 else ():
                tables.p2v[p] = rng.choice((1, 5, -3))  # pages that are taken may be refused
            yield tables, *case_of(rng, tables, bound, dtype, bs), sizes


def repeats():
    """Take steps off stacks that repeat ids and pages; return what is wrong with the tables afterwards."""
    bs, num, wrong = 150, 40, []
    for threads, programs in SMALL_SIZES:
        cells = [torch.full((num + 1,), TOMBSTONE, dtype=torch.int32) for _ in range(2)]
        cells[0][SINK] = cells[1][SINK] = SINK
        state = torch.zeros(STATE_WORDS, dtype=torch.int64)
        state[VIRTUAL_TOP], state[HOLE_TOP], state[WATERMARK] = num, num, num - 1
        stacked = [(torch.arange(num) % most + 1).int() for most in (7, 5)]
        tables = PageTables(*cells, *stacked, state)
        rows, lens, slots = torch.full((bs, 2), -1).int(), torch.zeros(bs).int(), torch.full((bs,), POISON).int()
        spec = AdvanceSpec(max_bs=bs, page_size=4, num_virtual=num, num_physical=num, form="page")
        launch = backend.planners["advance"](spec, CPU, LaunchOptions(threads=threads, programs=programs))
        launch(rows, torch.arange(bs).int(), lens, tables, slots=slots)
        served = lens == 1
        ids, pages = rows[served, 0].long(), slots[served].long() // 4
        right = 0 < len(ids) <= 5 and len(set(ids.tolist())) == len(ids)
        right &= torch.equal(tables.v2p[ids].long(), pages) and torch.equal(tables.p2v[pages].long(), ids)
        right &= all(int((table[1:-1] != TOMBSTONE).sum()) == len(ids) for table in cells)
        if not right or state[TICKET] != 0 or (rows[~served, 0] != SINK).any():
            wrong.append([threads, programs])
    return wrong


def main():
    """Print how many steps agree, by what they are, and those that do not."""
    rng = random.Random(12)
    agreed, wrong = 0, []
    for tables, spec, step, sizes in cases(rng):
        composed = ADVANCE.compose(spec, CPU, backend.planners, LaunchOptions())
        expected = step(composed)
        for threads, programs in sizes:
            options = LaunchOptions(threads=threads, programs=programs)
            found = step(backend.planners["advance"](spec, CPU, options))
            differing = [at for at, (mine, other) in enumerate(zip(found, expected, strict=True)) if mine != other]
            if differing:
                wrong.append([repr(spec), threads, programs, tables.place, differing])
            else:
                agreed += 1
    json.dump({"agreed": agreed, "wrong": wrong, "repeats": repeats()}, sys.stdout)


if __name__ == "__main__":
    main()
