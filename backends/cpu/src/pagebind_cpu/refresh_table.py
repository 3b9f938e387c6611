"""refresh_table: bring a read table up to date by writing only what changed; the same cells as a fresh build.

A call of a decode step finds every lane as it was built, but longer; comparing the lanes' words says so, and then only
the new columns are looked at. Every other call judges its lanes as core does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pagebind.operation import INT32_MAX, Launch, LaunchOptions
from pagebind.ops.ids import read_ids, scale_of
from pagebind.ops.lanes import add, add_delta, pages_before
from pagebind.ops.ragged import cell, expand, flat
from pagebind.ops.read_table import table_tokens
from pagebind.ops.refresh_table import (
    BUILT_END,
    BUILT_EPOCH,
    BUILT_FIRST,
    BUILT_ROW,
    BUILT_VERSION,
    BUILT_WORDS,
    NOTHING,
    RefreshLanes,
    RefreshTableSpec,
    lanes_of,
    remember,
)
from pagebind.ops.touch import VERSION
from pagebind.words import BAD_ID, EPOCH, SINK

from pagebind_cpu.cells import Lanes, Source, Target, write_entries
from pagebind_cpu.entries import Unit, entries

FEW = 4096  # steps of all lanes, as if each had as many as the longest, up to which they are laid out as a rectangle
LONG = 256  # cells from which emptying them with a call of their own pays
FIXED = [word for word in range(BUILT_WORDS) if word not in (BUILT_ROW, BUILT_VERSION, BUILT_END)]
"""Words of `built` that a steady lane has in common with all others: the epoch, and zeros."""


def plan(spec: RefreshTableSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a refresh; the work goes by the batch and by the cells that changed."""
    return _Refresh(spec, options.count)


class _Steady(NamedTuple):
    """What steady lanes have in common, kept from call to call; only read."""

    epoch: int
    words: torch.Tensor  # [bs, len(FIXED)], int32; the words FIXED
    ones: torch.Tensor  # [bs], int32; all 1
    lanes: torch.Tensor  # [bs], int64; 0, 1, 2, ..


class _Refresh:
    """The launch."""

    __slots__ = ("_count", "_fixed", "_nothing", "_plain", "_spec", "_steady", "_unit")

    def __init__(self, spec: RefreshTableSpec, count: bool) -> None:
        page_size = spec.page_size if spec.granularity == "token" else 1
        self._spec = spec
        self._count = count
        self._unit = Unit(page_size, scale_of(spec.num_physical, spec.multiplier, page_size), spec.out_dtype)
        self._plain = not spec.windowed and not spec.borrowed
        self._fixed = torch.tensor(FIXED)
        self._nothing = torch.zeros(BUILT_WORDS, dtype=torch.int32)
        self._nothing[BUILT_ROW] = NOTHING
        self._steady = _steady(0, 0)

    def warmup(self) -> None:
        """Nothing to compile."""

    def __call__(
        self,
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
        """Launch."""
        spec, width = self._spec, out.shape[1]
        if self._plain:
            unit = spec.page_size if spec.granularity == "page" else 1
            most = min(width * unit, table_tokens(spec.form, spec.page_size, request_table))
            columns = _columns(seq_lens, seq_len_delta, most, unit)
            if columns and self._append(request_table, req_rows, *columns, v2p, out, built, versions, state):
                return
        lanes = lanes_of(
            spec, request_table, req_rows, seq_lens, width, built, versions, state, first, starts, seq_len_delta
        )
        changed, out_row = _changed(lanes)
        most = int(changed.cells.max())
        if most * changed.cells.shape[0] <= FEW:
            past = self._write_few(request_table, changed, v2p, out, out_row, most) if most else 0
        else:
            source = Source(request_table, spec.form, spec.granularity, spec.page_size)
            target = Target(flat(out), cell(out, out_row, changed.first), changed.cells)
            past = write_entries(source, changed, v2p, self._unit, [target])
        if spec.fill == "sink":
            _empty(lanes, built, out)
        remember(spec, lanes, built)
        if self._count:
            add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            if past:
                state[BAD_ID] += past

    def _append(
        self,
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        columns: torch.Tensor,
        some: bool,
        v2p: torch.Tensor,
        out: torch.Tensor,
        built: torch.Tensor,
        versions: torch.Tensor,
        state: torch.Tensor,
    ) -> bool:
        """Refresh lanes that are as built, but for a few new columns, `columns[b]` in all; else write nothing, False.

        Such lanes have good rows and begin at column 0, and with sink fill there is nothing to empty. `some` says that
        every lane has columns, so that one more than `built` tells of is a new one, whatever is in there.
        """
        bs, sink_fill = req_rows.shape[0], self._spec.fill == "sink"
        try:
            version = versions.select(1, VERSION).index_select(0, req_rows)
        except IndexError:  # index_select looks at every row
            return False
        before = built[:bs]
        row = before.select(1, BUILT_ROW)
        if not (
            torch.equal(row if req_rows.dtype is row.dtype else row.to(req_rows.dtype), req_rows)
            and torch.equal(before.select(1, BUILT_VERSION), version)
        ):
            return False
        steady, epoch = self._steady, int(state[EPOCH].item())
        if steady.epoch != epoch or steady.ones.shape[0] != bs:
            self._steady = steady = _steady(epoch, bs)
        if not torch.equal(before.index_select(1, self._fixed), steady.words):
            return False
        if sink_fill and built.shape[0] > bs:
            after = built[bs:]
            if not torch.equal(after, self._nothing.expand_as(after)):
                return False
        end, past = before.select(1, BUILT_END), 0
        last = columns - steady.ones
        if some and columns.dtype is end.dtype and torch.equal(last, end):
            rows = Lanes(req_rows, last, steady.ones)
            past = self._write_few(request_table, rows, v2p, out, steady.lanes, most=1, in_all=True)
        else:
            kept = end.clamp(min=0)
            new = columns - kept
            fewest, most = (int(number.item()) for number in new.aminmax())
            if most * bs > FEW or (sink_fill and fewest < 0):
                return False
            if most > 0:
                past = self._write_few(request_table, Lanes(req_rows, kept, new), v2p, out, steady.lanes, most)
        end.copy_(columns)
        if past and self._count:
            state[BAD_ID] += past
        return True

    def _write_few(
        self,
        request_table: torch.Tensor,
        lanes: Lanes,
        v2p: torch.Tensor,
        out: torch.Tensor,
        out_row: torch.Tensor,
        most: int,
        *,
        in_all: bool = False,
    ) -> int:
        """Write lanes of at most `most` cells, `in_all` of just one; return how many ids are past the table.

        `out_row`, int64 `[lanes]`, is where each goes. Lanes may be int32 here, and have less than no cells.
        """
        spec, (row, column, cells) = self._spec, lanes
        if not in_all:
            if most > 1:
                lane, step = _steps(cells, most)
                column = column.index_select(0, lane) + step
            else:
                lane = (cells > 0).nonzero()[:, 0]
                column = column.index_select(0, lane)
            row, out_row = row.index_select(0, lane), out_row.index_select(0, lane)
        if spec.form == spec.granularity:
            memory, stride = flat(request_table), request_table.stride(0)
            if memory.shape[0] > INT32_MAX:
                row = row.long()
            ids = memory.index_select(0, torch.add(column, row, alpha=stride))
        else:
            column = column.long()
            ids = read_ids(spec.form, spec.granularity, spec.page_size, request_table, row.long(), column)
        entry, past = entries(ids, v2p, self._unit)
        flat(out).scatter_(0, torch.add(column, out_row, alpha=out.stride(0)), entry)
        return 0 if past is None else int(past.count_nonzero())


def _steady(epoch: int, bs: int) -> _Steady:
    words = torch.zeros((bs, len(FIXED)), dtype=torch.int32)
    words[:, FIXED.index(BUILT_EPOCH)] = torch.tensor(epoch).to(torch.int32)
    return _Steady(epoch, words, torch.ones(bs, dtype=torch.int32), torch.arange(bs))


def _columns(seq_lens: torch.Tensor, delta: int, most: int, unit: int) -> tuple[torch.Tensor, bool] | None:
    """Return each lane's columns, int32 or int64 `[bs]`, and whether all have some; None where a length is cut."""
    # Short of what int32 holds, lengths stay in it: a conversion costs as much as a look at them.
    narrow = delta == 0 and seq_lens.dtype is torch.int32 and most + unit <= INT32_MAX
    length = seq_lens if narrow else add_delta(seq_lens, delta)
    some = torch.equal(length, length.clamp(1, most))
    return (pages_before(length, unit), some) if some or torch.equal(length, length.clamp(0, most)) else None


def _steps(cells: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `expand(cells)`, of at most `most` cells each; without its threads where it is short."""
    if cells.shape[0] * most > FEW:
        return expand(cells)
    lane, step = (torch.arange(most) < cells[:, None]).nonzero().unbind(1)
    return lane, step


def _changed(lanes: RefreshLanes) -> tuple[Lanes, torch.Tensor]:
    """Return the columns to write, below and above those a lane keeps, and the row of the table each goes to, int64."""
    row, begin, cells = lanes.row, lanes.high, lanes.end - lanes.high
    out_row = torch.arange(row.shape[0])
    if not torch.equal(lanes.low, lanes.begin):
        row, out_row = row.repeat(2), out_row.repeat(2)
        begin, cells = torch.cat((lanes.begin, begin)), torch.cat((lanes.low - lanes.begin, cells))
    return Lanes(row, begin, cells), out_row


def _empty(lanes: RefreshLanes, built: torch.Tensor, out: torch.Tensor) -> None:
    """Empty the columns that rows of `out` held, `built` says which, and that their lanes hold no more."""
    (rows, width), bs = out.shape, lanes.row.shape[0]
    old_first, old_end = (built.select(1, word).long().clamp_(0, width) for word in (BUILT_FIRST, BUILT_END))
    valid_first, valid_end = old_first.new_zeros(rows), old_first.new_zeros(rows)
    valid_first[:bs], valid_end[:bs] = lanes.begin, lanes.end
    # Below the lane's extent, and above it.
    begin = torch.cat((old_first, torch.maximum(old_first, valid_end)))
    cells = (torch.cat((torch.minimum(old_end, valid_first), old_end)) - begin).clamp_(min=0)
    which = cells.nonzero()[:, 0]
    if not which.shape[0]:
        return
    memory, cells = flat(out), cells.index_select(0, which)
    begin = begin.index_select(0, which).add_(which % rows, alpha=out.stride(0))
    most = int(cells.max())
    if most >= LONG:
        long = cells >= LONG
        for first, length in zip(begin[long].tolist(), cells[long].tolist(), strict=True):
            memory[first : first + length].fill_(SINK)
        begin, cells, most = begin[~long], cells[~long], LONG
    lane, step = _steps(cells, most)
    memory.index_fill_(0, begin.index_select(0, lane).add_(step), SINK)
