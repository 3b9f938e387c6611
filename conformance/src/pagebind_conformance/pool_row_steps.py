"""The steps of requests: rows opened, extended, cut, shared, released, their windows moved on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from pagebind.errors import FaultError, InvalidArgument

from pagebind_conformance.pool_steps import some, step
from pagebind_conformance.pool_world import Prefix, Request, World, need


def pages_of(tokens: int, page_size: int) -> int:
    """Return how many pages hold that many tokens."""
    return -(-tokens // page_size)


def lanes_of(world: World, rng: Random) -> list[Request]:
    """Return some requests, as the lanes of a batch."""
    return rng.sample(world.requests, min(len(world.requests), rng.randint(1, world.setup.max_bs)))


def rows_of(world: World, lanes: Sequence[Request]) -> Any:
    """Return the lanes' rows on the device."""
    return world.ints([request.row.index for request in lanes])


def on_lease_if_any(world: World, rng: Random) -> bool:
    """Return whether a call that gives back goes on the open lease."""
    return world.lease is not None and not world.counted_since and rng.random() < 0.7


@step(weight=5)
def open_row(world: World, rng: Random) -> None:
    """Give a request a row."""
    if len(world.requests) == world.setup.max_requests:
        world.refuse(InvalidArgument, world.pool.open_row, "rows have an owner")
        return
    world.requests.append(Request(world.pool.open_row(), first=dict.fromkeys(world.borrowers, 0)))


class Extension:
    """A call of extend: lanes with new tokens, and the sub-pools beside the owner that get pages for them."""

    def __init__(self, world: World, lanes: list[Request], new: list[int], also: list[str]) -> None:
        self.world, self.lanes, self.new, self.also = world, lanes, new, also
        ps = world.ps
        lens = [r.tokens for r in lanes]
        self.pages = [pages_of(m + n, ps) - pages_of(m, ps) for m, n in zip(lens, new, strict=True)]
        need("new_pages", [world.pool.new_pages(m, n) for m, n in zip(lens, new, strict=True)], self.pages)
        ends = [sum(new[:b]) for b in range(len(new) + 1)]
        self.demand = dict.fromkeys((world.owner, *also), sum(self.pages))
        self.rows, self.prefix, self.indptr = rows_of(world, lanes), world.ints(lens), world.ints(ends)
        self.slots = {name: world.blank(ends[-1]) for name in (world.owner, *also)}

    def call(self, pages: int | None) -> Callable[[], None]:
        """Return the call."""
        slots = self.slots if self.also or sum(self.new) % 2 else self.slots[self.world.owner]
        return lambda: self.world.pool.extend(self.rows, self.prefix, self.indptr, slots=slots, pages=pages)

    def happened(self, *, on_lease: bool) -> None:
        """Do on the model what the call does."""
        world = self.world
        ids = world.taken(world.owner, sum(self.pages), self.also, on_lease=on_lease)
        behind: list[tuple[int, int]] = []
        for request, n, count in zip(self.lanes, self.new, self.pages, strict=True):
            request.pages += ids[:count]
            del ids[:count]
            tokens = range(request.tokens, request.tokens + n)
            behind += [(request.pages[t // world.ps], t % world.ps) for t in tokens]
            request.tokens += n
        world.pending_slots = [(name, slots, behind) for name, slots in self.slots.items()]


def extension(world: World, rng: Random, most: int = 99) -> Extension | None:
    """Return an extension of some rows by some tokens, within what rows and batches have room for."""
    if not world.requests:
        return None
    lanes, left = lanes_of(world, rng), world.setup.max_tokens
    new = []
    for request in lanes:
        n = min(
            rng.choice([0, 1, 2, world.ps, world.ps + 1, 2 * world.ps, 9]),
            world.setup.max_context - request.tokens,
            left,
            most,
        )
        new.append(n)
        left -= n
    also = list(world.borrowers) if rng.random() < 0.6 else some(rng, world.borrowers)
    return Extension(world, lanes, new, rng.sample(also, len(also)))


@step(weight=12)
def extend(world: World, rng: Random) -> None:
    """Give rows pages for new tokens: in the owner alone, or in borrowers too; by counts or on the lease."""
    asked = extension(world, rng)
    if asked is None:
        return
    on_lease = rng.random() < 0.7 and world.may_lease(asked.demand)
    if not on_lease:
        error = world.why_not(asked.demand)
        if error is not None:
            world.refuse(error, asked.call(sum(asked.pages)))
            return
        if rng.random() < 0.1:  # what is wrong is found before anything is moved
            asked.indptr, kept = asked.indptr[:-1], asked.indptr
            world.refuse(InvalidArgument, asked.call(sum(asked.pages)), "indptr has")
            asked.indptr = kept
        world.make_room(asked.demand)
    world.act(asked.call(None if on_lease else sum(asked.pages)))
    asked.happened(on_lease=on_lease)


@step(weight=1, reads=True)
def miscount(world: World, rng: Random) -> None:
    """Extend rows and count a page too many: counted, and mended by reconcile; or refused, with full checks."""
    asked = extension(world, rng)
    if asked is None or world.lease is not None:
        return
    told = sum(asked.pages) + 1
    demand = dict.fromkeys(asked.demand, told)
    error = world.why_not(demand)
    if error is not None:
        world.refuse(error, asked.call(told))
        return
    if world.setup.checks == "full":
        world.refuse(FaultError, asked.call(told), "count_mismatch")
        return
    world.make_room(demand)
    world.act(asked.call(told))
    asked.happened(on_lease=False)
    world.parts[world.owner].counters["count_mismatch"] += 1
    world.pool.reconcile()


@step(weight=5)
def truncate(world: World, rng: Random) -> None:
    """Cut rows, but no shared prefix."""
    if not world.requests:
        return
    lanes = lanes_of(world, rng)
    keep = [rng.randint(min(r.shared() * world.ps, r.tokens), r.tokens) for r in lanes]
    cut(world, lanes, keep, on_lease=on_lease_if_any(world, rng))


def cut(world: World, lanes: list[Request], keep: list[int], *, on_lease: bool) -> None:
    """Cut rows to `keep` tokens."""
    kept = [pages_of(k, world.ps) for k in keep]
    owned = [v for request, page in zip(lanes, kept, strict=True) for v in request.pages[page:]]
    borrowed = {name: held_from(world, lanes, name, kept) for name in world.borrowers}
    counts = {world.owner: len(owned)} | {name: len(held) for name, held in borrowed.items() if held}
    rows, lens, keeps = rows_of(world, lanes), world.ints([r.tokens for r in lanes]), world.ints(keep)
    pages = None if on_lease else counts if len(counts) > 1 or sum(keep) % 2 else len(owned)
    world.act(lambda: world.pool.truncate(rows, lens, keeps, pages=pages))
    for name, held in borrowed.items():
        drop(world, name, held, on_lease=on_lease)
        for request, page in zip(lanes, kept, strict=True):
            request.first[name] = min(request.first[name], page)
    drop(world, world.owner, owned, on_lease=on_lease)
    for request, tokens, page in zip(lanes, keep, kept, strict=True):
        request.tokens = tokens
        del request.pages[page:]


def drop(world: World, name: str, ids: list[int], *, on_lease: bool) -> None:
    """Give ids back; freeing the sink, which rows of starved lanes name, is a fault."""
    starved = ids.count(0)
    if starved:
        world.parts[name].counters["bad_free"] += starved
    world.gave(name, [v for v in ids if v], on_lease=on_lease)


def held_from(world: World, lanes: Sequence[Request], name: str, begins: Sequence[int]) -> list[int]:
    """Return what a borrower holds for the pages of rows from `begins` on; the sink where a lane starved."""
    live = world.parts[name].live
    return [
        v
        for request, begin in zip(lanes, begins, strict=True)
        for v in request.pages[max(begin, request.first[name]) :]
        if v in live or v == 0
    ]


@step(weight=2)
def release(world: World, rng: Random) -> None:
    """Empty rows and hand them back, late or twice refused; shared prefixes stay."""
    if not world.requests:
        return
    lanes = lanes_of(world, rng)
    kept = [request.shared() for request in lanes]
    owned = [v for request, page in zip(lanes, kept, strict=True) for v in request.pages[page:]]
    borrowed = {name: held_from(world, lanes, name, kept) for name in world.borrowers}
    counts = {world.owner: len(owned)} | {name: len(held) for name, held in borrowed.items()}
    handles = [request.row for request in lanes]
    rows, lens = rows_of(world, lanes), world.ints([r.tokens for r in lanes])
    starts = world.ints([page * world.ps for page in kept]) if any(kept) or rng.random() < 0.5 else None

    def call() -> None:
        world.pool.release(handles, rows, lens, pages=counts, starts=starts)

    world.act(call)
    for name, held in borrowed.items():
        drop(world, name, held, on_lease=False)
    drop(world, world.owner, owned, on_lease=False)
    for request in lanes:
        world.requests.remove(request)
        if request.prefix is not None:
            request.prefix.users -= 1
    world.refuse(InvalidArgument, call, "was released before")


@step(weight=5)
def evict_window(world: World, rng: Random) -> None:
    """Move windows on: pages of a borrower behind them come back, the ids live on."""
    if not world.requests or not world.borrowers:
        return
    name, lanes = rng.choice(world.borrowers), lanes_of(world, rng)
    begins = [rng.randint(0, request.tokens) for request in lanes]
    keeps = rng.random() < 0.5  # a shared prefix stays, or it goes for all who share it
    kept = [request.shared() if keeps else 0 for request in lanes]
    first = [max(request.first[name], page) for request, page in zip(lanes, kept, strict=True)]
    ends = [begin // world.ps for begin in begins]
    live = world.parts[name].live
    held = [v for r, start, end in zip(lanes, first, ends, strict=True) for v in r.pages[start:end] if v in live]
    if len(set(held)) != len(held):
        return  # two lanes that share a prefix would both give it back, which is a fault
    if sum(max(end - start, 0) for start, end in zip(first, ends, strict=True)) > len(world.parts[world.owner].live):
        return  # a batch looks at no more pages than there are ids
    on_lease = on_lease_if_any(world, rng)
    rows, before = rows_of(world, lanes), world.ints(begins)
    starts = world.ints([page * world.ps for page in kept]) if keeps else None
    called = None if len(world.borrowers) == 1 and rng.random() < 0.5 else name
    pages = None if on_lease else len(held)
    world.act(lambda: world.pool.evict_window(rows, before, pages=pages, name=called, starts=starts))
    drop(world, name, held, on_lease=on_lease)
    for request, end in zip(lanes, ends, strict=True):
        request.first[name] = max(request.first[name], end)


# ---- shared prefixes -------------------------------------------------------------------------------------------------


@step(weight=2)
def publish(world: World, rng: Random) -> None:
    """Let whole pages at the head of a row be shared: from then on they are not the row's to free."""
    able = [r for r in world.requests if r.prefix is None and r.tokens >= world.ps and not any(r.first.values())]
    if able:
        request = rng.choice(able)
        request.prefix = Prefix(request.pages[: rng.randint(1, request.tokens // world.ps)], users=1)
        world.prefixes.append(request.prefix)


@step(weight=2)
def assign(world: World, rng: Random) -> None:
    """Start an empty row on a shared prefix."""
    able = [request for request in world.requests if not request.tokens]
    if not able or not world.prefixes:
        return
    request, prefix = rng.choice(able), rng.choice(world.prefixes)
    ps = world.ps
    ids = [v * ps + o for v in prefix.ids for o in range(ps)] if world.setup.form == "token" else prefix.ids
    rows, given, indptr = rows_of(world, [request]), world.ints(ids), world.ints([0, len(ids)])
    world.act(lambda: world.pool.assign(rows, given, indptr))
    request.pages, request.tokens, request.prefix = list(prefix.ids), len(prefix.ids) * ps, prefix
    prefix.users += 1


@step(weight=2)
def drop_prefix(world: World, rng: Random) -> None:
    """Free a prefix that no row shares any more."""
    able = [prefix for prefix in world.prefixes if not prefix.users]
    if not able:
        return
    prefix = rng.choice(able)
    world.prefixes.remove(prefix)
    world.loose[world.owner] += prefix.ids


__all__ = ["Extension", "cut", "extension", "pages_of"]
