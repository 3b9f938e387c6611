"""alloc: take virtual ids and physical pages off the device stacks and bind them, in one launch.

    lane i:  v = virtual_stack[top - 1 - i]
             p = hole_stack[holes - 1 - i]            while i < holes        (last freed, first taken)
                 the (i - holes)-th page of growth    after that             (the frontier moves)
             i < min(n, top, holes + room)  ->  v2p[v] = p, p2v[p] = v, ids[i] = v, pages[i] = p
             otherwise                      ->  ids[i] = pages[i] = 0 (the sink), counted starved

    growth of an end up      seat + watermark + 1, + 2, ...
    growth of an end down    seat, seat - 1, ...
    growth of a float        up as long as there is room above, then down; an empty one sits in the middle first

`room` is what lies between the span and its neighbours (`pagebind.ops.span.read_span` defines it). Afterwards
`top -= k`, `holes -= min(k, holes)`, `watermark += g`, `seat -= the pages of growth down`, with k the lanes in the
first line of the choice and g = k - min(k, holes); the seat is written only where g > 0.

A sub-pool that borrows ids is given them: the lanes whose id is neither the sink nor a hole are numbered from 0, and
the i-th of them takes page i; the virtual stack stays, and is no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.operation import (
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_length,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.bind import BindSpec, bindable
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.lanes import add
from pagebind.words import SINK, STARVED, PageTables


@dataclass(frozen=True, kw_only=True)
class AllocSpec:
    """What an allocation's plan decides: at most `max_items` pages a call.

    `borrowed` plans for calls that are given the virtual pages, which are those of another sub-pool.
    """

    max_items: int
    borrowed: bool = False
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    id_dtype: torch.dtype = torch.int32  # of ids and pages

    def __post_init__(self) -> None:
        need_fields(self)


class Alloc(Protocol):
    """The planned call."""

    def __call__(
        self,
        tables: PageTables,  # written
        *,
        ids: torch.Tensor,  # [n], id_dtype; virtual pages; written, or read where they are borrowed
        pages: torch.Tensor,  # [n], id_dtype; physical pages; written
    ) -> None:
        """Take and bind one page a lane.

        A borrowed id that is the sink or negative asks for nothing: its lane gets page 0 and is no fault. Counted in
        `tables.state`: `starved` lanes that found no id or no page; `bad_bind` lanes whose id or page is bound already
        or lies outside the tables (somebody bound it by hand): they get the sink, and the id and the page are off the
        stacks. Where a borrowed id repeats, which of its lanes is served is not specified, nor whether one is where a
        lane of it has a page that is bound already. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: AllocSpec, device: torch.device, tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor
) -> bool:
    """Check a call; False where no page is asked for."""
    need_tables(tables, spec.index_dtype, device)
    need_tensor("ids", ids, spec.id_dtype, 1, device)
    need_tensor("pages", pages, spec.id_dtype, 1, device)
    need_length("pages", pages, ids.shape[0], "ids")
    need_memory_of_its_own("ids pages", (ids, pages), "", ())
    need_at_most("the number of pages", ids.shape[0], spec.max_items, "max_items")
    return ids.shape[0] > 0


def bytes_moved(spec: AllocSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to take `items` pages: two stack cells or an id and one read, two rows and the rest written."""
    return items * (4 * spec.index_dtype.itemsize + 2 * spec.id_dtype.itemsize)


def features(spec: AllocSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({"borrowed"} if spec.borrowed else ())


def faults(
    spec: AllocSpec, tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: the lanes that would starve, the virtual pages that are bound by hand."""
    lanes, borrowed = _asking(spec, ids)
    found = stacks.find(tables, lanes.shape[0], borrowed)
    refused = ~bindable(found.virtual, found.physical, tables.v2p, tables.p2v)
    return {
        "starved": plain(lanes[found.virtual.shape[0] :]),
        "bad_bind": plain(found.virtual[refused]),
    }


def _asking(spec: AllocSpec, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    # The lanes that ask for a page, and the ids they bring.
    if not spec.borrowed:
        return torch.arange(ids.shape[0], device=ids.device), None
    lanes = (ids > SINK).nonzero().flatten()
    return lanes, ids.index_select(0, lanes)


def compose(spec: AllocSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Take pages off the stacks with torch, and bind them with the core operation."""
    bind = planners["bind"](
        BindSpec(max_items=spec.max_items, index_dtype=spec.index_dtype, id_dtype=spec.index_dtype), device, options
    )

    def run(tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor) -> None:
        lanes, borrowed = _asking(spec, ids)
        n = lanes.shape[0]
        taken = stacks.take(tables, n, bind, borrowed)
        if borrowed is None:
            ids.copy_(taken.virtual)
        else:
            pages.zero_()
        pages[lanes] = taken.physical.to(pages.dtype)
        if options.count:
            tables.state[STARVED] += n - taken.found
            add(tables.state, bad_bind=taken.refused)

    return Composed("alloc", device, run, bind)


ALLOC: Operation[AllocSpec, Alloc] = Operation(
    name="alloc",
    level="extended",
    spec=AllocSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
