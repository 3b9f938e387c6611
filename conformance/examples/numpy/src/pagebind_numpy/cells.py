"""Cells of a batch of lanes: read their ids, translate them, write the entries.

A lane's cells lie side by side, in the request table as in every output. Long lanes go one by one: their ids are a
slice, and so is the place of their entries. Where lanes are short, all cells of the call go at once, each by its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from pagebind.ops import ReadStreamSpec, ReadTableSpec
from pagebind.ops.ids import scale_of
from pagebind.ops.ragged import flat

from pagebind_numpy.arrays import Array, quotient, remainder
from pagebind_numpy.entries import Unit, past_table

LONG = 64  # cells a lane, on average, from which going lane by lane pays


class Lanes(NamedTuple):
    """The cells of each lane: `cells[b]` columns from `first[b]` on, of row `row[b]`."""

    row: Array  # [bs], int64
    first: Array  # [bs], int64
    cells: Array  # [bs], int64


class Target(NamedTuple):
    """Where entries go: the first `cells[b]` of lane b, from `begin[b]` of `memory` on."""

    memory: Array  # [n], out_dtype; written
    begin: Array  # [bs], int64
    cells: Array  # [bs], int64; at most the lane's


class Writer:
    """What a plan of read_table or read_stream has decided; writes the entries of a call."""

    def __init__(self, spec: ReadTableSpec | ReadStreamSpec) -> None:
        self.page_size = spec.page_size
        self.form, self.granularity = spec.form, spec.granularity
        self.per_cell = spec.page_size if spec.granularity == "page" else 1  # tokens that an entry stands for
        self.per_id = spec.page_size if spec.form == "page" else 1  # tokens that an id stands for
        scale = scale_of(spec.num_physical, spec.multiplier, spec.page_size // self.per_cell)
        self.unit = Unit(scale, np.dtype("int32" if spec.out_dtype is torch.int32 else "int64"))
        self.offsets = np.arange(spec.page_size, dtype=self.unit.dtype) if self.widens else None

    @property
    def widens(self) -> bool:
        """Whether one id of the request table gives several entries."""
        return self.per_id > self.per_cell

    def write(self, request_table: torch.Tensor, lanes: Lanes, v2p: Array, targets: Sequence[Target]) -> int:
        """Write the entry of every cell to every target that takes it; return how many ids are past the table."""
        total = int(lanes.cells.sum())
        if not total:
            return 0
        if total >= LONG * np.count_nonzero(lanes.cells):
            return self._lane_by_lane(request_table.numpy(), lanes, v2p, targets)
        return self._all_at_once(request_table, lanes, v2p, targets)

    def _lane_by_lane(self, request_table: Array, lanes: Lanes, v2p: Array, targets: Sequence[Target]) -> int:
        places = [list(zip(t.begin.tolist(), t.cells.tolist(), strict=True)) for t in targets]
        past = 0
        for b, (row, first, cells) in enumerate(zip(*(values.tolist() for values in lanes), strict=True)):
            if not cells:
                continue
            entry, beyond = self._lane(request_table[row], first, first + cells, v2p)
            past += beyond
            for target, place in zip(targets, places, strict=True):
                begin, taken = place[b]
                target.memory[begin : begin + taken] = entry[:taken]
        return past

    def _lane(self, ids: Array, first: int, end: int, v2p: Array) -> tuple[Array, int]:
        if self.offsets is not None:  # by whole pages; of the first and the last one a part
            first_page = first // self.page_size
            page = ids[first_page : -(-end // self.page_size)]
            part = slice(first - first_page * self.page_size, end - first_page * self.page_size)
            whole = self.unit.of_tokens(page[:, None], self.offsets, v2p)
            beyond = np.repeat(page >= v2p.shape[0] - 1, self.page_size)
            return whole.reshape(-1)[part], int(np.count_nonzero(beyond[part]))
        step = self.per_cell // self.per_id
        ids = ids[first * step : (end - 1) * step + 1 : step]
        page = ids if self.form == "page" else quotient(ids, self.page_size)
        if self.granularity == "page":
            return self.unit.of_pages(page, v2p), past_table(page, v2p)
        return self.unit.of_tokens(page, remainder(ids, self.page_size), v2p), past_table(page, v2p)

    def _all_at_once(self, request_table: torch.Tensor, lanes: Lanes, v2p: Array, targets: Sequence[Target]) -> int:
        lane = np.repeat(np.arange(lanes.cells.size), lanes.cells)
        step = np.arange(lane.size) - (lanes.cells.cumsum() - lanes.cells)[lane]
        token = (lanes.first[lane] + step) * self.per_cell
        ids = flat(request_table).numpy()[(lanes.row * request_table.stride(0))[lane] + quotient(token, self.per_id)]
        page = ids if self.form == "page" else quotient(ids, self.page_size)
        if self.granularity == "page":
            entry = self.unit.of_pages(page, v2p)
        else:
            entry = self.unit.of_tokens(page, remainder(token if self.form == "page" else ids, self.page_size), v2p)
        for target in targets:
            taken = slice(None) if target.cells is lanes.cells else step < target.cells[lane]
            target.memory[target.begin[lane[taken]] + step[taken]] = entry[taken]
        return past_table(page, v2p)
