"""The decode step of a batch: every row gets its next token, by counts, on the lease, beside a table, or refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from pagebind.errors import Unsupported

from pagebind_conformance.pool_row_steps import Extension, lanes_of
from pagebind_conformance.pool_steps import some, step
from pagebind_conformance.pool_world import Request, World, need


class Decoding(Extension):
    """A call of advance: an extension of each lane by one token, which moves the lengths itself."""

    def __init__(self, world: World, lanes: list[Request], also: list[str], table: torch.Tensor | None) -> None:
        super().__init__(world, lanes, [1] * len(lanes), also)
        self.table = table

    def call(self, pages: int | None) -> Callable[[], None]:
        """Return the call."""
        slots = self.slots if self.also else self.slots[self.world.owner]
        return lambda: self.world.pool.advance(self.rows, self.prefix, slots=slots, pages=pages, table=self.table)

    def happened(self, *, on_lease: bool) -> None:
        """Do on the model what the call does."""
        super().happened(on_lease=on_lease)
        self.world.pending.append(("the lengths of advance", self.prefix, [r.tokens for r in self.lanes]))


@step(weight=8)
def advance(world: World, rng: Random) -> None:
    """Give every lane its next token: in the owner alone, or in borrowers too; by counts or on the lease."""
    lanes = [request for request in lanes_of(world, rng) if request.tokens < world.setup.max_context]
    lanes = lanes[: world.setup.max_tokens]
    if not lanes:
        return
    also = list(world.borrowers) if rng.random() < 0.6 else some(rng, world.borrowers)
    before = _table(world, lanes) if rng.random() < 0.5 else None
    asked = Decoding(world, lanes, also, None if before is None else before.clone())
    clearing = [name for name in (world.owner, *also) if world.parts[name].kind.zero_on_alloc]
    if clearing:
        world.refuse(Unsupported, asked.call(sum(asked.pages)), f"{clearing[0]!r} has zero_on_alloc")
        return
    on_lease = rng.random() < 0.7 and world.may_lease(asked.demand)
    if not on_lease:
        error = world.why_not(asked.demand)
        if error is not None:
            world.refuse(error, asked.call(sum(asked.pages)))
            return
        world.make_room(asked.demand)
    columns = [(b, r.tokens // world.ps) for b, r in enumerate(lanes) if asked.pages[b]]
    world.act(asked.call(None if on_lease else sum(asked.pages)))
    asked.happened(on_lease=on_lease)
    if before is not None and asked.table is not None and world.look:
        fresh = _table(world, lanes).tolist()
        wanted = before.tolist()
        for b, column in columns:
            wanted[b][column] = fresh[b][column]
        need("the table that advance appends to", asked.table.tolist(), wanted)


def _table(world: World, lanes: list[Request]) -> torch.Tensor:
    """Return a fresh page table of the lanes' rows."""
    pages = -(-world.setup.max_context // world.ps)
    table = world.blank(len(lanes) * pages).view(len(lanes), pages)
    rows, lens = world.ints([r.row.index for r in lanes]), world.ints([r.tokens for r in lanes])
    tables = world.pool.tables[world.owner]
    world.read_tables[world.owner](world.pool.requests.table, rows, lens, tables.v2p, out=table)
    return table


__all__ = ["Decoding", "advance"]
