"""truncate: give back a row's tail, as after rejected draft tokens. Pages that hold no kept token are freed.

    lane b, row r:   tokens 0 ..... keep - 1 | keep ........ len - 1
                     pages  [ kept  |  kept ][ freed ][ freed ]      freed: pages [ceil(keep / ps), ceil(len / ps))
                     request-table cells of tokens [keep, len) (form token) or of the freed pages (form page) become -1

Pages are freed as free frees ids, lane after lane and page after page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.operation import Launch, LaunchOptions, Operation, Planner, need_rows, need_separate_rows
from pagebind.ops import cuts
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.lanes import CutLanes, cut_lanes
from pagebind.ops.ragged import cell, expand, flat
from pagebind.ops.read_table import table_tokens
from pagebind.words import HOLE, Form, PageTables


@dataclass(frozen=True, kw_only=True)
class TruncateSpec:
    """What the plan of a truncate or a release decides: at most `max_bs` lanes and `max_pages` freed pages a call."""

    max_bs: int
    max_pages: int
    page_size: int
    form: Form = "token"
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of seq_lens and keep_lens
    id_dtype: torch.dtype = torch.int32  # of freed

    def __post_init__(self) -> None:
        need_fields(self)


class Truncate(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; rows apart; written
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens the row holds
        keep_lens: torch.Tensor,  # [bs], length_dtype; tokens it keeps
        tables: PageTables,  # written
        *,
        freed: torch.Tensor,  # [capacity], id_dtype; physical pages in the order of the lanes; written
        pages: int | None = None,  # the host's count of freed pages; None where it has none
    ) -> None:
        """Cut every lane's row to `keep_lens[b]` tokens.

        Both lengths are clipped to the row; a keep length at or above the row's length keeps everything. The c-th page
        to free, counted over the lanes, goes to `freed[c]`: the physical page, or -1 where it was a hole or a fault;
        cells from the count on are -1. Pages past the capacity of `freed` stay bound and in their row, and so do the
        tokens in them. A page's id is that of its first cell in the request table.

        Counted in `tables.state`: `bad_row` lanes (empty, nothing else counted); `clipped` lanes of the others with a
        length below 0 or past the row, or pages past the capacity; `double_free` and `bad_free` as in free;
        `count_mismatch`, once, where `pages` is not the number of pages the lanes ask to free. The epoch stays. Raises
        InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: TruncateSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    keep_lens: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    pages: int | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_separate_rows("request_table", request_table)
    cuts.need_cuts(spec, device, bs, tables, freed, pages, seq_lens=seq_lens, keep_lens=keep_lens)
    need_memory_of_its_own(
        "request_table freed",
        (request_table, freed),
        "req_rows seq_lens keep_lens",
        (req_rows, seq_lens, keep_lens),
    )
    return bs > 0


def bytes_moved(spec: TruncateSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to free `items` pages of `lanes` rows: as free, and the cells read and cleared."""
    cells = items * (spec.page_size if spec.form == "token" else 1)
    per_lane = spec.row_dtype.itemsize + 2 * spec.length_dtype.itemsize
    return items * (4 + spec.id_dtype.itemsize + 5 * spec.index_dtype.itemsize) + cells * 4 + lanes * per_lane


def features(spec: TruncateSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({f"form={spec.form}"})


def lanes_of(
    spec: TruncateSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    keep_lens: torch.Tensor | None,
    freed: torch.Tensor,
    *,
    whole_row: bool,
) -> CutLanes:
    """Judge the lanes: pages from `keep_lens` on (None: from 0) are freed; cells from there on, or all, are emptied."""
    tokens = table_tokens(spec.form, spec.page_size, request_table)
    return cut_lanes(
        request_table,
        req_rows,
        seq_lens,
        keep_lens,
        form=spec.form,
        page_size=spec.page_size,
        tokens=tokens,
        capacity=freed.shape[0],
        whole_row=whole_row,
    )


def faults(
    spec: TruncateSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    keep_lens: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    pages: int | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, and virtual pages."""
    lanes = lanes_of(spec, request_table, req_rows, seq_lens, keep_lens, freed, whole_row=False)
    return cuts.faults_of(spec, request_table, tables, lanes, pages)


def compose(
    spec: TruncateSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions
) -> Launch:
    """Unbind with the core operation; push what it released and empty the cells with torch."""
    unbind = cuts.plan_unbind(spec, device, planners, options)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        keep_lens: torch.Tensor,
        tables: PageTables,
        *,
        freed: torch.Tensor,
        pages: int | None = None,
    ) -> None:
        lanes = lanes_of(spec, request_table, req_rows, seq_lens, keep_lens, freed, whole_row=False)
        give_back(spec, request_table, tables, lanes, unbind, options.count, freed, pages)

    return Composed("truncate", device, run, unbind)


def give_back(
    spec: TruncateSpec,
    request_table: torch.Tensor,
    tables: PageTables,
    lanes: CutLanes,
    unbind: Launch,
    count: bool,
    freed: torch.Tensor,
    pages: int | None,
) -> None:
    """Free the lanes' pages, empty their cells, and count."""
    cuts.give_back(spec, request_table, tables, lanes, unbind, count, freed, pages)
    lane, step = expand(lanes.cells)
    at = cell(request_table, lanes.row, lanes.clear).index_select(0, lane).add_(step)
    flat(request_table).index_fill_(0, at, HOLE)


TRUNCATE: Operation[TruncateSpec, Truncate] = Operation(
    name="truncate",
    level="extended",
    spec=TruncateSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
