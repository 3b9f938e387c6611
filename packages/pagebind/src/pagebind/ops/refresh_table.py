"""refresh_table: bring a read table up to date by writing only what changed; the same cells as a fresh build.

    lane b, row r:   columns [first, end) of out[b] hold the row of `built[b]`, as it was then      wanted: [s, e)

    kept       [max(s, first), min(e, end, limit))    where row and epoch are as built; else nothing
               limit: none                            where the row's version is as built
                      changed // unit                 where it is one ahead
                      0                               otherwise
    written    [s, e) without what is kept: with the same lanes, appended, the new columns alone
    emptied    [first, end) without [s, e), with fill sink, in every row of `out`; left alone with fill prefix

`[s, e)` is the valid extent of read_table; `unit`, the tokens of a column: page_size with granularity page, else 1.
Versions and `changed` are those of `touch`, the epoch that of the sub-pool's state block. What `out` holds is noted in
`built`, which belongs to it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import INT32_MAX, Launch, LaunchOptions, Operation, Planner, need_length, need_tensor, plain
from pagebind.ops import read_table
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.ids import past_table, read_ids, scale_of
from pagebind.ops.lanes import add, where
from pagebind.ops.ragged import cell, expand, flat, quotient
from pagebind.ops.touch import CHANGED, VERSION, need_versions
from pagebind.words import BAD_ID, EPOCH, SINK, TOMBSTONE

BUILT_WORDS = 8
"""Words of a row of `built`, int32; those without a name are 0."""

BUILT_ROW = 0  # request-table row of the lane; NOTHING before the first refresh, and for a lane without one
BUILT_VERSION = 1  # of that row
BUILT_EPOCH = 2  # its low 32 bits
BUILT_FIRST = 3  # column
BUILT_END = 4  # column
BUILT_LIVE = 5  # page; what `first` said of the row, 0 without it

NOTHING = -1
"""What BUILT_ROW holds where no row was built."""


def new_built(rows: int, width: int, device: torch.device | str) -> torch.Tensor:
    """Return the words of a table that was never built, int32 `[rows, BUILT_WORDS]`; its columns may hold anything."""
    built = torch.zeros((rows, BUILT_WORDS), dtype=torch.int32)
    built[:, BUILT_ROW] = NOTHING
    built[:, BUILT_END] = width
    return built.to(device)


@dataclass(frozen=True, kw_only=True)
class RefreshTableSpec(read_table.ReadTableSpec):
    """What a refresh's plan decides; fields as in ReadTableSpec, but that there is no `beside`.

    `borrowed` plans for calls with `first`: tables of a sub-pool that borrows the rows' ids, and evicts.
    """

    borrowed: bool = False

    def __post_init__(self) -> None:
        if self.beside is not None:
            raise InvalidArgument(
                f"beside is {self.beside!r}; only a full build (read_table) writes two tables in one call: "
                "plan a refresh_table for each, without beside"
            )
        super().__post_init__()


class RefreshTable(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; any row stride
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # [>= bs, width], out_dtype; any row stride; the same at each call; written
        built: torch.Tensor,  # [rows of out, BUILT_WORDS], int32; written
        versions: torch.Tensor,  # [max_requests, VERSION_WORDS], int32
        state: torch.Tensor,  # [32], int64; its epoch is read; counts clipped, bad_row, bad_id
        first: torch.Tensor | None = None,  # [max_requests], int32; pages; with borrowed plans
        starts: torch.Tensor | None = None,  # [bs], length_dtype; tokens; with windowed plans
        seq_len_delta: int = 0,  # tokens added to every lane before clipping
    ) -> None:
        """Make every lane's cells of `out` those that a fresh read_table would hold, and note in `built` what they are.

        The cells are the same as read_table's after any calls of this package over the request table and the sub-pool,
        if `touch` told of each change of a row other than by appending: a truncate (from the tokens kept on), a release
        or an assign (from token 0 on), an evict of the tail, and writes by others. What is appended lies past the
        columns built so far: ids written under columns that a longer length had covered before are told by `touch` as
        well. Frees by page id and compactions raise the epoch themselves. `first` is the tensor that evict moves: where
        it is not what it was, columns below the higher of both are written anew. Not seen, because no word tells of it:
        pages of a row that were given back through another row that shares them, and ids of `v2p` that are bound or
        unbound by hand; the epoch is to be raised after them.

        Lanes may be permuted, and rows may come and go. Afterwards `built[b]` holds the lane's row, its version, the
        epoch's low 32 bits, the valid extent (0, 0 where it is empty) and what `first` says of the row, 0 at least;
        of a lane with a bad row NOTHING and zeros. With fill sink, so do the rows past `bs`; with prefix they are left
        alone, in `built` too. Words of `built` that no refresh left there may make cells stale, and no access wild.

        Counted in `state`: `bad_row` and `clipped` lanes as in read_table, at each call; `bad_id` cells, of those that
        are written, whose id is past the table. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def steady_span(fitting: int, delta: int) -> int:
    """Return a bound of the lengths, plus `delta`, that kernels may take for steady lanes' in 32 bits.

    `fitting` tokens fit the tables. A sum of an int32 length and `delta` that wraps around in 32 bits is never below.
    """
    return min(fitting + 1, INT32_MAX, INT32_MAX + 1 + min(delta, 0))


def arguments(
    spec: RefreshTableSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    built: torch.Tensor,
    versions: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    seq_len_delta: int = 0,
) -> bool:
    """Check a call; False for an empty batch."""
    some = read_table.arguments(
        spec,
        device,
        request_table,
        req_rows,
        seq_lens,
        v2p,
        out=out,
        starts=starts,
        seq_len_delta=seq_len_delta,
        state=state,
    )
    if state is None:
        raise InvalidArgument("state is None; a refresh reads the sub-pool's epoch there")
    need_tensor("built", built, torch.int32, 2, device)
    need_length("built", built, out.shape[0], "out")
    if built.shape[1] != BUILT_WORDS or not built.is_contiguous():
        raise InvalidArgument(
            f"built has shape {list(built.shape)} and strides {list(built.stride())}; it must be dense, "
            f"[rows of out, {BUILT_WORDS}], as new_built returns it"
        )
    need_versions(versions, device)
    need_length("versions", versions, request_table.shape[0], "request_table")
    if (first is not None) != spec.borrowed:
        raise InvalidArgument(f"first is {'given' if first is not None else 'None'}, borrowed={spec.borrowed}")
    if first is not None:
        need_tensor("first", first, torch.int32, 1, device)
        need_length("first", first, request_table.shape[0], "request_table")
    need_memory_of_its_own(  # read_table has looked at the others
        "out built", (out, built), "request_table versions first", (request_table, versions, first)
    )
    return some


def bytes_moved(spec: RefreshTableSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to write `items` entries for `lanes` lanes: as a read table, and each lane's words."""
    words = 2 * 4 * BUILT_WORDS + 2 * 4 + (4 if spec.borrowed else 0)
    return read_table.bytes_moved(spec, lanes=lanes, items=items) + lanes * words


def features(spec: RefreshTableSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return read_table.features(spec) | ({"borrowed"} if spec.borrowed else set())


class RefreshLanes(NamedTuple):
    """The columns of each lane: `[begin, low)` and `[high, end)` are written, those between them kept."""

    row: torch.Tensor  # [bs], int64
    begin: torch.Tensor  # [bs], int64
    low: torch.Tensor  # [bs], int64
    high: torch.Tensor  # [bs], int64
    end: torch.Tensor  # [bs], int64
    words: torch.Tensor  # [bs, BUILT_WORDS], int32; what `built` holds afterwards
    bad_row: torch.Tensor  # [bs], bool
    clipped: torch.Tensor  # [bs], bool; never together with bad_row

    def written(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `(lane, column)`, int64, of the cells to write; waits."""
        lane, step = expand((self.low - self.begin) + (self.end - self.high))
        column = self.begin.index_select(0, lane) + step
        past = column >= self.low.index_select(0, lane)
        return lane, column + past * (self.high - self.low).index_select(0, lane)


def lanes_of(
    spec: RefreshTableSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    width: int,
    built: torch.Tensor,
    versions: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor | None,
    starts: torch.Tensor | None,
    seq_len_delta: int,
) -> RefreshLanes:
    """Judge the lanes of a call whose table has `width` columns."""
    lanes = read_table.lanes_of(spec, request_table, req_rows, seq_lens, width, starts, seq_len_delta)
    row, bad, unit = lanes.row, lanes.bad_row, spec.page_size if spec.granularity == "page" else 1
    begin = lanes.first * (lanes.cells > 0)
    end = begin + lanes.cells
    words = torch.zeros((row.shape[0], BUILT_WORDS), dtype=torch.int32, device=row.device)
    if request_table.shape[0] == 0:
        words[:, BUILT_ROW] = NOTHING
        return RefreshLanes(row, begin, begin, begin, end, words, bad, lanes.clipped)
    before, now = built[: row.shape[0]].long(), versions.index_select(0, row)
    words[:, BUILT_ROW] = row
    words[:, BUILT_VERSION] = now[:, VERSION]
    words[:, BUILT_EPOCH] = state[EPOCH].to(torch.int32)
    words[:, BUILT_FIRST], words[:, BUILT_END] = begin, end
    limit = quotient(now[:, CHANGED].long().clamp_(min=0), unit)
    one_ahead = (before[:, BUILT_VERSION] + 1).to(torch.int32) == now[:, VERSION]
    limit = limit.masked_fill_(~one_ahead, 0)
    limit = torch.where(before[:, BUILT_VERSION] == now[:, VERSION], end, limit)
    low = torch.maximum(begin, before[:, BUILT_FIRST])
    high = torch.minimum(torch.minimum(end, before[:, BUILT_END]), limit)
    if first is not None:
        live = first.index_select(0, row).clamp(min=0)
        words[:, BUILT_LIVE] = live
        moved = torch.maximum(live, before[:, BUILT_LIVE]) * (1 if spec.granularity == "page" else spec.page_size)
        low = torch.where(live == before[:, BUILT_LIVE], low, torch.maximum(low, moved))
    same = (before[:, BUILT_ROW] == row) & (before[:, BUILT_EPOCH] == words[:, BUILT_EPOCH])
    kept = same & (low < high) & ~bad
    nothing = torch.zeros(BUILT_WORDS, dtype=torch.int32, device=row.device)
    nothing[BUILT_ROW] = NOTHING
    words = torch.where(bad[:, None], nothing, words)
    low, high = torch.where(kept, low, begin), torch.where(kept, high, begin)
    return RefreshLanes(row, begin, low, high, end, words, bad, lanes.clipped)


def _ids(
    spec: RefreshTableSpec, request_table: torch.Tensor, lanes: RefreshLanes
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lane, column = lanes.written()
    row = lanes.row.index_select(0, lane)
    return lane, column, read_ids(spec.form, spec.granularity, spec.page_size, request_table, row, column)


def faults(
    spec: RefreshTableSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    built: torch.Tensor,
    versions: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    seq_len_delta: int = 0,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, and for bad_id the virtual pages."""
    lanes = lanes_of(
        spec, request_table, req_rows, seq_lens, out.shape[1], built, versions, state, first, starts, seq_len_delta
    )
    unit = 1 if spec.granularity == "page" else spec.page_size
    ids = _ids(spec, request_table, lanes)[2]
    return {
        "clipped": where(lanes.clipped),
        "bad_row": where(lanes.bad_row),
        "bad_id": plain(past_table(ids, unit, v2p)),
    }


def emptied(lanes: RefreshLanes, built: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(row of out, column)`, int64, of the cells that sink fill empties; `built` as before the call. Waits."""
    ends = built[:, BUILT_FIRST : BUILT_END + 1].long().clamp(0, width)
    old_first, old_end = ends[:, 0], ends[:, 1]
    lane, step = expand((old_end - old_first).clamp(min=0))
    column = old_first.index_select(0, lane) + step
    begin, end = torch.zeros_like(old_first), torch.zeros_like(old_first)
    begin[: lanes.begin.shape[0]], end[: lanes.end.shape[0]] = lanes.begin, lanes.end
    outside = (column < begin.index_select(0, lane)) | (column >= end.index_select(0, lane))
    return lane[outside], column[outside]


def remember(spec: RefreshTableSpec, lanes: RefreshLanes, built: torch.Tensor) -> None:
    """Note in `built` what the table holds after a call."""
    bs = lanes.row.shape[0]
    built[:bs] = lanes.words
    if spec.fill == "sink":
        built[bs:] = 0
        built[bs:, BUILT_ROW] = NOTHING


def _entries(spec: RefreshTableSpec, ids: torch.Tensor, v2p: torch.Tensor) -> torch.Tensor:
    unit = 1 if spec.granularity == "page" else spec.page_size
    page = quotient(ids.long(), unit)
    good = (page >= 0) & (page < v2p.shape[0] - 1)
    physical = v2p.index_select(0, torch.where(good, page, SINK)).long().masked_fill_(~good, TOMBSTONE)
    entry = physical * scale_of(spec.num_physical, spec.multiplier, unit) + (ids - page * unit)
    return entry.masked_fill_(physical < 0, SINK).to(spec.out_dtype)


def compose(
    spec: RefreshTableSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions
) -> Launch:
    """Judge the lanes, and write their cells, with torch."""

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        *,
        out: torch.Tensor,
        built: torch.Tensor,
        versions: torch.Tensor,
        state: torch.Tensor,
        first: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
    ) -> None:
        lanes = lanes_of(
            spec, request_table, req_rows, seq_lens, out.shape[1], built, versions, state, first, starts, seq_len_delta
        )
        lane, column, ids = _ids(spec, request_table, lanes)
        cells = flat(out)
        cells.index_copy_(0, cell(out, lane, column), _entries(spec, ids, v2p))
        if spec.fill == "sink":
            cells.index_fill_(0, cell(out, *emptied(lanes, built, out.shape[1])), SINK)
        remember(spec, lanes, built)
        if options.count:
            add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            unit = 1 if spec.granularity == "page" else spec.page_size
            state[BAD_ID] += past_table(ids, unit, v2p).shape[0]

    return Composed("refresh_table", device, run)


REFRESH_TABLE: Operation[RefreshTableSpec, RefreshTable] = Operation(
    name="refresh_table",
    level="extended",
    spec=RefreshTableSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
