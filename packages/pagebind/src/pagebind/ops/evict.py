"""evict: give back pages of rows in a sub-pool that borrows the rows' ids, as a window does; the ids live on.

    lane b, row r, with first = first[r] the first page that the row still may hold here, and kept = ceil(starts / ps)

    head    pages  [ kept | evicted before | freed | freed | stays ... ]    freed: [max(first, kept), lens // ps)
    tail    pages  [ kept | .............. | freed | freed | freed     ]    freed: [max(first, kept), ceil(lens / ps))
    row     as tail, and the row is empty

    first[r] becomes   head: max(first, lens // ps)    tail: min(first, kept)    row: 0

`head` follows a window: `lens` are the tokens before it. `tail` goes with a truncate to `starts` tokens, and `row` with
a release whose first `starts` tokens are shared; both come before them, while the request table still names the pages.
Only pages that hold none of the tokens that stay are freed. The request table and the owner's tables stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_choice,
    need_count,
    need_index_dtypes,
    need_length,
    need_rows,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.free import held
from pagebind.ops.ids import read_ids
from pagebind.ops.lanes import EvictLanes, add, evict_lanes, where
from pagebind.ops.ragged import expand
from pagebind.ops.read_table import table_tokens
from pagebind.ops.unbind import UnbindSpec, unbindable
from pagebind.words import COUNT_MISMATCH, TOMBSTONE, Form, PageTables

Part = Literal["head", "tail", "row"]
"""Which pages of a row are given back."""

PARTS: tuple[Part, ...] = ("head", "tail", "row")


@dataclass(frozen=True, kw_only=True)
class EvictSpec:
    """What an eviction's plan decides: `part`, at most `max_bs` lanes and `max_pages` freed pages a call."""

    part: Part
    max_bs: int
    max_pages: int
    page_size: int
    form: Form = "token"
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of starts and lens
    id_dtype: torch.dtype = torch.int32  # of freed

    def __post_init__(self) -> None:
        need_choice("part", self.part, PARTS)
        need_count("max_bs", self.max_bs, 0, INT32_MAX)
        need_count("max_pages", self.max_pages, 0, INT32_MAX)
        need_count("page_size", self.page_size, 1, INT32_MAX)
        need_choice("form", self.form, ("token", "page"))
        need_index_dtypes(
            index_dtype=self.index_dtype,
            row_dtype=self.row_dtype,
            length_dtype=self.length_dtype,
            id_dtype=self.id_dtype,
        )


class Evict(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; virtual ids
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        starts: torch.Tensor,  # [bs], length_dtype; tokens whose pages are kept whatever else
        lens: torch.Tensor,  # [bs], length_dtype; tokens
        tables: PageTables,  # of the sub-pool that borrows; written
        *,
        first: torch.Tensor,  # [max_requests], int32; pages; written
        freed: torch.Tensor,  # [capacity], id_dtype; physical pages in the order of the lanes; written
        pages: int | None = None,  # the host's count of pages that come back; None where it has none
    ) -> None:
        """Give back pages of every lane's row, in lane order and page after page, and move its first page.

        `starts` and `lens` are clipped to the row, `first` to its pages. The c-th page of the call, counted over the
        lanes, goes to `freed[c]`: the physical page, or -1 where the request table has a hole, where the id has no page
        here (its row of v2p is negative: no fault), or for a fault; cells from the count on are -1. Pages past the
        capacity of `freed` stay bound; with `head` the row's first page is then the first of them. Pages that are freed
        become holes in that order; nothing is pushed on the virtual stack. A page's id is that of its first cell.

        Counted in `tables.state`: `bad_row` lanes (nothing else counted for them, and no first page moved); `clipped`
        lanes of the others with a start or length below 0 or past the row, or pages past the capacity; `bad_free` and
        `double_free` as in free of borrowed ids; `count_mismatch`, once, where `pages` is not the number of pages that
        came back. The epoch stays. Where a row stands in two lanes, which of them is served is not specified. Raises
        InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: EvictSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    tables: PageTables,
    *,
    first: torch.Tensor,
    freed: torch.Tensor,
    pages: int | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    for name, tokens in (("starts", starts), ("lens", lens)):
        need_tensor(name, tokens, spec.length_dtype, 1, device)
        need_length(name, tokens, bs, "req_rows")
    need_tables(tables, spec.index_dtype, device)
    need_tensor("first", first, torch.int32, 1, device)
    need_length("first", first, request_table.shape[0], "request_table")
    need_tensor("freed", freed, spec.id_dtype, 1, device)
    need_at_most("the capacity of freed", freed.shape[0], spec.max_pages, "max_pages")
    if pages is not None:
        need_count("pages", pages, 0)
    need_memory_of_its_own(
        "first freed",
        (first, freed),
        "request_table req_rows starts lens",
        (request_table, req_rows, starts, lens),
    )
    return bs > 0


def bytes_moved(spec: EvictSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to free `items` pages of `lanes` rows: as a free of borrowed ids, and each lane's words."""
    per_lane = spec.row_dtype.itemsize + 2 * spec.length_dtype.itemsize + 2 * 4
    return items * (4 + spec.id_dtype.itemsize + 4 * spec.index_dtype.itemsize) + lanes * per_lane


def features(spec: EvictSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({f"form={spec.form}"})


def _lanes_of(
    spec: EvictSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    first: torch.Tensor,
    freed: torch.Tensor,
) -> EvictLanes:
    return evict_lanes(
        request_table,
        req_rows,
        starts,
        lens,
        first,
        part=spec.part,
        page_size=spec.page_size,
        tokens=table_tokens(spec.form, spec.page_size, request_table),
        capacity=freed.shape[0],
    )


def _ids_to_free(spec: EvictSpec, request_table: torch.Tensor, lanes: EvictLanes, tables: PageTables) -> torch.Tensor:
    lane, step = expand(lanes.fits)
    row, page = lanes.row.index_select(0, lane), lanes.first.index_select(0, lane).add_(step)
    ids = read_ids(spec.form, "page", spec.page_size, request_table, row, page).to(spec.id_dtype)
    return held(ids, tables)


def faults(
    spec: EvictSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    tables: PageTables,
    *,
    first: torch.Tensor,
    freed: torch.Tensor,
    pages: int | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, virtual pages; for a mismatch, the pages that would come back."""
    lanes = _lanes_of(spec, request_table, req_rows, starts, lens, first, freed)
    ids = _ids_to_free(spec, request_table, lanes, tables)
    _, served, double_free, bad_free = unbindable(ids, tables.v2p, tables.p2v)
    count = int(served.count_nonzero())
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "double_free": plain(ids[double_free]),
        "bad_free": plain(ids[bad_free]),
        "count_mismatch": [count] if pages is not None and pages != count else [],
    }


def compose(spec: EvictSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Unbind with the core operation; push what it released and move first pages with torch."""
    unbind = planners["unbind"](
        UnbindSpec(max_items=spec.max_pages, index_dtype=spec.index_dtype, id_dtype=spec.id_dtype), device, options
    )

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        starts: torch.Tensor,
        lens: torch.Tensor,
        tables: PageTables,
        *,
        first: torch.Tensor,
        freed: torch.Tensor,
        pages: int | None = None,
    ) -> None:
        lanes = _lanes_of(spec, request_table, req_rows, starts, lens, first, freed)
        ids = _ids_to_free(spec, request_table, lanes, tables)
        n = served = ids.shape[0]
        if n:
            unbind(ids, tables.v2p, tables.p2v, freed=freed[:n], state=tables.state if options.count else None)
            served = stacks.push(tables, ids, freed[:n], borrowed=True)
        freed[n:] = TOMBSTONE
        good = ~lanes.bad_row
        first[lanes.row[good]] = lanes.moved[good].to(first.dtype)
        if options.count:
            add(tables.state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            if pages is not None:
                tables.state[COUNT_MISMATCH] += int(pages != served)

    return Composed("evict", device, run, unbind)


EVICT: Operation[EvictSpec, Evict] = Operation(
    name="evict",
    level="extended",
    spec=EvictSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
