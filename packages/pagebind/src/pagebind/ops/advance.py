"""advance: one decode step of a batch. Every row gets room for its next token, and its length goes up by one.

    lane b, row r = req_rows[b], token n = seq_lens[b]; c = n // ps

    page          the row's last one; where n % ps == 0 a new one, which the lane takes and binds
    request_table row r: the token's id at n (form token), the new page's id at c (form page)
    slots         cell b: the token's entry
    table         row b, where the plan appends: the entry of the token's column
    seq_lens      cell b: n + 1

Pages are taken as extend takes them for one new token a lane: the g-th lane that needs one gets what lane g of an alloc
would get. Positions come from the state block and lengths stay on the device, so that a captured call replays step
after step. In a sub-pool that clears pages as it hands them out a step is extend's: this operation clears nothing.
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
    need_entries_fit,
    need_length,
    need_rows,
    need_separate_rows,
    need_tensor,
)
from pagebind.ops import next_tokens
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.ids import scale_of
from pagebind.ops.next_tokens import advance_lanes
from pagebind.ops.ragged import cell, flat
from pagebind.words import HOLE, SINK, Form, PageTables


@dataclass(frozen=True, kw_only=True)
class AdvanceSpec:
    """What the plan of a decode step decides: at most `max_bs` lanes a call, and what calls write.

    `num_virtual` and `num_physical` count the sink; with form token, every virtual token id must fit int32. `emits`
    plans for calls that also write what they took: token_ids, new_ids and new_pages. `appends` plans for calls with a
    read table of cells of `granularity`, to which the new token's column is appended.
    """

    max_bs: int
    page_size: int
    num_virtual: int
    num_physical: int
    form: Form = "token"
    multiplier: int = 1
    emits: bool = False
    appends: bool = False
    granularity: Form = "page"
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of seq_lens
    out_dtype: torch.dtype = torch.int32  # of slots
    table_dtype: torch.dtype = torch.int32  # of table
    id_dtype: torch.dtype = torch.int32  # of token_ids, new_ids and new_pages

    def __post_init__(self) -> None:
        next_tokens.need_new_pages_fit(self)
        if self.appends:
            need_entries_fit(
                self.num_physical, self.multiplier, self.page_size, self.granularity, "table_dtype", self.table_dtype
            )


class Advance(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; rows apart; written
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens the row holds; written
        tables: PageTables,  # written
        *,
        slots: torch.Tensor,  # [bs], out_dtype; token entries; written
        table: torch.Tensor | None = None,  # [>= bs, width], table_dtype; rows apart; written where the plan appends
        pages: int | None = None,  # the host's count of new pages; None where it has none
        token_ids: torch.Tensor | None = None,  # [bs], id_dtype; virtual token ids; written where the plan emits
        new_ids: torch.Tensor | None = None,  # [m], id_dtype; virtual pages taken; the same
        new_pages: torch.Tensor | None = None,  # [m], id_dtype; physical pages taken; the same
    ) -> None:
        """Give every lane's row its next token.

        A row has room for the tokens that the request table's width gives it, but for no more than the largest value
        of length_dtype. A lane's token is n = max(seq_lens[b], 0). A bad row, and one whose n is not below its room,
        gets none: slot 0, token id -1, and nothing else is written for it, its length neither. All other lanes write:

        - n % page_size == 0: the lane takes a page v at p, and v is written to the request table's cell of page
          n // page_size (form page). A page that is not found, or not bound because its id or page is bound already or
          outside the tables, is the sink: v = p = 0. Such a lane is not served.
        - else: v is the page that the request table names for token n - 1 (form token) or for page n // page_size (form
          page); p = v2p[v] as it is before the call binds anything. Where that cell is negative, or past the table,
          the token has no page: token id -1 and slot 0. Where p is negative, a tombstone, slot 0.

        The token's id is v * page_size + n % page_size: written to the request table's cell of token n (form token; -1
        where it has none) and to `token_ids[b]`. Its slot is p * multiplier * page_size + n % page_size.

        `seq_lens[b]` becomes n + 1 but for lanes that are not served: they keep what it was, so that a later step asks
        for the same token again. With `table`, a lane that is served writes, to the row b of it:

        - granularity page: where it took a page, p * multiplier to column n // page_size. Other columns hold that page
          already.
        - granularity token: its slot's value to column n.

        So a table that read_table built for the lengths before is the one it would build for those after, wherever the
        cells of a page in the request table name one page. A column past the table's width is not written.

        A plan that emits writes the g-th new page of the call to `new_ids[g]` and `new_pages[g]`: 0 in both where it
        was not found or not bound, -1 from the number of new pages on; what does not fit m is not told.

        Counted in `tables.state`: `bad_row` lanes whose row is outside the request table (nothing else counted);
        `clipped` lanes of the others, each once, whose length is negative, whose row has no room, or whose column lies
        past the table's width; `bad_id` lanes whose last page's id is past the table; `starved` and `bad_bind` pages
        as in alloc; `count_mismatch`, once, where `pages` is not the number of lanes that take a page. Where a row
        stands in two lanes, cells both write hold what one of them wrote, and a cell that one writes and the other
        reads is read before or after. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: AdvanceSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: PageTables,
    *,
    slots: torch.Tensor,
    table: torch.Tensor | None = None,
    pages: int | None = None,
    token_ids: torch.Tensor | None = None,
    new_ids: torch.Tensor | None = None,
    new_pages: torch.Tensor | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_separate_rows("request_table", request_table)
    need_tensor("seq_lens", seq_lens, spec.length_dtype, 1, device)
    need_length("seq_lens", seq_lens, bs, "req_rows")
    next_tokens.need_takable(spec, device, tables, pages)
    need_tensor("slots", slots, spec.out_dtype, 1, device)
    need_length("slots", slots, bs, "req_rows")
    if (table is not None) != spec.appends:
        raise InvalidArgument(f"table is {'given' if table is not None else 'None'}, appends={spec.appends}")
    if table is not None:
        need_tensor("table", table, spec.table_dtype, 2, device)
        if table.shape[0] < bs:
            raise InvalidArgument(f"table has {table.shape[0]} rows for a batch of {bs}; it needs at least one a lane")
        need_separate_rows("table", table)
    next_tokens.need_emitted(spec, device, bs, "req_rows", token_ids, new_ids, new_pages)
    need_memory_of_its_own(
        "request_table seq_lens slots table token_ids new_ids new_pages",
        (request_table, seq_lens, slots, table, token_ids, new_ids, new_pages),
        "req_rows",
        (req_rows,),
    )
    return bs > 0


def bytes_moved(spec: AdvanceSpec, *, lanes: int, items: int) -> int:
    """Return the bytes of a step of `lanes` rows of which `items` take a page.

    Each lane reads its row and length, and writes length, slot and what the plan adds; one that goes on in its last
    page reads an id and its row of v2p, one that takes a page two stack cells, and writes a row of each table.
    """
    per_lane = spec.row_dtype.itemsize + 2 * spec.length_dtype.itemsize + spec.out_dtype.itemsize
    per_lane += (4 if spec.form == "token" else 0) + (spec.id_dtype.itemsize if spec.emits else 0)
    per_page = 4 * spec.index_dtype.itemsize + (4 if spec.form == "page" else 0)
    per_page += 2 * spec.id_dtype.itemsize if spec.emits else 0
    cells = (lanes if spec.granularity == "token" else items) if spec.appends else 0
    goes_on = (lanes - items) * (4 + spec.index_dtype.itemsize)
    return lanes * per_lane + items * per_page + goes_on + cells * spec.table_dtype.itemsize


def features(spec: AdvanceSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    appends = {"append", f"granularity={spec.granularity}"} if spec.appends else set()
    return frozenset({f"form={spec.form}", *(["emits"] if spec.emits else []), *appends})


def faults(
    spec: AdvanceSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: PageTables,
    *,
    slots: torch.Tensor,
    table: torch.Tensor | None = None,
    pages: int | None = None,
    token_ids: torch.Tensor | None = None,
    new_ids: torch.Tensor | None = None,
    new_pages: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, the new pages by their number in the call, virtual pages."""
    lanes = advance_lanes(spec, request_table, req_rows, seq_lens, table)
    return next_tokens.faults_of(tables, lanes, int(lanes.takes.count_nonzero()), pages)


def compose(spec: AdvanceSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Take pages off the stacks and write rows, slots and lengths with torch; bind with the core operation."""
    ps = spec.page_size
    per_page, scale = (scale_of(spec.num_physical, spec.multiplier, unit) for unit in (1, ps))
    bind = next_tokens.plan_bind(spec, device, planners, options)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        tables: PageTables,
        *,
        slots: torch.Tensor,
        table: torch.Tensor | None = None,
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,
        new_ids: torch.Tensor | None = None,
        new_pages: torch.Tensor | None = None,
    ) -> None:
        lanes = advance_lanes(spec, request_table, req_rows, seq_lens, table)
        takers = lanes.takes.nonzero().flatten()
        virtual, physical, taken = next_tokens.take(tables, lanes, takers.shape[0], pages, bind, options.count)
        virtual[takers], physical[takers] = taken.virtual.long(), taken.physical.long()

        entry = (physical * scale).add_(lanes.offset).masked_fill_((physical < 0) | ~lanes.fits, SINK)
        slots.copy_(entry)
        ids = (virtual * ps).add_(lanes.offset).masked_fill_((virtual < 0) | ~lanes.fits, HOLE)
        if token_ids is not None:
            token_ids.copy_(ids)
        next_tokens.emit(taken, new_ids, new_pages)
        wrote, column, cells = (
            (lanes.fits, lanes.token, ids) if spec.form == "token" else (lanes.takes, lanes.page, virtual)
        )
        at = cell(request_table, lanes.row, column)[wrote]
        flat(request_table).scatter_(0, at, cells[wrote].to(request_table.dtype))

        served = lanes.fits & ~(lanes.takes & (virtual == SINK))
        seq_lens.copy_(torch.where(served, lanes.token + 1, seq_lens.long()))
        if table is not None:
            column, cells, wrote = lanes.token, entry, served
            if spec.granularity == "page":
                column, cells, wrote = lanes.page, physical * per_page, served & lanes.takes
            lane = (wrote & (column < table.shape[1])).nonzero().flatten()
            at = cell(table, lane, column.index_select(0, lane))
            flat(table).scatter_(0, at, cells.index_select(0, lane).to(table.dtype))

    return Composed("advance", device, run, bind)


ADVANCE: Operation[AdvanceSpec, Advance] = Operation(
    name="advance",
    level="extended",
    spec=AdvanceSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
