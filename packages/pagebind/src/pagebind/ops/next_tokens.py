"""Rows' next tokens: how extend and advance judge lanes, and take, count and emit the pages that these ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Planner,
    need_at_most,
    need_count,
    need_entries_fit,
    need_length,
    need_tables,
    need_tensor,
    plain,
)
from pagebind.ops import stacks
from pagebind.ops.bind import BindSpec, bindable
from pagebind.ops.fields import need_fields
from pagebind.ops.ids import past_table
from pagebind.ops.lanes import add, clip, pages_before, parts_of, rows_of, where
from pagebind.ops.ragged import gather, quotient
from pagebind.ops.read_table import table_tokens
from pagebind.words import COUNT_MISMATCH, HOLE, SINK, STARVED, TOMBSTONE, PageTables

if TYPE_CHECKING:
    from pagebind.ops.advance import AdvanceSpec
    from pagebind.ops.extend import ExtendSpec

Spec: TypeAlias = "AdvanceSpec | ExtendSpec"


class ExtendLanes(NamedTuple):
    """What each lane of an extend asks for, and what fits its row."""

    row: torch.Tensor  # [bs], int64
    prefix: torch.Tensor  # [bs], int64; tokens
    begin: torch.Tensor  # [bs], int64; where the lane's slots begin
    slots: torch.Tensor  # [bs], int64; slots to write
    tokens: torch.Tensor  # [bs], int64; slots of them that are tokens with room in the row; 0 for a bad row
    held: torch.Tensor  # [bs], int64; pages that hold the prefix
    new_pages: torch.Tensor  # [bs], int64
    goes_on: torch.Tensor  # [bs], bool; whether the first new token lies in the last page held
    last: torch.Tensor  # [bs], int64; that page's id as the row names it, -1 for a hole or where none goes on
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


class AdvanceLanes(NamedTuple):
    """What each lane of an advance asks for."""

    row: torch.Tensor  # [bs], int64
    token: torch.Tensor  # [bs], int64
    page: torch.Tensor  # [bs], int64; the token's page in its row
    offset: torch.Tensor  # [bs], int64; the token's place in that page
    fits: torch.Tensor  # [bs], bool; whether the row is good and has room
    takes: torch.Tensor  # [bs], bool; whether the token begins a page
    last: torch.Tensor  # [bs], int64; id of the page it goes on in as the row names it; -1 for a hole or without one
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


Lanes = ExtendLanes | AdvanceLanes


def extend_lanes(
    spec: ExtendSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    indptr: torch.Tensor,
    slots: torch.Tensor,
) -> ExtendLanes:
    """Judge the lanes of an extend. Waits."""
    most = table_tokens(spec.form, spec.page_size, request_table)
    row, bad = rows_of(request_table, req_rows)
    prefix, cut = clip(prefix_lens, most)
    begin, length, moved = parts_of(indptr, slots.shape[0])
    fits = torch.minimum(length, most - prefix)
    clipped = (cut | moved | (fits < length)).masked_fill_(bad, False)
    fits = fits.masked_fill(bad, 0)
    held = pages_before(prefix, spec.page_size)
    goes_on = (fits > 0) & (held * spec.page_size > prefix)
    last = _last_ids(spec, request_table, row, prefix, goes_on)
    new_pages = pages_before(prefix + fits, spec.page_size) - held
    return ExtendLanes(row, prefix, begin, length, fits, held, new_pages, goes_on, last, bad, clipped)


def advance_lanes(
    spec: AdvanceSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    table: torch.Tensor | None,
) -> AdvanceLanes:
    """Judge the lanes of an advance. Waits."""
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
    last = _last_ids(spec, request_table, row, token, fits ^ takes)
    return AdvanceLanes(row, token, page, offset, fits, takes, last, bad, clipped.masked_fill_(bad, False))


def _last_ids(
    spec: Spec, request_table: torch.Tensor, row: torch.Tensor, tokens: torch.Tensor, goes_on: torch.Tensor
) -> torch.Tensor:
    # The id of the page of each row's last token, where the lane goes on in it; -1 elsewhere and for a hole.
    last = torch.full_like(row, HOLE)
    lane = goes_on.nonzero().flatten()
    if lane.shape[0]:
        unit = 1 if spec.form == "token" else spec.page_size
        column = quotient(tokens.index_select(0, lane) - 1, unit)
        named = gather(request_table, row.index_select(0, lane), column).long()
        last[lane] = quotient(named, spec.page_size // unit).clamp(min=HOLE)
    return last


def need_new_pages_fit(spec: Spec) -> None:
    """Refuse a spec with fields out of bounds, or whose ids and entries do not fit what they are written to."""
    need_fields(spec)
    need_entries_fit(spec.num_physical, spec.multiplier, spec.page_size, "token", "out_dtype", spec.out_dtype)
    largest = spec.num_virtual * spec.page_size - 1 if spec.form == "token" else spec.num_virtual - 1
    if largest > INT32_MAX:
        raise InvalidArgument(
            f"the largest virtual {spec.form} id is {largest} (num_virtual {spec.num_virtual}, page_size "
            f"{spec.page_size}), more than an int32 request table holds ({INT32_MAX}); plan form='page', or fewer ids"
        )
    ids, pages = spec.num_virtual * spec.page_size - 1, spec.num_physical - 1
    if spec.emits and spec.id_dtype is torch.int32 and max(ids, pages) > INT32_MAX:
        raise InvalidArgument(
            f"the largest virtual token id is {ids} (num_virtual {spec.num_virtual}, page_size {spec.page_size}), the "
            f"largest page {pages}; {spec.id_dtype} holds {INT32_MAX} at most: plan id_dtype=torch.int64"
        )


def need_takable(spec: Spec, device: torch.device, tables: PageTables, pages: int | None) -> None:
    """Refuse tables that a call cannot take pages from, or a bad count of them."""
    need_tables(tables, spec.index_dtype, device)
    need_at_most("num_virtual", tables.v2p.shape[0] - 1, spec.num_virtual, "num_virtual")
    need_at_most("num_physical", tables.p2v.shape[0] - 1, spec.num_physical, "num_physical")
    if pages is not None:
        need_count("pages", pages, 0)


def need_emitted(
    spec: Spec,
    device: torch.device,
    tokens: int,
    of: str,
    token_ids: torch.Tensor | None,
    new_ids: torch.Tensor | None,
    new_pages: torch.Tensor | None,
) -> None:
    """Refuse outputs that the plan does not emit, or not all of those that it does; `of` has `tokens` cells."""
    for name, value in (("token_ids", token_ids), ("new_ids", new_ids), ("new_pages", new_pages)):
        if (value is not None) != spec.emits:
            raise InvalidArgument(f"{name} is {'given' if value is not None else 'None'}, emits={spec.emits}")
        if value is not None:
            need_tensor(name, value, spec.id_dtype, 1, device)
    if token_ids is not None and new_ids is not None and new_pages is not None:
        need_length("token_ids", token_ids, tokens, of)
        need_length("new_pages", new_pages, new_ids.shape[0], "new_ids")


def plan_bind(spec: Spec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Plan the binding of the pages that a call takes."""
    return planners["bind"](
        BindSpec(max_items=spec.num_virtual, index_dtype=spec.index_dtype, id_dtype=spec.index_dtype), device, options
    )


def faults_of(tables: PageTables, lanes: Lanes, asked: int, pages: int | None) -> Mapping[str, Sequence[int]]:
    """Return what a call whose lanes ask for that many pages would count."""
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


def take(
    tables: PageTables, lanes: Lanes, asked: int, pages: int | None, bind: Launch, count: bool
) -> tuple[torch.Tensor, torch.Tensor, stacks.Taken]:
    """Take and bind the pages that lanes ask for, and count.

    Returns what was taken, behind each lane's last page as it was before: its id, -1 for a hole or one past the table,
    and its physical page, int64 `[bs]` both.
    """
    past = lanes.last >= tables.v2p.shape[0] - 1
    last = lanes.last.masked_fill(past, HOLE)
    last_page = tables.v2p.index_select(0, last.clamp(min=SINK)).long().masked_fill_(last < 0, TOMBSTONE)
    taken = stacks.take(tables, asked, bind)
    if count:
        add(tables.state, clipped=lanes.clipped, bad_row=lanes.bad_row, bad_id=past, bad_bind=taken.refused)
        tables.state[STARVED] += asked - taken.found
        tables.state[COUNT_MISMATCH] += int(pages is not None and pages != asked)
    return last, last_page, taken


def emit(taken: stacks.Taken, new_ids: torch.Tensor | None, new_pages: torch.Tensor | None) -> None:
    """Write the pages that a call took to what it was given for them."""
    n = taken.virtual.shape[0]
    for out, values in ((new_ids, taken.virtual), (new_pages, taken.physical)):
        if out is not None:
            out[:n] = values[: out.shape[0]]
            out[n:] = HOLE
