"""Pools of chains for tests: spans, holes and words drawn at random, and calls on two copies of one pool."""

from typing import NamedTuple

import torch
from pagebind.ops import OPERATIONS
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
    SINK,
    STATE_WORDS,
    TOMBSTONE,
    UP,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
)
from pagebind_cuda import backend

CPU = torch.device("cpu")
# More blocks than a warp has lanes, among which it shares them out.
CHAINS = {"none": None, "ends": (UP, DOWN), "float": (UP, FLOAT, DOWN), "many": (UP, *([FLOAT] * 40), DOWN)}
WORDS = (0, 1, 2, 30, -1, -5, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))
POSITIONS = (VIRTUAL_TOP, HOLE_TOP, WATERMARK, EPOCH, SEAT, REACH, GROWTH, BASE, PAGE_BYTES)


class Pool(NamedTuple):
    """The tables of a sub-pool, and its virtual ids."""

    tables: PageTables
    bound: list[int]
    free: list[int]

    def copy(self) -> PageTables:
        """Return tables of equal cells in memory of their own."""
        v2p, p2v, virtual_stack, hole_stack, state = (t.clone() for t in self.tables[:5])
        if self.tables.chain is not None:
            chain = self.tables.chain.clone()
            return PageTables(v2p, p2v, virtual_stack, hole_stack, chain[self.tables.place], chain, self.tables.place)
        return PageTables(v2p, p2v, virtual_stack, hole_stack, state)


def chain_of(growths, random):
    """Return the blocks of sub-pools whose spans lie apart, in the order of addresses, some of them empty."""
    chain = torch.zeros(len(growths), STATE_WORDS, dtype=torch.int64)
    page_bytes = [random.choice((3, 8, 48)) for _ in growths]
    sinks, total = sum(page_bytes), random.choice((500, 4000))
    cuts = sorted(random.randint(sinks, sinks + total) for _ in range(2 * len(growths)))
    for i, (growth, size) in enumerate(zip(growths, page_bytes, strict=True)):
        base = sum(page_bytes[:i])
        seat = max(-((base - cuts[2 * i]) // size), 1) - 1
        span = max((cuts[2 * i + 1] - base) // size - seat - 1, 0) * random.choice((0, 1, 1, 1))
        words = {GROWTH: growth, BASE: base, PAGE_BYTES: size, SEAT: seat, WATERMARK: span}
        for word, value in (words | {REACH: span + random.randint(-2, 4)}).items():
            chain[i, word] = value
    return chain


def pool_of(growths, random, index_dtype, *, borrowed=False, spoiled=False):
    """Return a sub-pool of a chain, or one alone; spoiled, some words of the chain hold anything."""
    chain = chain_of(growths or (UP,), random)
    place = random.randrange(chain.shape[0])
    state = chain[place]
    if growths is None:
        state[SEAT] = 0
    seat, span = int(state[SEAT]), int(state[WATERMARK])
    num_physical = seat + span + 1 + random.choice((0, 1, 40, 150))
    pages = random.sample(range(seat + 1, seat + span + 1), span)
    holes = random.choice((0, min(span, 3), span // 2, span))
    num_virtual = span - holes + 1 + random.choice((0, 1, 150))
    ids = random.sample(range(1, num_virtual), num_virtual - 1)
    bound, free = ids[: span - holes], ids[span - holes :]

    def cells(length, values):
        table = torch.full((length,), TOMBSTONE, dtype=index_dtype)
        for at, value in values:
            table[at] = value
        return table

    pairs = list(zip(bound, pages[holes:], strict=True))
    v2p = cells(num_virtual + 1, [(SINK, SINK), *pairs])
    p2v = cells(num_physical + 1, [(SINK, SINK), *((p, v) for v, p in pairs)])
    stacks = cells(num_virtual, enumerate(free)), cells(num_physical, enumerate(pages[:holes]))
    state[VIRTUAL_TOP], state[HOLE_TOP] = (0 if borrowed else len(free)), holes
    for _ in range(random.randint(1, 4) if spoiled else 0):
        chain[random.randrange(chain.shape[0]), random.choice(POSITIONS)] = random.choice(WORDS)
    tables = PageTables(v2p, p2v, *stacks, state)
    return Pool(tables if growths is None else tables._replace(chain=chain, place=place), bound, free)


def ids_for(pool, random, count, dtype, *, repeats=0.0):
    """Return ids of every kind: bound and free ones, holes, the sink, past the table, and some again."""
    past = (pool.tables.v2p.shape[0] - 1, torch.iinfo(dtype).max)
    known = random.sample(pool.bound + pool.free, len(pool.bound + pool.free))
    given = []
    for _ in range(count):
        kind = random.random()
        if kind < repeats and given:
            given.append(random.choice(given))
        elif kind < 0.8 and known:
            given.append(known.pop())
        else:
            given.append(random.choice((-1, -9, torch.iinfo(dtype).min, SINK, *past)))
    return torch.tensor(given, dtype=dtype)


def both(spec, options, pool, call):
    """Return what `call(launch, tables)` gives with the planned launch and with the composed one, and the tables."""
    operation = next(op for op in OPERATIONS.values() if op.spec is type(spec))
    assert operation.compose is not None
    results = []
    for launch in (
        backend.planners[operation.name](spec, CPU, options),
        operation.compose(spec, CPU, backend.planners, options),
    ):
        tables = pool.copy()
        results.append((tables, call(launch, tables)))
    return results


def assert_same(results, *, stacks=True):
    """Assert that tables, state blocks and outputs agree; of the stacks what lies below their tops."""
    (got, outputs), (expected, wanted) = results
    for name, mine, other in zip(PageTables._fields[:6], got, expected, strict=False):
        kept = None
        if name in {"virtual_stack", "hole_stack"}:
            top = int(expected.state[VIRTUAL_TOP if name == "virtual_stack" else HOLE_TOP])
            kept = max(top, 0) if stacks else 0
        if mine is not None:
            assert torch.equal(mine[:kept], other[:kept]), f"{name}: {mine[:kept]} instead of {other[:kept]}"
    for i, (mine, other) in enumerate(zip(outputs, wanted, strict=True)):
        assert torch.equal(mine, other), f"output {i}: {mine} instead of {other}"
