"""read_stream: the same entries as a read table, packed end to end (CSR), optionally with the table in one launch.

    lane b: tokens [start, start + n) of row req_rows[b], n = seq_lens[b] + seq_len_delta
            items: those tokens (granularity token), or the pages that hold them (granularity page)
    out:    ... | lane b at [indptr[b], min(indptr[b] + items, indptr[b + 1], capacity)) | lane b + 1 ...

With `table` the same entries also go to `table[b]` at their absolute columns, as far as its width reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_count,
    need_entries_fit,
    need_length,
    need_page_table,
    need_rows,
    need_separate_rows,
    need_state,
    need_tensor,
    plain,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.ids import past_table, read_ids
from pagebind.ops.lanes import StreamLanes, add, stream_lanes, where
from pagebind.ops.ragged import expand
from pagebind.ops.read_table import need_width_within, table_tokens
from pagebind.ops.translate import TranslateSpec
from pagebind.words import Form


@dataclass(frozen=True, kw_only=True)
class ReadStreamSpec:
    """What a stream's plan decides; fields as in ReadTableSpec, `indptr_dtype` besides.

    `with_table` plans for calls with a table of at most `max_width` columns (prefix fill); `max_items` is the largest
    capacity of `out`.
    """

    max_bs: int
    max_items: int
    page_size: int
    num_physical: int
    form: Form = "token"
    granularity: Form = "page"
    multiplier: int = 1
    windowed: bool = False
    with_table: bool = False
    max_width: int = 0
    index_dtype: torch.dtype = torch.int32  # of v2p
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of seq_lens and starts
    indptr_dtype: torch.dtype = torch.int32
    out_dtype: torch.dtype = torch.int32  # of out and table

    def __post_init__(self) -> None:
        need_fields(self)
        need_entries_fit(
            self.num_physical, self.multiplier, self.page_size, self.granularity, "out_dtype", self.out_dtype
        )


class ReadStream(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; any row stride
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens from the start on
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        indptr: torch.Tensor,  # [bs + 1], indptr_dtype; items
        *,
        out: torch.Tensor,  # [capacity], out_dtype; written
        starts: torch.Tensor | None = None,  # [bs], length_dtype; tokens; with windowed plans
        table: torch.Tensor | None = None,  # [>= bs, width], out_dtype; any row stride; written
        seq_len_delta: int = 0,  # tokens added to every lane before clipping
        state: torch.Tensor | None = None,  # [32], int64; counts clipped, bad_row, bad_id
    ) -> None:
        """Write every lane's items to its part of `out`, and to its row of `table`.

        A negative start reads as 0. A lane of n items writes none where `indptr[b] < 0`. Where an `indptr` goes back,
        so that parts overlap, a cell they share holds an entry of one of them. Counted: `bad_row` lanes (empty, nothing
        else counted), `clipped` lanes of the others whose n is below 0, reaches past the request table, or has more
        items than fit its part of `out` or the width of `table`; `bad_id` items written to either whose id is past the
        table, each once. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: ReadStreamSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    indptr: torch.Tensor,
    *,
    out: torch.Tensor,
    starts: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    seq_len_delta: int = 0,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_tensor("seq_lens", seq_lens, spec.length_dtype, 1, device)
    need_length("seq_lens", seq_lens, bs, "req_rows")
    need_page_table("v2p", v2p, spec.index_dtype, device)
    need_tensor("indptr", indptr, spec.indptr_dtype, 1, device)
    if indptr.shape[0] != bs + 1:
        raise InvalidArgument(f"indptr has {indptr.shape[0]} element(s); a batch of {bs} needs {bs + 1}")
    need_tensor("out", out, spec.out_dtype, 1, device)
    need_at_most("the capacity of out", out.shape[0], spec.max_items, "max_items")
    if (starts is not None) != spec.windowed:
        raise InvalidArgument(f"starts is {'given' if starts is not None else 'None'}, windowed={spec.windowed}")
    if starts is not None:
        need_tensor("starts", starts, spec.length_dtype, 1, device)
        need_length("starts", starts, bs, "req_rows")
    if (table is not None) != spec.with_table:
        raise InvalidArgument(f"table is {'given' if table is not None else 'None'}, with_table={spec.with_table}")
    if table is not None:
        need_tensor("table", table, spec.out_dtype, 2, device)
        if table.shape[0] < bs:
            raise InvalidArgument(f"table has {table.shape[0]} rows for a batch of {bs}; it needs at least one a lane")
        need_at_most("the width of table", table.shape[1], spec.max_width, "max_width")
        need_separate_rows("table", table)
        tokens = table_tokens(spec.form, spec.page_size, request_table)
        need_width_within(table.shape[1], spec.granularity, spec.page_size, tokens)
    need_count("seq_len_delta", seq_len_delta, -INT32_MAX, INT32_MAX)
    need_state(state, device)
    need_memory_of_its_own(
        "out table",
        (out, table),
        "request_table req_rows seq_lens v2p indptr starts",
        (request_table, req_rows, seq_lens, v2p, indptr, starts),
    )
    return bs > 0


def bytes_moved(spec: ReadStreamSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to build `items` entries for `lanes` lanes: an id, a table row and one or two entries each."""
    copies = 2 if spec.with_table else 1
    per_item = 4 + spec.index_dtype.itemsize + copies * spec.out_dtype.itemsize
    per_lane = spec.row_dtype.itemsize + spec.length_dtype.itemsize + spec.indptr_dtype.itemsize
    return items * per_item + lanes * per_lane


def features(spec: ReadStreamSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    asked = {f"form={spec.form}", f"granularity={spec.granularity}"}
    return frozenset(asked | ({"windowed"} if spec.windowed else set()) | ({"table"} if spec.with_table else set()))


def faults(
    spec: ReadStreamSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    indptr: torch.Tensor,
    *,
    out: torch.Tensor,
    starts: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    seq_len_delta: int = 0,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, and for bad_id the virtual pages."""
    lanes = lanes_of(spec, request_table, req_rows, seq_lens, indptr, out, starts, table, seq_len_delta)
    lane, step = expand(torch.maximum(lanes.streamed, lanes.tabled))
    ids = read_ids(
        spec.form, spec.granularity, spec.page_size, request_table, lanes.row[lane], lanes.first[lane] + step
    )
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "bad_id": plain(past_table(ids, 1 if spec.granularity == "page" else spec.page_size, v2p)),
    }


def lanes_of(
    spec: ReadStreamSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    indptr: torch.Tensor,
    out: torch.Tensor,
    starts: torch.Tensor | None,
    table: torch.Tensor | None,
    seq_len_delta: int,
) -> StreamLanes:
    """Judge the lanes of a call."""
    return stream_lanes(
        request_table,
        req_rows,
        seq_lens,
        starts,
        seq_len_delta,
        indptr,
        tokens=table_tokens(spec.form, spec.page_size, request_table),
        unit=spec.page_size if spec.granularity == "page" else 1,
        capacity=out.shape[0],
        width=None if table is None else table.shape[1],
    )


def compose(
    spec: ReadStreamSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions
) -> Launch:
    """Gather the ids with torch, and translate them with the core operation."""
    widened = spec.form == "page" and spec.granularity == "token"
    most = max(1, spec.max_items, spec.max_bs * spec.max_width if spec.with_table else 0)
    translate = planners["translate"](
        TranslateSpec(
            max_items=most,
            page_size=1 if spec.granularity == "page" else spec.page_size,
            num_physical=spec.num_physical,
            multiplier=spec.multiplier,
            index_dtype=spec.index_dtype,
            id_dtype=torch.int64 if widened else torch.int32,
            out_dtype=spec.out_dtype,
        ),
        device,
        options,
    )

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        indptr: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
    ) -> None:
        state = state if options.count else None
        lanes = lanes_of(spec, request_table, req_rows, seq_lens, indptr, out, starts, table, seq_len_delta)
        add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)
        lane, step = expand(torch.maximum(lanes.streamed, lanes.tabled))
        column = lanes.first[lane] + step
        ids = read_ids(spec.form, spec.granularity, spec.page_size, request_table, lanes.row[lane], column)
        entries = torch.empty_like(ids, dtype=spec.out_dtype)
        # Parts that overlap can hold more items than one planned call takes.
        for done in range(0, ids.shape[0], most):
            translate(ids[done : done + most], v2p, out=entries[done : done + most], state=state)
        streamed = step < lanes.streamed[lane]
        out[(lanes.begin[lane] + step)[streamed]] = entries[streamed]
        if table is not None:
            tabled = step < lanes.tabled[lane]
            table[lane[tabled], column[tabled]] = entries[tabled]

    return Composed("read_stream", device, run, translate)


READ_STREAM: Operation[ReadStreamSpec, ReadStream] = Operation(
    name="read_stream",
    level="extended",
    spec=ReadStreamSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
