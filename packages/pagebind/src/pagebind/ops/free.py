"""free: unbind virtual ids and push them and their pages back on the stacks, in one launch.

    lane i, as in unbind:  served -> freed[i] = p, and with k served lanes before it
                                     virtual_stack[top + k] = ids[i], hole_stack[holes + k] = p
                           hole or fault -> freed[i] = -1, nothing pushed

Afterwards `top += served`, `holes += served`, `epoch += 1`; the span stays: a freed page is a hole. No top passes the
end of its stack, which only ids that were bound by hand could make it do: what they would push there is dropped.

A sub-pool that borrows its ids pushes pages only, and an id that has no page in it is a hole: the window of a request
has let go of pages whose ids live on.
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
    need_count,
    need_length,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.unbind import UnbindSpec, unbindable
from pagebind.words import COUNT_MISMATCH, EPOCH, HOLE, SINK, PageTables


@dataclass(frozen=True, kw_only=True)
class FreeSpec:
    """What a free's plan decides: at most `max_items` ids a call; `borrowed` where the ids are another sub-pool's."""

    max_items: int
    borrowed: bool = False
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    id_dtype: torch.dtype = torch.int32  # of ids and freed

    def __post_init__(self) -> None:
        need_fields(self)


class Free(Protocol):
    """The planned call."""

    def __call__(
        self,
        ids: torch.Tensor,  # [n], id_dtype; virtual pages
        tables: PageTables,  # written
        *,
        freed: torch.Tensor,  # [n], id_dtype; physical page lane i released, -1 where none; written
        pages: int | None = None,  # the host's count of pages that come back; None where it has none
    ) -> None:
        """Unbind every id that is bound and push what was released, in lane order.

        Counted in `tables.state`: `double_free`, `bad_free` as in unbind, but that a borrowed id whose row of v2p is
        negative is a hole; `count_mismatch`, once, where `pages` is not the number of lanes served. Where ids repeat,
        which of their lanes is served, and so the order of the stacks above the old tops, is not specified. Raises
        InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: FreeSpec,
    device: torch.device,
    ids: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    pages: int | None = None,
) -> bool:
    """Check a call; False where there are no ids."""
    need_tensor("ids", ids, spec.id_dtype, 1, device)
    need_tables(tables, spec.index_dtype, device)
    need_tensor("freed", freed, spec.id_dtype, 1, device)
    need_length("freed", freed, ids.shape[0], "ids")
    need_memory_of_its_own("v2p p2v freed", (tables.v2p, tables.p2v, freed), "ids", (ids,))
    need_at_most("the number of ids", ids.shape[0], spec.max_items, "max_items")
    if pages is not None:
        need_count("pages", pages, 0)
    return ids.shape[0] > 0


def bytes_moved(spec: FreeSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to free `items` ids: as unbind, and two stack cells written."""
    return items * (2 * spec.id_dtype.itemsize + 5 * spec.index_dtype.itemsize)


def features(spec: FreeSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({"borrowed"} if spec.borrowed else ())


def faults(
    spec: FreeSpec,
    ids: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    pages: int | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count, with the virtual pages; for a mismatch, the number of lanes served."""
    if spec.borrowed:
        ids = held(ids, tables)
    _, served, double_free, bad_free = unbindable(ids, tables.v2p, tables.p2v)
    count = int(served.count_nonzero())
    return {
        "double_free": plain(ids[double_free]),
        "bad_free": plain(ids[bad_free]),
        "count_mismatch": [count] if pages is not None and pages != count else [],
    }


def held(ids: torch.Tensor, tables: PageTables) -> torch.Tensor:
    """Return borrowed ids with a hole in place of each that has no page in this sub-pool."""
    inside = (ids > SINK) & (ids < tables.v2p.shape[0] - 1)
    return ids.masked_fill(inside & (tables.v2p.index_select(0, ids.long().where(inside, SINK)) < SINK), HOLE)


def compose(spec: FreeSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Unbind with the core operation, and push what it released with torch."""
    unbind = planners["unbind"](
        UnbindSpec(max_items=spec.max_items, index_dtype=spec.index_dtype, id_dtype=spec.id_dtype), device, options
    )

    def run(ids: torch.Tensor, tables: PageTables, *, freed: torch.Tensor, pages: int | None = None) -> None:
        given = held(ids, tables) if spec.borrowed else ids
        unbind(given, tables.v2p, tables.p2v, freed=freed, state=tables.state if options.count else None)
        served = stacks.push(tables, ids, freed, borrowed=spec.borrowed)
        tables.state[EPOCH] += 1
        if options.count and pages is not None:
            tables.state[COUNT_MISMATCH] += int(served != pages)

    return Composed("free", device, run, unbind)


FREE: Operation[FreeSpec, Free] = Operation(
    name="free",
    level="extended",
    spec=FreeSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
