"""Pages that rows give back: how truncate, release and evict find, count and free those that their lanes name.

Truncate and release own the ids of their rows; an evict borrows them, and an id without a page is no fault in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from pagebind.operation import (
    Launch,
    LaunchOptions,
    Planner,
    need_at_most,
    need_count,
    need_length,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.free import held
from pagebind.ops.ids import read_ids
from pagebind.ops.lanes import CutLanes, EvictLanes, add, where
from pagebind.ops.ragged import expand
from pagebind.ops.unbind import UnbindSpec, unbindable
from pagebind.words import COUNT_MISMATCH, TOMBSTONE, PageTables

if TYPE_CHECKING:
    from pagebind.ops.evict import EvictSpec
    from pagebind.ops.truncate import TruncateSpec

Spec: TypeAlias = "TruncateSpec | EvictSpec"


def need_cuts(
    spec: Spec,
    device: torch.device,
    bs: int,
    tables: PageTables,
    freed: torch.Tensor,
    pages: int | None,
    **lens: torch.Tensor,
) -> None:
    """Refuse lengths that are not the plan's kind or not one a lane, and what a call cannot free pages of or write."""
    for name, tokens in lens.items():
        need_tensor(name, tokens, spec.length_dtype, 1, device)
        need_length(name, tokens, bs, "req_rows")
    need_tables(tables, spec.index_dtype, device)
    need_tensor("freed", freed, spec.id_dtype, 1, device)
    need_at_most("the capacity of freed", freed.shape[0], spec.max_pages, "max_pages")
    if pages is not None:
        need_count("pages", pages, 0)


def plan_unbind(spec: Spec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Plan the unbinding of the pages that a call frees."""
    return planners["unbind"](
        UnbindSpec(max_items=spec.max_pages, index_dtype=spec.index_dtype, id_dtype=spec.id_dtype), device, options
    )


def _ids_to_free(
    spec: Spec, request_table: torch.Tensor, tables: PageTables, lanes: CutLanes | EvictLanes
) -> torch.Tensor:
    # The virtual pages to free, id_dtype `[sum(fits)]`, holes negative, lane after lane.
    lane, step = expand(lanes.fits)
    row, page = lanes.row.index_select(0, lane), lanes.first.index_select(0, lane).add_(step)
    ids = read_ids(spec.form, "page", spec.page_size, request_table, row, page).to(spec.id_dtype)
    return held(ids, tables) if isinstance(lanes, EvictLanes) else ids


def faults_of(
    spec: Spec, request_table: torch.Tensor, tables: PageTables, lanes: CutLanes | EvictLanes, pages: int | None
) -> Mapping[str, Sequence[int]]:
    """Return what a call with these lanes would count."""
    ids = _ids_to_free(spec, request_table, tables, lanes)
    _, served, double_free, bad_free = unbindable(ids, tables.v2p, tables.p2v)
    count = int(served.count_nonzero() if isinstance(lanes, EvictLanes) else lanes.pages.sum())
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "double_free": plain(ids[double_free]),
        "bad_free": plain(ids[bad_free]),
        "count_mismatch": [count] if pages is not None and pages != count else [],
    }


def give_back(
    spec: Spec,
    request_table: torch.Tensor,
    tables: PageTables,
    lanes: CutLanes | EvictLanes,
    unbind: Launch,
    count: bool,
    freed: torch.Tensor,
    pages: int | None,
) -> None:
    """Free the lanes' pages, and count."""
    borrowed = isinstance(lanes, EvictLanes)
    ids = _ids_to_free(spec, request_table, tables, lanes)
    n = served = ids.shape[0]
    if n:
        unbind(ids, tables.v2p, tables.p2v, freed=freed[:n], state=tables.state if count else None)
        served = stacks.push(tables, ids, freed[:n], borrowed=borrowed)
    freed[n:] = TOMBSTONE
    if count:
        add(tables.state, clipped=lanes.clipped, bad_row=lanes.bad_row)
        if pages is not None:
            tables.state[COUNT_MISMATCH] += int(pages != (served if borrowed else int(lanes.pages.sum())))
