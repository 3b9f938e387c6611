"""alloc: take virtual ids and physical pages off the device stacks and bind them, in one launch.

    lane i:  v = virtual_stack[top - 1 - i]
             p = hole_stack[holes - 1 - i]            while i < holes        (last freed, first taken)
                 watermark + 1 + (i - holes)          after that             (the frontier grows)
             i < min(n, top, holes + room)  ->  v2p[v] = p, p2v[p] = v, ids[i] = v, pages[i] = p
             otherwise                      ->  ids[i] = pages[i] = 0 (the sink), counted starved

`room = num_physical - 1 - watermark`. Afterwards `top -= k`, `holes -= min(k, holes)`, `watermark += k - min(k, holes)`
with k the lanes in the first line of the choice.
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
    need_index_dtypes,
    need_length,
    need_no_overlap,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.bind import BindSpec, bindable
from pagebind.ops.composed import Composed
from pagebind.ops.lanes import add
from pagebind.words import STARVED, PageTables


@dataclass(frozen=True, kw_only=True)
class AllocSpec:
    """What an allocation's plan decides: at most `max_items` pages a call."""

    max_items: int
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    id_dtype: torch.dtype = torch.int32  # of ids and pages

    def __post_init__(self) -> None:
        need_count("max_items", self.max_items, 0)
        need_index_dtypes(index_dtype=self.index_dtype, id_dtype=self.id_dtype)


class Alloc(Protocol):
    """The planned call."""

    def __call__(
        self,
        tables: PageTables,  # written
        *,
        ids: torch.Tensor,  # [n], id_dtype; virtual pages; written
        pages: torch.Tensor,  # [n], id_dtype; physical pages; written
    ) -> None:
        """Take and bind one page a lane.

        Counted in `tables.state`: `starved` lanes that found no id or no page; `bad_bind` lanes whose id or page is
        bound already or lies outside the tables (somebody bound it by hand): they get the sink, and the id and the page
        are off the stacks. Raises InvalidArgument before launching.
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
    need_no_overlap("ids", ids, "pages", pages)
    need_at_most("the number of pages", ids.shape[0], spec.max_items, "max_items")
    return ids.shape[0] > 0


def bytes_moved(spec: AllocSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to take `items` pages: two stack cells read, two rows and two outputs written."""
    return items * (4 * spec.index_dtype.itemsize + 2 * spec.id_dtype.itemsize)


def features(spec: AllocSpec) -> frozenset[str]:
    """Return the features a spec asks for: none."""
    return frozenset()


def faults(
    spec: AllocSpec, tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: the lanes that would starve, the virtual pages that are bound by hand."""
    found = stacks.find(tables, ids.shape[0])
    refused = ~bindable(found.virtual, found.physical, tables.v2p, tables.p2v)
    return {
        "starved": range(found.virtual.shape[0], ids.shape[0]),
        "bad_bind": plain(found.virtual[refused]),
    }


def compose(spec: AllocSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Take pages off the stacks with torch, and bind them with the core operation."""
    bind = planners["bind"](
        BindSpec(max_items=spec.max_items, index_dtype=spec.index_dtype, id_dtype=spec.index_dtype), device, options
    )

    def run(tables: PageTables, *, ids: torch.Tensor, pages: torch.Tensor) -> None:
        taken = stacks.take(tables, ids.shape[0], bind)
        ids.copy_(taken.virtual)
        pages.copy_(taken.physical)
        if options.count:
            tables.state[STARVED] += ids.shape[0] - taken.found
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
