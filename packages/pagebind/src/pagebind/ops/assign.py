"""assign: copy ids into rows, as when a request starts on a shared prefix.

    lane b, row r = req_rows[b]:   request_table[r, 0 : n] = ids[lo : lo + n]      n = hi - lo, cut to the row
                                   lo, hi = indptr[b], indptr[b + 1], clamped to [0, len(ids)]

Ids are in the request table's own form: token ids or page ids. They are copied as they are, holes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_rows,
    need_separate_rows,
    need_state,
    need_tensor,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.lanes import add, parts_of, rows_of, where
from pagebind.ops.ragged import expand


@dataclass(frozen=True, kw_only=True)
class AssignSpec:
    """What an assignment's plan decides: at most `max_bs` lanes and `max_items` ids a call."""

    max_bs: int
    max_items: int
    row_dtype: torch.dtype = torch.int32  # of req_rows
    indptr_dtype: torch.dtype = torch.int32

    def __post_init__(self) -> None:
        need_fields(self)


class Assign(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; rows apart; written
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        ids: torch.Tensor,  # [capacity], int32; the lanes' ids end to end
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype; cells
        *,
        state: torch.Tensor | None = None,  # [32], int64; counts clipped, bad_row
    ) -> None:
        """Copy every lane's ids to the head of its row.

        Counted: `bad_row` lanes whose row is outside the request table (empty, nothing else counted); `clipped` lanes
        of the others whose indptr was clamped or goes back, or whose ids reach past the row. Where a row stands in two
        lanes, cells both write hold what one of them wrote. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: AssignSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    ids: torch.Tensor,
    indptr: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_separate_rows("request_table", request_table)
    need_tensor("ids", ids, torch.int32, 1, device)
    need_at_most("the number of ids", ids.shape[0], spec.max_items, "max_items")
    need_tensor("indptr", indptr, spec.indptr_dtype, 1, device)
    if indptr.shape[0] != bs + 1:
        raise InvalidArgument(f"indptr has {indptr.shape[0]} element(s); a batch of {bs} needs {bs + 1}")
    need_state(state, device)
    # Not from the ids: those of a row that no lane writes may be copied from where they are.
    need_memory_of_its_own("request_table", (request_table,), "req_rows indptr", (req_rows, indptr))
    return bs > 0


def bytes_moved(spec: AssignSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to copy `items` ids into `lanes` rows."""
    return items * 8 + lanes * (spec.row_dtype.itemsize + spec.indptr_dtype.itemsize)


def features(spec: AssignSpec) -> frozenset[str]:
    """Return the features a spec asks for: none."""
    return frozenset()


class _Lanes(NamedTuple):
    """The cells each lane copies."""

    row: torch.Tensor  # [bs], int64; 0 for a bad row
    begin: torch.Tensor  # [bs], int64; the lane's first id
    cells: torch.Tensor  # [bs], int64; ids that have room in the row
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool


def _lanes_of(request_table: torch.Tensor, req_rows: torch.Tensor, ids: torch.Tensor, indptr: torch.Tensor) -> _Lanes:
    row, bad = rows_of(request_table, req_rows)
    begin, length, moved = parts_of(indptr, ids.shape[0])
    cells = length.clamp(max=request_table.shape[1])
    clipped = (moved | (cells < length)) & ~bad
    return _Lanes(row, begin, cells.masked_fill(bad, 0), bad, clipped)


def faults(
    spec: AssignSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    ids: torch.Tensor,
    indptr: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes."""
    lanes = _lanes_of(request_table, req_rows, ids, indptr)
    return {"clipped": where(lanes.clipped), "bad_row": where(lanes.bad_row)}


def compose(spec: AssignSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Copy with torch; no core operation writes a request table."""

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        ids: torch.Tensor,
        indptr: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        lanes = _lanes_of(request_table, req_rows, ids, indptr)
        lane, step = expand(lanes.cells)
        request_table[lanes.row[lane], step] = ids[lanes.begin[lane] + step]
        if options.count:
            add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)

    return Composed("assign", device, run)


ASSIGN: Operation[AssignSpec, Assign] = Operation(
    name="assign",
    level="extended",
    spec=AssignSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
