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
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_choice,
    need_length,
    need_rows,
    need_tensor,
)
from pagebind.ops import cuts
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.lanes import EvictLanes, evict_lanes
from pagebind.ops.read_table import table_tokens
from pagebind.words import Form, PageTables

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
        need_fields(self)


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
    cuts.need_cuts(spec, device, bs, tables, freed, pages, starts=starts, lens=lens)
    need_tensor("first", first, torch.int32, 1, device)
    need_length("first", first, request_table.shape[0], "request_table")
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
    return cuts.faults_of(spec, request_table, tables, lanes, pages)


def compose(spec: EvictSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Unbind with the core operation; push what it released and move first pages with torch."""
    unbind = cuts.plan_unbind(spec, device, planners, options)

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
        cuts.give_back(spec, request_table, tables, lanes, unbind, options.count, freed, pages)
        good = ~lanes.bad_row
        first[lanes.row[good]] = lanes.moved[good].to(first.dtype)

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
