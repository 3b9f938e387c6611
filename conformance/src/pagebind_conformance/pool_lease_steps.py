"""The steps of leases: opened, refused, settled, and calls that take more than was leased."""

from __future__ import annotations

from random import Random

from pagebind.errors import InvalidArgument

from pagebind_conformance.pool_row_steps import cut, extension
from pagebind_conformance.pool_steps import some, step
from pagebind_conformance.pool_world import Request, World


@step(weight=5)
def reserve(world: World, rng: Random) -> None:
    """Set pages aside, jointly; refused where they do not fit, and while a lease is open."""
    names = some(rng, list(world.parts)) if rng.random() < 0.8 else []
    demand = {name: rng.choice([0, 1, 2, 3]) for name in names}
    if names and rng.random() < 0.5:
        demand = dict.fromkeys(names, world.model.most(*names) + rng.randint(0, 1))
    if world.lease is not None:
        world.refuse(InvalidArgument, lambda: world.pool.reserve(demand), "is open")
        return
    error = world.why_not(demand)
    if error is not None:
        world.refuse(error, lambda: world.pool.reserve(demand))
        return
    world.make_room(demand)
    world.open_lease(world.act(lambda: world.pool.reserve(demand)), demand)


@step(weight=14)
def settle(world: World, rng: Random) -> None:
    """Settle the open lease; wrong counts, and a second time, are refused."""
    if world.lease is None:
        return
    lease = world.lease
    used = {name: part.held for name, part in world.parts.items() if part.held}
    peak = {name: part.peak for name, part in world.parts.items() if part.peak}
    if rng.random() < 0.3:
        name = rng.choice(list(world.parts))
        part = world.parts[name]
        wrong = rng.choice([part.leased + 1, -part.opened - 1])
        world.refuse(InvalidArgument, lambda: lease.settle(used | {name: wrong}, peak), "cannot settle")
    only_took = all(part.peak == max(part.held, 0) for part in world.parts.values())
    if only_took and rng.random() < 0.5:
        world.act(lambda: lease.settle(used))
    else:
        world.act(lambda: lease.settle(used, peak))
    world.close_lease()
    world.refuse(InvalidArgument, lambda: lease.settle(0), "settled before")


@step(weight=2, reads=True)
def outrun(world: World, rng: Random) -> None:
    """Take more than was leased: lanes starve where no page is left, and are counted; nobody else is touched."""
    if world.lease is not None or world.setup.checks == "full":
        return
    owner = rng.choice(world.owners)
    also = some(rng, [part.kind.name for part in world.parts.values() if part.kind.ids_of == owner])
    demand = dict.fromkeys(some(rng, list(world.parts)), rng.randint(0, 2))
    if not world.model.fits(demand):
        return
    world.make_room(demand)
    lease = world.act(lambda: world.pool.reserve(demand))
    world.open_lease(lease, demand)
    asked = extension(world, rng) if owner == world.owner and rng.random() < 0.6 else None
    part = world.parts[owner]
    if asked is not None and sum(asked.pages) <= len(part.live) + len(part.stack):  # as many as one cut gives back
        held = [len(request.pages) for request in asked.lanes]
        world.act(asked.call(None))
        asked.happened(on_lease=True)
        _give_back_sinks(world, asked.lanes, held)
    else:
        n = min(rng.choice([3, 8, 99]), len(part.stack) + 1)
        out = world.blank(n)
        world.act(lambda: world.pool.alloc(n, name=owner, also=also, ids=out, on_lease=True))
        ids = world.taken(owner, n, also, on_lease=True)
        world.loose[owner] += [v for v in ids if v]
        world.pending.append(("the ids of alloc", out, ids))
    used = {name: min(part.held, part.leased) for name, part in world.parts.items()}
    peak = {name: min(part.peak, part.leased) for name, part in world.parts.items()}
    world.act(lambda: lease.settle(used, peak))
    world.close_lease()
    world.pool.reconcile()


def _give_back_sinks(world: World, lanes: list[Request], held: list[int]) -> None:
    # Rows of lanes that starved name the sink: they are cut before it, which counts it as freed by mistake.
    found = [next((i for i, v in enumerate(r.pages) if v == 0), len(r.pages)) for r in lanes]
    keep = [min(r.tokens, pages * world.ps) for r, pages in zip(lanes, found, strict=True)]
    assert all(pages >= before for pages, before in zip(found, held, strict=True))
    world.pending_slots = []
    cut(world, lanes, keep, on_lease=True)
