"""The steps that any use of a pool is made of, each on the pool and on its model; what is random in them is a seed's.

`STEPS` has them by name. A step that does not apply (nothing to free, no row) does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from pagebind.errors import FaultError, InvalidArgument
from pagebind.ops.compact import Side

from pagebind_conformance.pool_checks import check
from pagebind_conformance.pool_world import Reader, World, need

SIDES: tuple[Side, ...] = ("high", "low")

Step = Callable[[World, Random], None]

STEPS: dict[str, Step] = {}
WEIGHTS: dict[str, int] = {}
"""How often a seeded driver takes a step, relative to the others."""

READING: set[str] = set()
"""Steps that leave counts to be read off the device, as reconcile does after a fault."""


def step(weight: int, *, reads: bool = False) -> Callable[[Step], Step]:
    """Register a step."""

    def register(function: Step) -> Step:
        name = function.__name__
        STEPS[name], WEIGHTS[name] = function, weight
        if reads:
            READING.add(name)
        return function

    return register


def run(world: World, name: str, seed: int) -> None:
    """Take one step and hold the pool against the model."""
    STEPS[name](world, Random(seed))
    world.steps += 1
    check(world)


def some(rng: Random, values: Sequence[str]) -> list[str]:
    """Return some of the values, in any order."""
    return rng.sample(list(values), rng.randint(0, len(values)))


# ---- pages by id -----------------------------------------------------------------------------------------------------


@step(weight=8)
def alloc(world: World, rng: Random) -> None:
    """Take ids of an owner, with pages in some that borrow them; by counts or on the lease."""
    owner = rng.choice(world.owners)
    also = some(rng, [part.kind.name for part in world.parts.values() if part.kind.ids_of == owner])
    most = world.model.most(owner, *also)
    n = rng.choice([0, 1, 1, 2, 3, most, most, most + 1])
    demand = dict.fromkeys((owner, *also), n)
    on_lease = rng.random() < 0.7 and world.may_lease(demand)
    out = world.blank(n) if rng.random() < 0.5 else None
    name = None if owner == world.owner and rng.random() < 0.5 else owner

    def call() -> torch.Tensor:
        return world.pool.alloc(n, name=name, also=also, ids=out, on_lease=on_lease)

    if not on_lease:
        error = world.why_not(demand)
        if error is not None:
            world.refuse(error, call)
            return
        world.make_room(demand)
    got = world.act(call)
    if out is not None and got is not out:
        raise AssertionError("alloc did not return the ids it was given")
    ids = world.taken(owner, n, also, on_lease=on_lease)
    world.loose[owner] += ids
    world.pending.append(("the ids of alloc", got, ids))


@step(weight=1)
def fill(world: World, rng: Random) -> None:
    """Take every page there is, one owner after another."""
    for owner in rng.sample(world.owners, len(world.owners)):
        n = world.model.most(owner)
        world.make_room({owner: n})
        with world.quiet():
            got = world.pool.alloc(n, name=owner)
        ids = world.taken(owner, n, (), on_lease=False)
        world.loose[owner] += ids
        world.pending.append((f"the ids of {owner!r}", got, ids))


@step(weight=8)
def free(world: World, rng: Random) -> None:
    """Free some ids that no row holds, their borrowed pages first."""
    owner = rng.choice(world.owners)
    loose = world.loose[owner]
    ids = rng.sample(loose, min(len(loose), rng.choice([0, 1, 2, 3, 4, 99])))
    on_lease = world.lease is not None and not world.counted_since and rng.random() < 0.7
    world.loose[owner] = [v for v in loose if v not in ids]
    _free(world, owner, ids, on_lease=on_lease)


def _free(world: World, owner: str, ids: list[int], *, on_lease: bool = False) -> None:
    borrowed = world.borrowed(ids, owner)
    given, also = world.ints(ids), {name: len(held) for name, held in borrowed.items() if held}
    world.act(lambda: world.pool.free(given, name=owner, also=also, on_lease=on_lease))
    for name, held in borrowed.items():
        world.gave(name, held, on_lease=on_lease)
    world.gave(owner, ids, on_lease=on_lease)


@step(weight=1, reads=True)
def free_twice(world: World, rng: Random) -> None:
    """Free what is not there: dropped and counted, and mended by reconcile; or refused, with full checks."""
    owner = rng.choice(world.owners)
    part, loose = world.parts[owner], world.loose[owner]
    num = len(part.live) + len(part.stack) + 1
    if world.lease is not None:
        return
    if loose and rng.random() < 0.5:
        v = rng.choice(loose)
        ids, served, faults = [v, v], [v], {"double_free": 1}
    else:
        ids, served, faults = [0, *part.stack[:1], num, -1], [], {"bad_free": 2, "double_free": len(part.stack[:1])}
    borrowed = world.borrowed(served, owner)
    given, also = world.ints(ids), {name: len(held) for name, held in borrowed.items() if held}

    def call() -> None:
        world.pool.free(given, name=owner, also=also)

    if len(ids) > part.told:
        world.refuse(InvalidArgument, call, "are live")
        return
    if world.setup.checks == "full":
        error = world.refuse(FaultError, call, "was refused, nothing was written")
        need("the faults", error.counters, {k: n for k, n in faults.items() if n})
        return
    world.act(call)
    for name, held in borrowed.items():
        if held:
            world.gave(name, held, on_lease=False)
            world.parts[name].counters.update(faults)
    world.gave(owner, served, on_lease=False)
    part.counters.update(faults)
    world.loose[owner] = [v for v in loose if v not in served]
    world.pool.reconcile()


# ---- moving pages ----------------------------------------------------------------------------------------------------


@step(weight=3)
def compact(world: World, rng: Random) -> None:
    """Close some holes, or all."""
    name, side = rng.choice(list(world.parts)), rng.choice(SIDES)
    part = world.parts[name]
    most = rng.choice([None, 0, 1, 2, 3, 99])
    holes = part.span - part.told if world.lease is None else world.stats().sub_pools[name].holes
    right = 0 if world.model.gate_closed else min(holes, holes if most is None else most)

    def call() -> int:
        return world.pool.compact(most, name=name, side=side)

    if right and world.lease is not None:
        world.refuse(InvalidArgument, call, "settle it first")
        return
    need("the pages retreated", world.act(call), right)
    if right:
        world.model.retreat(part, right, side)
        world.joined()


@step(weight=2)
def hold_moves(world: World, rng: Random) -> None:
    """Close the move gate, or open it again."""
    if world.model.gate_closed:
        world.gate.close()
        world.model.gate_closed = False
    if rng.random() < 0.6:
        return
    for _ in range(rng.randint(1, 2)):
        world.gate.enter_context(world.pool.hold_moves())
    world.model.gate_closed = True


@step(weight=1)
def reading(world: World, rng: Random) -> None:
    """Somebody reads pages: moves and reuse wait for it."""
    reader = Reader()
    world.pool.reading(reader)
    world.readers.append(reader)
    world.seen.append(reader)


@step(weight=1)
def join_readers(world: World, rng: Random) -> None:
    """The stream waits for every reader now."""
    world.pool.join_readers()
    world.joined()


# ---- looking ---------------------------------------------------------------------------------------------------------


@step(weight=1)
def look(world: World, rng: Random) -> None:
    """Poll, digest, views: none changes anything."""
    before = world.pool.digest() if world.look else ""
    told = world.act(world.pool.poll)
    need("what is polled", list(told), list(world.parts))
    if world.device.type == "cpu":
        for name, part in world.parts.items():
            need(f"what poll tells of {name!r}", {k: n for k, n in told[name].items() if n}, dict(+part.counters))
    if world.setup.buffer:
        part = rng.choice(list(world.parts.values()))
        offset = 4 * rng.randrange(part.kind.page_bytes // 4)
        view = world.pool.view(part.kind.name, torch.int16, (2,), offset=offset)
        need("the shape of a view", list(view.shape), [part.num, 2])
        if world.look and part.live:
            v = rng.choice(list(part.live))
            marker = list(part.live[v].to_bytes(8, "little"))[offset % 8 :][:4]
            found = view[int(world.pool.tables[part.kind.name].v2p[v])].contiguous().view(torch.uint8).tolist()
            need(f"a view of the page of id {v}", found, marker)
    if world.look:
        need("the digest after looking", world.pool.digest(), before)


@step(weight=1)
def reconcile(world: World, rng: Random) -> None:
    """Set counts that are right already."""
    if world.lease is None:
        if world.look:
            need("what reconcile returns", world.pool.reconcile(), world.stats())
        return
    world.refuse(InvalidArgument, world.pool.reconcile, "settle it first")


@step(weight=1)
def refusals(world: World, rng: Random) -> None:
    """Ask for what cannot be: each call is refused and changes nothing."""
    pool, one = world.pool, world.ints([1])
    long, many = one.long(), world.ints([1] * 99)
    lender = next((name for name in world.owners if name != world.owner), world.owner)
    calls: list[Callable[[], object]] = [
        lambda: pool.alloc(-1),
        lambda: pool.alloc(1, name="nobody"),
        lambda: pool.alloc(1, also=[lender]),
        lambda: pool.alloc(1, ids=long),
        lambda: pool.alloc(2, ids=one),
        lambda: pool.free(long),
        lambda: pool.free(many),
        lambda: pool.free(one, also={"nobody": 1}),
        lambda: pool.free(one, also={lender: 1}),
        lambda: pool.reserve({"nobody": 1}),
        lambda: pool.reserve(-1),
        lambda: pool.can_reserve({world.owner: True}),
        lambda: pool.compact(-1),
        lambda: pool.compact(side="both"),  # type: ignore[arg-type]
        lambda: pool.reading(object()),  # type: ignore[arg-type]
        lambda: pool.assign(one, one, one),
        lambda: pool.view(world.owner, torch.int64, (10**6,)),
    ]
    calls += [lambda name=name: pool.alloc(1, name=name) for name in world.borrowers]  # type: ignore[misc]
    if world.lease is None:
        calls.append(lambda: pool.alloc(1, on_lease=True))
        calls.append(lambda: pool.truncate(one, one, one))
    world.refuse(InvalidArgument, rng.choice(calls))
