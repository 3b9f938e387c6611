"""read_table: translate each lane's virtual pages into the rectangle that attention kernels read.

    lane b, row r = req_rows[b]           valid extent (granularity page)      out[b]
    request_table[r]: ids of tokens  ->   columns [start // ps, ceil(n / ps))  -> entry per column
                                          columns outside                      -> untouched (prefix), 0 (sink)

`n = seq_lens[b] + seq_len_delta`, clipped to `[0, min(width, request table's width)]` in tokens. With granularity token
the extent is `[start, n)`. The page of column c is read from the request table at token `c * ps` (form token) or at
page c (form page). Page entry = `v2p[v] * multiplier`, token entry = page entry * page_size + offset; 0 for a hole, a
negative id, an id past the table or a tombstone.

A plan with `beside` builds a second table in the same call, over the same request table, rows and lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    MAX_LENGTH,
    Operation,
    need_at_most,
    need_choice,
    need_count,
    need_entries_fit,
    need_length,
    need_page_table,
    need_rows,
    need_separate_rows,
    need_tensor,
    plain,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.beside import Beside, SecondTable
from pagebind.ops.fields import need_fields
from pagebind.ops.ids import past_table, read_ids
from pagebind.ops.lanes import TableLanes, table_lanes, where
from pagebind.ops.ragged import expand
from pagebind.words import STATE_WORDS, Fill, Form


@dataclass(frozen=True, kw_only=True)
class ReadTableSpec:
    """What a read table's plan decides.

    `max_bs` lanes and `max_width` columns (in cells of `granularity`) at most; one plan serves every smaller batch and
    table. `form` is the unit of the request table's ids, `granularity` that of the table's entries. `num_physical`
    counts the sink. `windowed` plans for calls with `starts`, `beside` for calls with a second table.
    """

    max_bs: int
    max_width: int
    page_size: int
    num_physical: int
    form: Form = "token"
    granularity: Form = "page"
    fill: Fill = "prefix"
    multiplier: int = 1
    windowed: bool = False
    index_dtype: torch.dtype = torch.int32  # of v2p
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of seq_lens and starts
    out_dtype: torch.dtype = torch.int32
    beside: Beside | None = None

    def __post_init__(self) -> None:
        need_fields(self)
        need_choice("fill", self.fill, ("prefix", "sink"))
        need_entries_fit(
            self.num_physical, self.multiplier, self.page_size, self.granularity, "out_dtype", self.out_dtype
        )
        if self.beside is None:
            return
        if not isinstance(self.beside, Beside):
            raise InvalidArgument(f"beside is a {type(self.beside).__name__}; it must be a Beside, or None")
        try:
            self.second()
        except InvalidArgument as error:
            raise InvalidArgument(f"of beside, {error}") from None

    def second(self) -> ReadTableSpec:
        """Return the spec that a plan of the second table alone would have."""
        assert self.beside is not None
        return replace(self, **vars(self.beside), beside=None)


class ReadTable(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; any row stride
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # [>= bs, width], out_dtype; any row stride; written
        starts: torch.Tensor | None = None,  # [bs], length_dtype; tokens; with windowed plans
        seq_len_delta: int = 0,  # tokens added to every lane before clipping
        state: torch.Tensor | None = None,  # [32], int64; counts clipped, bad_row, bad_id
        beside: SecondTable | None = None,  # with plans that have one
    ) -> None:
        """Write the entries of every lane's valid extent to `out`.

        Counted in `state` where one is given: `bad_row` lanes whose row is outside the request table (they are empty
        and count nothing else), `clipped` lanes of the others whose length was below 0 or above what fits, `bad_id`
        cells of `out` whose id is past the table. Negative starts read as 0. Raises InvalidArgument before launching.

        The table of `beside` becomes what a call of its own with the same request table, rows, lengths and delta would
        make of it, and counts in its own state.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def table_tokens(form: Form, page_size: int, request_table: torch.Tensor) -> int:
    """Return the width of a request table in tokens."""
    width = request_table.shape[1]
    return width if form == "token" else min(width * page_size, MAX_LENGTH)


def need_width_within(width: int, granularity: Form, page_size: int, tokens: int, name: str = "out") -> None:
    """Refuse a table of `width` cells that reaches past a request table of `tokens` tokens."""
    most = tokens if granularity == "token" else -(-tokens // page_size)
    if width > most:
        raise InvalidArgument(
            f"{name} has {width} columns, but the request table's {tokens} tokens fill only {most} "
            f"(granularity {granularity}, page_size {page_size}): pass {name}[:, :{most}], or widen the request table"
        )


class _Names(NamedTuple):
    """What messages call the arguments of a table."""

    v2p: str
    out: str
    starts: str
    windowed: str
    state: str


_FIRST = _Names(*_Names._fields)
_SECOND = _Names(*(f"beside.{name}" for name in _Names._fields))


def arguments(
    spec: ReadTableSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    starts: torch.Tensor | None = None,
    seq_len_delta: int = 0,
    state: torch.Tensor | None = None,
    beside: SecondTable | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    bs = need_rows(request_table, req_rows, spec.max_bs, spec.row_dtype, device)
    need_tensor("seq_lens", seq_lens, spec.length_dtype, 1, device)
    need_length("seq_lens", seq_lens, bs, "req_rows")
    _need_table(_FIRST, spec, device, request_table, bs, v2p, out, starts, spec.windowed, state)
    need_count("seq_len_delta", seq_len_delta, -INT32_MAX, INT32_MAX)
    width = out.shape[1]
    if beside is not None or spec.beside is not None:
        if beside is None or spec.beside is None:
            raise InvalidArgument(f"beside is {'given' if beside is not None else 'None'}, planned is {spec.beside}")
        if not isinstance(beside, SecondTable):
            raise InvalidArgument(f"beside is a {type(beside).__name__}; it must be a SecondTable")
        _need_table(_SECOND, spec, device, request_table, bs, *beside[:3], spec.beside.windowed, beside.state)
        need_memory_of_its_own(
            "out beside.out",
            (out, beside.out),
            "request_table req_rows seq_lens v2p starts beside.v2p beside.starts",
            (request_table, req_rows, seq_lens, v2p, starts, beside.v2p, beside.starts),
        )
        return bs > 0 and max(width, beside.out.shape[1]) > 0
    need_memory_of_its_own(
        "out", (out,), "request_table req_rows seq_lens v2p starts", (request_table, req_rows, seq_lens, v2p, starts)
    )
    return bs > 0 and width > 0


def _need_table(
    names: _Names,
    spec: ReadTableSpec,
    device: torch.device,
    request_table: torch.Tensor,
    bs: int,
    v2p: torch.Tensor,
    out: torch.Tensor,
    starts: torch.Tensor | None,
    windowed: bool,
    state: torch.Tensor | None,
) -> None:
    need_page_table(names.v2p, v2p, spec.index_dtype, device)
    need_tensor(names.out, out, spec.out_dtype, 2, device)
    rows, width = out.shape
    if rows < bs:
        raise InvalidArgument(f"{names.out} has {rows} rows for a batch of {bs}; it needs at least one a lane")
    if rows > INT32_MAX:
        raise InvalidArgument(f"{names.out} has {rows} rows; a table has at most 2**31 - 1: pass fewer of them")
    if width > spec.max_width:
        need_at_most(f"the width of {names.out}", width, spec.max_width, "max_width")
    need_separate_rows(names.out, out)
    tokens = table_tokens(spec.form, spec.page_size, request_table)
    need_width_within(width, spec.granularity, spec.page_size, tokens, names.out)
    if (starts is not None) != windowed:
        raise InvalidArgument(
            f"{names.starts} is {'given' if starts is not None else 'None'}, {names.windowed}={windowed}"
        )
    if starts is not None:
        need_tensor(names.starts, starts, spec.length_dtype, 1, device)
        need_length(names.starts, starts, bs, "req_rows")
    if state is not None:
        need_tensor(names.state, state, torch.int64, 1, device)
        need_length(names.state, state, STATE_WORDS, "a state block")


def bytes_moved(spec: ReadTableSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to build `items` entries for `lanes` lanes: an id, a table row and an entry each.

    `items` counts those of both tables.
    """
    per_item = 4 + spec.index_dtype.itemsize + spec.out_dtype.itemsize
    return items * per_item + lanes * (spec.row_dtype.itemsize + spec.length_dtype.itemsize)


def features(spec: ReadTableSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    asked = {f"form={spec.form}", f"granularity={spec.granularity}", f"fill={spec.fill}"}
    if spec.windowed or (spec.beside is not None and spec.beside.windowed):
        asked.add("windowed")
    if spec.beside is not None:
        asked.add("beside")
    return frozenset(asked)


def faults(
    spec: ReadTableSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    starts: torch.Tensor | None = None,
    seq_len_delta: int = 0,
    state: torch.Tensor | None = None,
    beside: SecondTable | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, and for bad_id the virtual pages; of a second table as `beside.bad_id`."""
    if beside is not None:
        batch, alone = (request_table, req_rows, seq_lens), replace(spec, beside=None)
        first = faults(alone, *batch, v2p, out=out, starts=starts, seq_len_delta=seq_len_delta)
        second = faults(
            spec.second(), *batch, beside.v2p, out=beside.out, starts=beside.starts, seq_len_delta=seq_len_delta
        )
        return {**first, **{f"beside.{name}": told for name, told in second.items()}}
    if out.shape[1] == 0:
        return {}  # nothing is built, and nothing counted
    lanes = lanes_of(spec, request_table, req_rows, seq_lens, out.shape[1], starts, seq_len_delta)
    lane, step = expand(lanes.cells)
    ids = read_ids(
        spec.form, spec.granularity, spec.page_size, request_table, lanes.row[lane], lanes.first[lane] + step
    )
    unit = 1 if spec.granularity == "page" else spec.page_size
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "bad_id": plain(past_table(ids, unit, v2p)),
    }


def lanes_of(
    spec: ReadTableSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    width: int,
    starts: torch.Tensor | None,
    seq_len_delta: int,
) -> TableLanes:
    """Judge the lanes of a call whose table has `width` columns."""
    unit = spec.page_size if spec.granularity == "page" else 1
    most = min(width * unit, table_tokens(spec.form, spec.page_size, request_table))
    return table_lanes(request_table, req_rows, seq_lens, starts, seq_len_delta, most=most, unit=unit)


READ_TABLE: Operation[ReadTableSpec, ReadTable] = Operation(
    name="read_table",
    level="core",
    spec=ReadTableSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
)
