"""extend: give each lane pages for its new tokens, bind them, write the request table and emit the write slots.

    lane b, row r = req_rows[b], prefix m = prefix_lens[b], new tokens n = indptr[b + 1] - indptr[b]

    tokens   0 ............ m - 1 | m ............... m + n - 1
    pages    [ held by the row    |  ][ new ][ new ][ new  ]      new pages: ceil((m + n) / ps) - ceil(m / ps)
                                    ^ the first tokens may fit the row's last page

New pages are taken as alloc takes them, lane after lane and page after page: the g-th new page of the call is what lane
g of an alloc would get. `slots[indptr[b] + j]` is the token entry of token m + j of lane b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_length,
    need_rows,
    need_separate_rows,
    need_tensor,
)
from pagebind.ops import next_tokens, stacks
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.ids import scale_of
from pagebind.ops.next_tokens import ExtendLanes, extend_lanes
from pagebind.ops.ragged import begins, cell, expand, flat, quotient
from pagebind.words import HOLE, SINK, Form, PageTables


@dataclass(frozen=True, kw_only=True)
class ExtendSpec:
    """What an extension's plan decides: at most `max_bs` lanes and `max_tokens` new tokens a call.

    `num_virtual` and `num_physical` count the sink; with form token, every virtual token id must fit int32. `emits`
    plans for calls that also write what they took: token_ids, new_ids and new_pages.
    """

    max_bs: int
    max_tokens: int
    page_size: int
    num_virtual: int
    num_physical: int
    form: Form = "token"
    multiplier: int = 1
    emits: bool = False
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of prefix_lens
    indptr_dtype: torch.dtype = torch.int32
    out_dtype: torch.dtype = torch.int32  # of slots
    id_dtype: torch.dtype = torch.int32  # of token_ids, new_ids and new_pages

    def __post_init__(self) -> None:
        next_tokens.need_new_pages_fit(self)


class Extend(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; rows apart; written
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        prefix_lens: torch.Tensor,  # [bs], length_dtype; tokens the row holds already
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype; tokens; where each lane's slots begin
        tables: PageTables,  # written
        *,
        slots: torch.Tensor,  # [capacity], out_dtype; token entries; written
        pages: int | None = None,  # the host's count of new pages; None where it has none
        token_ids: torch.Tensor | None = None,  # [capacity], id_dtype; virtual token ids; written where the plan emits
        new_ids: torch.Tensor | None = None,  # [m], id_dtype; virtual pages taken; the same
        new_pages: torch.Tensor | None = None,  # [m], id_dtype; physical pages taken; the same
    ) -> None:
        """Extend every lane's row.

        `lo, hi = indptr[b], indptr[b + 1]`, both clamped to `[0, capacity]`; n = max(hi - lo, 0). Every cell of
        `slots[lo:hi]` is written: 0 past the tokens that the row has room for and for a bad row. A request-table cell
        gets the new token's id (form token), or, where a new page begins, the page's id (form page). Tokens that fall
        into the row's last page take the page that the request table names for token m - 1; where that cell is a
        hole, negative, or past the table they get slot 0, and with form token a hole is written (-1). A tombstone
        there gives slot 0 and leaves the virtual id standing. A page that is not found is the sink: its tokens get the
        ids and slots of page 0.

        A plan that emits writes the virtual token id behind every cell of `slots[lo:hi]` to the same cell of
        `token_ids`, -1 where the token has none (no room, a bad row, a hole or an id past the table); and the g-th new
        page of the call to `new_ids[g]` and `new_pages[g]`: 0 in both where it was not found or not bound, -1 from the
        number of new pages on; what does not fit m is not told.

        Counted in `tables.state`: `bad_row` lanes whose row is outside the request table (empty, nothing else
        counted); `clipped` lanes of the others whose prefix was negative or past the row, whose indptr was
        clamped or goes back, or whose new tokens reach past the row; `bad_id` lanes whose last page's id, when new
        tokens need it, is past the table; `starved` and `bad_bind` pages as in alloc; `count_mismatch`, once, where
        `pages` is not the number of new pages the lanes ask for. Where a row stands in two lanes, cells both write hold
        what one of them wrote. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: ExtendSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    indptr: torch.Tensor,
    tables: PageTables,
    *,
    slots: torch.Tensor,
    pages: int | None = None,
    token_ids: torch.Tensor | None = None,
    new_ids: torch.Tensor | None = None,
    new_pages: torch.Tensor | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_separate_rows("request_table", request_table)
    need_tensor("prefix_lens", prefix_lens, spec.length_dtype, 1, device)
    need_length("prefix_lens", prefix_lens, bs, "req_rows")
    need_tensor("indptr", indptr, spec.indptr_dtype, 1, device)
    if indptr.shape[0] != bs + 1:
        raise InvalidArgument(f"indptr has {indptr.shape[0]} element(s); a batch of {bs} needs {bs + 1}")
    next_tokens.need_takable(spec, device, tables, pages)
    need_tensor("slots", slots, spec.out_dtype, 1, device)
    need_at_most("the capacity of slots", slots.shape[0], spec.max_tokens, "max_tokens")
    next_tokens.need_emitted(spec, device, slots.shape[0], "slots", token_ids, new_ids, new_pages)
    need_memory_of_its_own(
        "request_table slots token_ids new_ids new_pages",
        (request_table, slots, token_ids, new_ids, new_pages),
        "req_rows prefix_lens indptr",
        (req_rows, prefix_lens, indptr),
    )
    return bs > 0


def bytes_moved(spec: ExtendSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to extend `lanes` rows by `items` tokens: slots, ids, the tables' rows of new pages."""
    new_pages = -(-items // spec.page_size)
    ids = items if spec.form == "token" else new_pages
    per_lane = spec.row_dtype.itemsize + spec.length_dtype.itemsize + spec.indptr_dtype.itemsize
    emitted = (items + 2 * new_pages) * spec.id_dtype.itemsize if spec.emits else 0
    taken = new_pages * 4 * spec.index_dtype.itemsize
    return items * spec.out_dtype.itemsize + ids * 4 + taken + emitted + lanes * per_lane


def features(spec: ExtendSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({f"form={spec.form}", *(["emits"] if spec.emits else [])})


def faults(
    spec: ExtendSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    indptr: torch.Tensor,
    tables: PageTables,
    *,
    slots: torch.Tensor,
    pages: int | None = None,
    token_ids: torch.Tensor | None = None,
    new_ids: torch.Tensor | None = None,
    new_pages: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, the new pages by their number in the call, virtual pages."""
    lanes = extend_lanes(spec, request_table, req_rows, prefix_lens, indptr, slots)
    return next_tokens.faults_of(tables, lanes, int(lanes.new_pages.sum()), pages)


def _pages_touched(
    lanes: ExtendLanes, last: torch.Tensor, last_page: torch.Tensor, taken: stacks.Taken
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # Every page new tokens lie in, lane after lane: the last one held, where they go on with it, then the new ones.
    touched = lanes.new_pages + lanes.goes_on
    first = begins(touched)
    went_on = first[lanes.goes_on]
    fresh = torch.ones(int(touched.sum()), dtype=torch.bool, device=first.device)
    fresh[went_on] = False
    virtual, physical = torch.empty_like(fresh, dtype=torch.int64), torch.empty_like(fresh, dtype=torch.int64)
    virtual[went_on], physical[went_on] = last[lanes.goes_on], last_page[lanes.goes_on]
    if taken.virtual.shape[0]:
        virtual[fresh], physical[fresh] = taken.virtual.long(), taken.physical.long()
    return first, virtual, physical


def compose(spec: ExtendSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Take pages off the stacks and write rows and slots with torch; bind with the core operation."""
    ps = spec.page_size
    scale = scale_of(spec.num_physical, spec.multiplier, ps)
    bind = next_tokens.plan_bind(spec, device, planners, options)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        prefix_lens: torch.Tensor,
        indptr: torch.Tensor,
        tables: PageTables,
        *,
        slots: torch.Tensor,
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,
        new_ids: torch.Tensor | None = None,
        new_pages: torch.Tensor | None = None,
    ) -> None:
        lanes = extend_lanes(spec, request_table, req_rows, prefix_lens, indptr, slots)
        asked = int(lanes.new_pages.sum())
        last, last_page, taken = next_tokens.take(tables, lanes, asked, pages, bind, options.count)

        first, virtual, physical = _pages_touched(lanes, last, last_page, taken)
        lane, step = expand(lanes.tokens)
        token = lanes.prefix.index_select(0, lane).add_(step)
        page = quotient(token, ps)
        offset = token - page * ps
        page += (first - quotient(lanes.prefix, ps)).index_select(0, lane)
        entry = (physical * scale).index_select(0, page).add_(offset)
        entry.masked_fill_((physical < 0).index_select(0, page), SINK)

        ids = (virtual * ps).index_select(0, page).add_(offset)
        ids.masked_fill_((virtual < 0).index_select(0, page), HOLE)
        at = lanes.begin.index_select(0, lane).add_(step)
        for out, values, otherwise in ((slots, entry, SINK), (token_ids, ids, HOLE)):
            if out is None:
                continue
            if lanes.clipped.any() or lanes.bad_row.any():
                unwritten, rest = expand(lanes.slots - lanes.tokens)
                out[(lanes.begin + lanes.tokens).index_select(0, unwritten).add_(rest)] = otherwise
            out.scatter_(0, at, values.to(out.dtype))
        next_tokens.emit(taken, new_ids, new_pages)
        if spec.form == "token":
            at = cell(request_table, lanes.row, lanes.prefix).index_select(0, lane).add_(step)
            flat(request_table).scatter_(0, at, ids.to(request_table.dtype))
        else:
            lane, step = expand(lanes.new_pages)
            at = cell(request_table, lanes.row, lanes.held).index_select(0, lane).add_(step)
            flat(request_table).scatter_(0, at, taken.virtual.to(request_table.dtype))

    return Composed("extend", device, run, bind)


EXTEND: Operation[ExtendSpec, Extend] = Operation(
    name="extend",
    level="extended",
    spec=ExtendSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
