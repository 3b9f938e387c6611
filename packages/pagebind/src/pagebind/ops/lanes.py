"""What lanes of a batch are before anything is read: their rows, their lengths, the cells they cover, what was cut.

Fault checks, composed forms and the CPU backend judge lanes here, so that they count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagebind.operation import MAX_LENGTH, plain
from pagebind.ops.ragged import begins, quotient
from pagebind.words import COUNTERS, Form


class TableLanes(NamedTuple):
    """The valid extent of each lane of a read table: columns `[first[b], first[b] + cells[b])`."""

    row: torch.Tensor  # [bs], int64
    first: torch.Tensor  # [bs], int64
    cells: torch.Tensor  # [bs], int64; 0 for a bad row
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


class StreamLanes(NamedTuple):
    """The items of each lane of a read stream: columns from `first[b]` on, as many as each output takes."""

    row: torch.Tensor  # [bs], int64
    first: torch.Tensor  # [bs], int64
    begin: torch.Tensor  # [bs], int64; where the lane's part of the stream begins
    streamed: torch.Tensor  # [bs], int64; items written to the stream
    tabled: torch.Tensor  # [bs], int64; items written to the table, 0 without one
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


class CutLanes(NamedTuple):
    """What each lane of a truncate or a release gives back."""

    row: torch.Tensor  # [bs], int64
    first: torch.Tensor  # [bs], int64; the first page to free
    pages: torch.Tensor  # [bs], int64; pages to free
    fits: torch.Tensor  # [bs], int64; pages of them that fit `freed`
    clear: torch.Tensor  # [bs], int64; the first request-table cell to empty
    cells: torch.Tensor  # [bs], int64; cells to empty
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


class EvictLanes(NamedTuple):
    """What each lane of an evict gives back."""

    row: torch.Tensor  # [bs], int64
    first: torch.Tensor  # [bs], int64; the first page to free
    pages: torch.Tensor  # [bs], int64; pages to free
    fits: torch.Tensor  # [bs], int64; pages of them that fit `freed`
    moved: torch.Tensor  # [bs], int64; the row's first page afterwards
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row


def rows_of(request_table: torch.Tensor, req_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each lane's row, int64 `[bs]`, some other one for a bad row, and which are bad, bool `[bs]`."""
    wanted = req_rows.long()
    if request_table.shape[0] == 0:
        return torch.zeros_like(wanted), torch.ones_like(wanted, dtype=torch.bool)
    row = wanted.clamp(0, request_table.shape[0] - 1)
    return row, row != wanted


def clip(lengths: torch.Tensor, most: int, delta: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `lengths + delta` clipped to `[0, most]`, int64, and which were cut, bool."""
    wanted = add_delta(lengths, delta)
    kept = wanted.clamp(0, most)
    return kept, kept != wanted


def add_delta(lengths: torch.Tensor, delta: int) -> torch.Tensor:
    """Return `lengths + delta`, int64, of lengths that no sum overflows."""
    return lengths.long() if delta == 0 else lengths.long().clamp(-MAX_LENGTH, MAX_LENGTH) + delta


def pages_before(tokens: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return how many pages hold that many tokens: `ceil(tokens / page_size)`."""
    return quotient(tokens + (page_size - 1), page_size)


def table_lanes(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    starts: torch.Tensor | None,
    delta: int,
    *,
    most: int,
    unit: int,
) -> TableLanes:
    """Judge the lanes of a read table of at most `most` tokens a row and `unit` tokens a column."""
    row, bad = rows_of(request_table, req_rows)
    length, cut = clip(seq_lens, most, delta)
    cells = pages_before(length, unit).masked_fill(bad, 0)
    lanes = TableLanes(row, torch.zeros_like(row), cells, bad, cut.masked_fill_(bad, False))
    return lanes if starts is None else begun_at(lanes, starts, unit)


def begun_at(lanes: TableLanes, starts: torch.Tensor, unit: int) -> TableLanes:
    """Return lanes from column 0 on without the columns before their starts, which are tokens."""
    first = quotient(starts.long().clamp(0, MAX_LENGTH), unit)
    return lanes._replace(first=first, cells=(lanes.cells - first).clamp_(min=0))


def stream_lanes(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    starts: torch.Tensor | None,
    delta: int,
    indptr: torch.Tensor,
    *,
    tokens: int,
    unit: int,
    capacity: int,
    width: int | None,
) -> StreamLanes:
    """Judge the lanes of a read stream: `tokens` tokens a row, `unit` tokens an item; `width` None without a table."""
    row, bad = rows_of(request_table, req_rows)
    wanted = add_delta(seq_lens, delta)
    start = torch.zeros_like(row) if starts is None else starts.long().clamp(0, MAX_LENGTH)
    length = torch.minimum(wanted.clamp(min=0), (tokens - start).clamp_(min=0))
    clipped = length != wanted
    first = quotient(start, unit)
    items = (pages_before(start + length, unit) - first).masked_fill(bad | (length == 0), 0)
    begin = indptr[:-1].long().clamp(-1, capacity)
    room = (indptr[1:].long().clamp(-1, capacity) - begin).clamp_(min=0).masked_fill_(begin < 0, 0)
    streamed = torch.minimum(items, room)
    clipped |= streamed < items
    tabled = torch.zeros_like(items)
    if width is not None:
        tabled = torch.minimum(items, (width - first).clamp_(min=0))
        clipped |= tabled < items
    return StreamLanes(row, first, begin, streamed, tabled, bad, clipped.masked_fill_(bad, False))


def parts_of(indptr: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where each lane's part begins and how long it is, int64 `[bs]`, and which were cut, bool `[bs]`.

    A part is `indptr[b] : indptr[b + 1]`, clamped to `[0, capacity]`; cut are those clamped or that go back.
    """
    raw = indptr.long()
    bound = raw.clamp(0, capacity)
    moved = bound != raw
    length = bound[1:] - bound[:-1]
    return bound[:-1], length.clamp(min=0), moved[1:] | moved[:-1] | (length < 0)


def cut_lanes(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    keep_lens: torch.Tensor | None,
    *,
    form: Form,
    page_size: int,
    tokens: int,
    capacity: int,
    whole_row: bool,
) -> CutLanes:
    """Judge the lanes of a truncate or, with `whole_row`, a release: `tokens` tokens a row, `capacity` pages."""
    row, bad = rows_of(request_table, req_rows)
    length, clipped = clip(seq_lens, tokens)
    length = length.masked_fill(bad, 0)
    keep = torch.zeros_like(length)
    if keep_lens is not None:
        keep, moved = clip(keep_lens, tokens)
        clipped = clipped | moved
    first = pages_before(keep, page_size)
    pages = (pages_before(length, page_size) - first).clamp_(min=0)
    fits = torch.minimum(pages, (capacity - begins(pages)).clamp_(min=0))
    # Without room for all of its pages, a lane's row ends behind those that had room.
    end = torch.minimum(length, (first + fits) * page_size)
    clear = torch.zeros_like(keep) if whole_row else keep
    if form == "page":
        end, clear = pages_before(end, page_size), pages_before(clear, page_size)
    cells = (end - clear).clamp_(min=0)
    return CutLanes(row, first, pages, fits, clear, cells, bad, (clipped | (fits < pages)).masked_fill_(bad, False))


def evict_lanes(
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    first: torch.Tensor,
    *,
    part: str,
    page_size: int,
    tokens: int,
    capacity: int,
) -> EvictLanes:
    """Judge the lanes of an evict: `tokens` tokens a row, `capacity` pages; `part` as in EvictSpec."""
    row, bad = rows_of(request_table, req_rows)
    start, cut = clip(starts, tokens)
    length, moved = clip(lens, tokens)
    kept = pages_before(start, page_size)
    begun = torch.zeros_like(row) if first.shape[0] == 0 else first.index_select(0, row).long()
    begun = begun.clamp(0, -(-tokens // page_size))
    begin = torch.maximum(begun, kept)
    end = quotient(length, page_size) if part == "head" else pages_before(length, page_size)
    pages = (end - begin).clamp(min=0).masked_fill(bad, 0)
    fits = torch.minimum(pages, (capacity - begins(pages)).clamp_(min=0))
    left = {
        "head": torch.where(pages > 0, begin + fits, torch.maximum(begun, end)),
        "tail": torch.minimum(begun, kept),
        "row": torch.zeros_like(begun),
    }[part]
    clipped = (cut | moved | (fits < pages)).masked_fill_(bad, False)
    return EvictLanes(row, begin, pages, fits, left, bad, clipped)


def add(state: torch.Tensor | None, **found: torch.Tensor) -> None:
    """Add the True cells of each mask to the counter of its name; nothing without a state block. Waits."""
    if state is not None:
        for name, mask in found.items():
            count = int(mask.count_nonzero())
            if count:
                state[COUNTERS[name]].add_(count)


def where(mask: torch.Tensor) -> Sequence[int]:
    """Return the numbers of the True lanes. Waits for the device."""
    return plain(mask.nonzero()[:, 0])
