"""truncate: give back a row's tail, as after rejected draft tokens. Pages that hold no kept token are freed.

    lane b, row r:   tokens 0 ..... keep - 1 | keep ........ len - 1
                     pages  [ kept  |  kept ][ freed ][ freed ]      freed: pages [ceil(keep / ps), ceil(len / ps))
                     request-table cells of tokens [keep, len) (form token) or of the freed pages (form page) become -1

Pages are freed as free frees ids, lane after lane and page after page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.operation import (
    INT32_MAX,
    Operation,
    need_at_most,
    need_choice,
    need_count,
    need_index_dtypes,
    need_length,
    need_rows,
    need_separate_rows,
    need_tables,
    need_tensor,
)
from pagebind.words import Form, PageTables


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
    for name, lens in (("seq_lens", seq_lens), ("keep_lens", keep_lens)):
        need_tensor(name, lens, spec.length_dtype, 1, device)
        need_length(name, lens, bs, "req_rows")
    need_tables(tables, spec.index_dtype, device)
    need_tensor("freed", freed, spec.id_dtype, 1, device)
    need_at_most("the capacity of freed", freed.shape[0], spec.max_pages, "max_pages")
    if pages is not None:
        need_count("pages", pages, 0)
    return bs > 0


def bytes_moved(spec: TruncateSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to free `items` pages of `lanes` rows: as free, and the cells read and cleared."""
    cells = items * (spec.page_size if spec.form == "token" else 1)
    per_lane = spec.row_dtype.itemsize + 2 * spec.length_dtype.itemsize
    return items * (4 + spec.id_dtype.itemsize + 5 * spec.index_dtype.itemsize) + cells * 4 + lanes * per_lane


def features(spec: TruncateSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({f"form={spec.form}"})


def faults(*args, **kwargs):
    return {}


def compose(spec, device, planners, options):
    raise RuntimeError


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
