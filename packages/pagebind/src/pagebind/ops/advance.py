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
from typing import NamedTuple, Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_choice,
    need_count,
    need_entries_fit,
    need_index_dtypes,
    need_length,
    need_rows,
    need_separate_rows,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.bind import BindSpec, bindable
from pagebind.ops.composed import Composed
from pagebind.ops.extend import need_ids_fit
from pagebind.ops.ids import past_table, scale_of
from pagebind.ops.lanes import add, clip, rows_of, where
from pagebind.ops.ragged import cell, flat, gather, quotient
from pagebind.ops.read_table import table_tokens
from pagebind.words import COUNT_MISMATCH, HOLE, SINK, STARVED, TOMBSTONE, Form, PageTables


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
        need_count("max_bs", self.max_bs, 0, INT32_MAX)
        need_count("page_size", self.page_size, 1, INT32_MAX)
        need_count("num_virtual", self.num_virtual, 1)
        need_count("num_physical", self.num_physical, 1)
        need_count("multiplier", self.multiplier, 1)
        need_choice("form", self.form, ("token", "page"))
        need_choice("granularity", self.granularity, ("token", "page"))
        need_index_dtypes(
            index_dtype=self.index_dtype,
            row_dtype=self.row_dtype,
            length_dtype=self.length_dtype,
            out_dtype=self.out_dtype,
            table_dtype=self.table_dtype,
            id_dtype=self.id_dtype,
        )
        need_entries_fit(self.num_physical, self.multiplier, self.page_size, "token", self.out_dtype)
        need_ids_fit(self.form, self.num_virtual, self.page_size)
        if self.appends:
            need_entries_fit(self.num_physical, self.multiplier, self.page_size, self.granularity, self.table_dtype)
        if self.emits:
            need_entries_fit(self.num_virtual, 1, self.page_size, "token", self.id_dtype)
            need_entries_fit(self.num_physical, 1, 1, "page", self.id_dtype)


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
    need_tables(tables, spec.index_dtype, device)
    need_at_most("num_virtual", tables.v2p.shape[0] - 1, spec.num_virtual, "num_virtual")
    need_at_most("num_physical", tables.p2v.shape[0] - 1, spec.num_physical, "num_physical")
    need_tensor("slots", slots, spec.out_dtype, 1, device)
    need_length("slots", slots, bs, "req_rows")
    if (table is not None) != spec.appends:
        raise InvalidArgument(f"table is {'given' if table is not None else 'None'}, appends={spec.appends}")
    if table is not None:
        need_tensor("table", table, spec.table_dtype, 2, device)
        if table.shape[0] < bs:
            raise InvalidArgument(f"table has {table.shape[0]} rows for a batch of {bs}; it needs at least one a lane")
        need_separate_rows("table", table)
    if pages is not None:
        need_count("pages", pages, 0)
    _need_emitted(spec, device, bs, slots, token_ids, new_ids, new_pages)
    need_memory_of_its_own(
        "request_table seq_lens slots table token_ids new_ids new_pages",
        (request_table, seq_lens, slots, table, token_ids, new_ids, new_pages),
        "req_rows",
        (req_rows,),
    )
    return bs > 0


def _need_emitted(
    spec: AdvanceSpec,
    device: torch.device,
    bs: int,
    slots: torch.Tensor,
    token_ids: torch.Tensor | None,
    new_ids: torch.Tensor | None,
    new_pages: torch.Tensor | None,
) -> None:
    for name, value in (("token_ids", token_ids), ("new_ids", new_ids), ("new_pages", new_pages)):
        if (value is not None) != spec.emits:
            raise InvalidArgument(f"{name} is {'given' if value is not None else 'None'}, emits={spec.emits}")
        if value is not None:
            need_tensor(name, value, spec.id_dtype, 1, device)
    if token_ids is not None and new_ids is not None and new_pages is not None:
        need_length("token_ids", token_ids, bs, "req_rows")
        need_length("new_pages", new_pages, new_ids.shape[0], "new_ids")


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


class _Lanes(NamedTuple):
    """What each lane asks for."""

    row: torch.Tensor  # [bs], int64
    token: torch.Tensor  # [bs], int64
    page: torch.Tensor  # [bs], int64; the token's page in its row
    offset: torch.Tensor  # [bs], int64; the token's place in that page
    fits: torch.Tensor  # [bs], bool; whether the row is good and has room
    takes: torch.Tensor  # [bs], bool; whether the token begins a page
    last: torch.Tensor  # [bs], int64; id of the page it goes on in as the row names it; -1 for a hole or without one
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


def _lanes_of(
    spec: AdvanceSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    table: torch.Tensor | None,
) -> _Lanes:
    row, bad = rows_of(request_table, req_rows)
    room = min(table_tokens(spec.form, spec.page_size, request_table), torch.iinfo(spec.length_dtype).max)
    token, cut = clip(seq_lens, room)
    page = quotient(token, spec.page_size)
    offset = token - page * spec.page_size
    full = token == room
    fits = ~(full | bad)
    takes = fits & (offset == 0)
    clipped = cut | full
    if table is not None:
        clipped = clipped | ((page if spec.granularity == "page" else token) >= table.shape[1])
    last = torch.full_like(token, HOLE)
    goes_on = (fits ^ takes).nonzero().flatten()
    if goes_on.shape[0]:
        before = token - 1 if spec.form == "token" else page
        named = gather(request_table, row.index_select(0, goes_on), before.index_select(0, goes_on)).long()
        last[goes_on] = (quotient(named, spec.page_size) if spec.form == "token" else named).clamp_(min=HOLE)
    return _Lanes(row, token, page, offset, fits, takes, last, bad, clipped.masked_fill_(bad, False))


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
    lanes = _lanes_of(spec, request_table, req_rows, seq_lens, table)
    asked = int(lanes.takes.count_nonzero())
    found = stacks.find(tables, asked)
    refused = ~bindable(found.virtual, found.physical, tables.v2p, tables.p2v)
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "bad_id": plain(past_table(lanes.last, 1, tables.v2p)),
        "starved": range(found.virtual.shape[0], asked),
        "bad_bind": plain(found.virtual[refused]),
        "count_mismatch": [asked] if pages is not None and pages != asked else [],
    }


def compose(spec: AdvanceSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Take pages off the stacks and write rows, slots and lengths with torch; bind with the core operation."""
    ps = spec.page_size
    per_page, scale = (scale_of(spec.num_physical, spec.multiplier, unit) for unit in (1, ps))
    bind = planners["bind"](
        BindSpec(max_items=spec.num_virtual, index_dtype=spec.index_dtype, id_dtype=spec.index_dtype), device, options
    )

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
        lanes = _lanes_of(spec, request_table, req_rows, seq_lens, table)
        past = lanes.last >= tables.v2p.shape[0] - 1
        virtual = lanes.last.masked_fill(past, HOLE)
        physical = tables.v2p.index_select(0, virtual.clamp(min=SINK)).long().masked_fill_(virtual < 0, TOMBSTONE)
        takers = lanes.takes.nonzero().flatten()
        asked = takers.shape[0]
        taken = stacks.take(tables, asked, bind)
        virtual[takers], physical[takers] = taken.virtual.long(), taken.physical.long()
        if options.count:
            add(tables.state, clipped=lanes.clipped, bad_row=lanes.bad_row, bad_id=past, bad_bind=taken.refused)
            tables.state[STARVED] += asked - taken.found
            tables.state[COUNT_MISMATCH] += int(pages is not None and pages != asked)

        entry = (physical * scale).add_(lanes.offset).masked_fill_((physical < 0) | ~lanes.fits, SINK)
        slots.copy_(entry)
        ids = (virtual * ps).add_(lanes.offset).masked_fill_((virtual < 0) | ~lanes.fits, HOLE)
        if token_ids is not None:
            token_ids.copy_(ids)
        for told, values in ((new_ids, taken.virtual), (new_pages, taken.physical)):
            if told is not None:
                told[:asked] = values[: told.shape[0]]
                told[asked:] = HOLE
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
