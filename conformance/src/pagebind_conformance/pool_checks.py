"""Hold a pool against its model after a step: tables, stacks, spans, bytes, counts, rows, and what would fit."""

from __future__ import annotations

from random import Random
from typing import Any

from pagebind.words import COUNTERS, HOLE_TOP, REACH, SEAT, VIRTUAL_TOP, WATERMARK

from pagebind_conformance.pool_model import Part
from pagebind_conformance.pool_world import World, need

Rows = dict[str, Any]


def check(world: World) -> None:
    """Fail unless the pool holds what the model says."""
    check_counts(world)
    check_readers(world)
    check_answers(world, Random(world.steps))
    if not world.look:
        world.pending, world.pending_slots = [], []
        return
    tables: dict[str, Rows] = {}
    for name, part in world.parts.items():
        tables[name] = read(world, name)
        check_tables(world, part, tables[name])
    check_frontiers(world, tables)
    check_outputs(world, tables)
    check_bytes(world, tables)
    check_rows(world, tables)
    if not world.untold():
        need("audit()", world.pool.audit(), [])


def read(world: World, name: str) -> Rows:
    """Return the tables of a sub-pool as lists."""
    tables = world.pool.tables[name]
    return {what: getattr(tables, what).tolist() for what in ("v2p", "p2v", "virtual_stack", "hole_stack", "state")}


def check_counts(world: World) -> None:
    """Hold the host's counts against the model."""
    stats = world.stats()
    need("the order of the sub-pools", list(stats.sub_pools), list(world.parts))
    need("the open rows", stats.rows, len(world.requests))
    for name, part in world.parts.items():
        told = stats.sub_pools[name]
        need(f"live pages of {name!r}", told.live, part.told)
        need(f"leased pages of {name!r}", told.leased, part.leased)
        need(f"capacity of {name!r}", told.capacity, part.most)
        need(f"span of {name!r} beside live + holes", told.span, told.live + told.holes)
        if world.lease is None:
            need(f"span of {name!r}", told.span, part.span)
            if part.span:
                found = (told.first_byte, told.end_byte)
                need(f"the span of {name!r} in bytes", found, (part.byte(part.begin), part.byte(part.end)))
    if world.lease is None:
        need("live_bytes", stats.live_bytes, sum(p.kind.page_bytes * len(p.live) for p in world.parts.values()))
        need("span_bytes", stats.span_bytes, sum(p.kind.page_bytes * p.span for p in world.parts.values()))


def check_answers(world: World, rng: Random) -> None:
    """Hold what the pool says would fit against what fits by trying all there is."""
    for _ in range(2):
        demand = {name: rng.randrange(6) for name in world.parts if rng.random() < 0.7}
        need(f"can_reserve({demand})", world.pool.can_reserve(demand), world.model.fits(demand))
    name = rng.choice(list(world.parts))
    most = world.model.most(name)
    need(f"free_pages(name={name!r})", world.pool.free_pages(name), most)
    need(f"stats().sub_pools[{name!r}].free", world.stats().sub_pools[name].free, most)


def check_readers(world: World) -> None:
    """Every reader was waited for when it had to be, and once."""
    for reader in world.seen:
        need("waits for a reader", reader.waits, reader.due)
    world.seen = [reader for reader in world.seen if not reader.waits]


def check_tables(world: World, part: Part, rows: Rows) -> None:
    """Both tables inverse on the live set, span = live + holes, stacks hold what is free, counters are right."""
    name, state = part.kind.name, rows["state"]
    bound = {v: p for v, p in enumerate(rows["v2p"][:-1]) if v and p >= 0}
    need(f"ids bound in v2p of {name!r}", sorted(bound), sorted(part.live))
    back = {v: p for p, v in enumerate(rows["p2v"][:-1]) if p and v >= 0}
    need(f"p2v of {name!r}, inverted,", back, bound)
    for table, num in (("v2p", _num_virtual(world, part)), ("p2v", part.num)):
        need(f"the length of {table} of {name!r}", len(rows[table]), num + 1)
        need(f"both ends of {table} of {name!r}", (rows[table][0], rows[table][-1]), (0, -1))
    need(f"the watermark of {name!r}", state[WATERMARK], part.span)
    if part.span:
        need(f"the seat of {name!r}", state[SEAT], part.begin - 1)
    need(f"the hole top of {name!r}", state[HOLE_TOP], part.holes)
    holes = sorted(set(range(part.begin, part.end)) - set(bound.values()))
    need(f"the hole stack of {name!r}", sorted(rows["hole_stack"][: part.holes]), holes)
    need(f"the virtual stack of {name!r}", rows["virtual_stack"][: state[VIRTUAL_TOP]], part.stack)
    if world.lease is not None and world.model.float is not None:
        need(f"the reach of {name!r}", state[REACH], part.reach)
    counters = {counter: state[word] for counter, word in COUNTERS.items() if state[word]}
    need(f"the counters of {name!r}", counters, dict(+part.counters))


def check_frontiers(world: World, tables: dict[str, Rows]) -> None:
    """Spans lie one above the other, above the sinks and inside the buffer, as the device has them."""
    end = world.model.sinks_end
    for name, part in world.parts.items():
        state = tables[name]["state"]
        if state[WATERMARK]:
            first = part.byte(state[SEAT] + 1)
            if first < end:
                raise AssertionError(f"the span of {name!r} begins at byte {first}, what is below it ends at {end}")
            end = part.byte(state[SEAT] + 1 + state[WATERMARK])
    if end > world.setup.total_bytes:
        raise AssertionError(f"the last span ends at byte {end} of {world.setup.total_bytes}")


def check_outputs(world: World, tables: dict[str, Rows]) -> None:
    """What the last call wrote for its caller."""
    for what, output, right in world.pending:
        need(what, output.tolist(), right)
    for name, output, behind in world.pending_slots:
        kind, v2p = world.parts[name].kind, tables[name]["v2p"]
        entries = []
        for v, offset in behind:
            stored, rank = divmod(offset, world.setup.ranks)
            here = v2p[v] >= 0 and rank == world.setup.rank
            entries.append(v2p[v] * kind.multiplier * kind.page_size + stored if here else 0)
        need(f"the write slots of {name!r}", output[: len(behind)].tolist(), entries)
    world.pending, world.pending_slots = [], []


def check_bytes(world: World, tables: dict[str, Rows]) -> None:
    """Every page's bytes followed it, and nobody wrote a sink."""
    buffer = world.pool.buffer
    if buffer is None:
        return
    need("bytes of the sinks that are not 0", int(buffer[: world.model.sinks_end].count_nonzero()), 0)
    for name, part in world.parts.items():
        cells = world.views[name].tolist()
        width = part.kind.page_bytes // 8
        found = {v: cells[tables[name]["v2p"][v]] for v in part.live}
        wrong = {v: row for v, row in found.items() if row != [part.live[v]] * width}
        if wrong:
            right = {v: part.live[v] for v in wrong}
            raise AssertionError(f"pages of {name!r} hold {wrong} by id, every word should be {right}")


def check_rows(world: World, tables: dict[str, Rows]) -> None:
    """The request table names the pages of every row, and the read tables where they are."""
    form, ps = world.setup.form, world.ps
    table = world.pool.requests.table
    right = [[-1] * table.shape[1] for _ in range(table.shape[0])]
    for request in world.requests:
        ids = (
            [request.pages[t // ps] * ps + t % ps for t in range(request.tokens)] if form == "token" else request.pages
        )
        right[request.row.index][: len(ids)] = ids
    need("the request table", table.tolist(), right)
    lanes = world.requests[: world.setup.max_bs]
    if not lanes:
        return
    Random(world.steps).shuffle(lanes)
    rows = world.ints([request.row.index for request in lanes])
    lens = world.ints([request.tokens for request in lanes])
    for name, read_table in world.read_tables.items():
        kind, v2p = world.parts[name].kind, tables[name]["v2p"]
        width = -(-world.setup.max_context // ps)
        out = world.blank(len(lanes) * width).view(len(lanes), width)
        with world.quiet():
            read_table(table, rows, lens, world.pool.tables[name].v2p, out=out)
        entries = [[max(v2p[v], 0) * kind.multiplier for v in request.pages] for request in lanes]
        need(f"the read table of {name!r}", out.tolist(), [row + [0] * (width - len(row)) for row in entries])


def _num_virtual(world: World, part: Part) -> int:
    owner = world.parts[part.kind.ids_of or part.kind.name]
    return owner.num - owner.first + 1
