"""Cells of a batch of lanes: read their ids, translate them, write the entries.

A lane's cells lie side by side, in the request table as in the output. They travel in blocks, those of all lanes
together; the last block of a lane is moved back to end with the lane, and writes again what the block before it wrote.

    lane of 150 cells, blocks of 64:   [0, 64)  [64, 128)  [86, 150)

Tokens of a request table of pages travel by whole pages instead: one id is read for all of a page's tokens. What is
shorter than a block or a page goes cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pagebind.ops.ids import read_ids
from pagebind.ops.ragged import cell, expand, flat, gather, quotient
from pagebind.words import SINK, Form

from pagebind_cpu.entries import Unit, entries, pages

BLOCKS = (64, 8)  # cells
FEWEST = 4096  # cells from which a pass of its own, for blocks or pages, pays


class Source(NamedTuple):
    """Where the ids are, and in which granularity they are wanted."""

    request_table: torch.Tensor  # [max_requests, max_context or max_pages], int32; any row stride
    form: Form
    granularity: Form
    page_size: int

    @property
    def step(self) -> int:
        """Cells of the request table from one id that is wanted to the next, and ids of a page that it stands for."""
        return 1 if self.form == self.granularity else self.page_size

    @property
    def widens(self) -> bool:
        """Whether one cell of the request table gives several entries."""
        return self.form == "page" and self.granularity == "token" and self.page_size > 1


class Lanes(NamedTuple):
    """The cells of each lane: `cells[b]` columns from `first[b]` on, of row `row[b]`."""

    row: torch.Tensor  # [bs], int64
    first: torch.Tensor  # [bs], int64
    cells: torch.Tensor  # [bs], int64


class Target(NamedTuple):
    """Where entries go: the first `cells[b]` of lane b, from `begin[b]` of `memory` on."""

    memory: torch.Tensor  # [n], out_dtype; written
    begin: torch.Tensor  # [bs], int64
    cells: torch.Tensor  # [bs], int64; at most the lane's


def write_entries(source: Source, lanes: Lanes, v2p: torch.Tensor, unit: Unit, targets: Sequence[Target]) -> int:
    """Write the entry of every cell to every target that takes it; return how many cells' ids are past the table."""
    past = 0
    if not all(torch.equal(target.cells, lanes.cells) for target in targets):
        whole = torch.stack([target.cells == lanes.cells for target in targets]).all(0)
        past += _write_cells(source, *_only(~whole, lanes, targets), v2p, unit)
        lanes, targets = _only(whole, lanes, targets)
    left = int(lanes.cells.sum())
    if left >= FEWEST and source.widens:
        return past + _write_pages(source, lanes, targets, v2p, unit)
    for block in BLOCKS:
        if left < FEWEST:
            break
        fits = lanes.cells >= block
        among = _only(fits, lanes, targets)
        cells = int(among[0].cells.sum())
        if cells >= FEWEST:
            past += _write_blocks(source, *among, v2p, unit, block)
            lanes, targets = _only(~fits, lanes, targets)
            left -= cells
    return past + (_write_cells(source, lanes, targets, v2p, unit) if left else 0)


def _only(kept: torch.Tensor, lanes: Lanes, targets: Sequence[Target]) -> tuple[Lanes, list[Target]]:
    """Return the lanes and targets with no cells in any lane but those that `kept`, `[bs]`, says 1 or True for."""
    return lanes._replace(cells=lanes.cells * kept), [t._replace(cells=t.cells * kept) for t in targets]


def _write_blocks(
    source: Source, lanes: Lanes, targets: Sequence[Target], v2p: torch.Tensor, unit: Unit, size: int
) -> int:
    """Write lanes of no cells, or of at least a block of `size`."""
    lane, block = expand((lanes.cells + (size - 1)) // size)
    planned = block * size
    begin = torch.minimum(planned, lanes.cells.index_select(0, lane) - size)
    step = source.step
    at = cell(source.request_table, lanes.row, lanes.first * step).index_select(0, lane).add_(begin, alpha=step)
    ids = _windows(flat(source.request_table), size, step).index_select(0, at)
    entry, past = entries(quotient(ids, step), v2p, unit)
    for target in targets:
        _windows(target.memory, size).index_copy_(0, target.begin.index_select(0, lane).add_(begin), entry)
    if past is None:
        return 0
    # Cells that the moved block shares with the one before it count once.
    fresh = torch.arange(size) >= (planned - begin)[:, None]
    return int((past & fresh).sum())


def _write_pages(source: Source, lanes: Lanes, targets: Sequence[Target], v2p: torch.Tensor, unit: Unit) -> int:
    # A lane is a head, whole pages, and a tail; heads and tails are lanes of less than a page.
    ps = source.page_size
    first_page = quotient(lanes.first + (ps - 1), ps)
    head = torch.minimum(first_page * ps - lanes.first, lanes.cells)
    whole = quotient(lanes.cells - head, ps)
    behind = head + whole * ps
    tail = lanes.cells - behind
    edges = Lanes(lanes.row.repeat(2), torch.cat((lanes.first, lanes.first + behind)), torch.cat((head, tail)))
    begins = [torch.cat((t.begin, t.begin + behind)) for t in targets]
    ends = [Target(t.memory, begin, edges.cells) for t, begin in zip(targets, begins, strict=True)]
    past_edges = _write_cells(source, edges, ends, v2p, unit)

    lane, page = expand(whole)
    if not lane.shape[0]:
        return past_edges
    physical, past = pages(gather(source.request_table, lanes.row[lane], first_page[lane] + page), v2p)
    dead = physical < 0
    base = physical.to(unit.out_dtype) * unit.scale
    entry = base[:, None] + torch.arange(ps, dtype=unit.out_dtype)
    if dead.any():
        entry.masked_fill_(dead[:, None], SINK)
    for target in targets:
        _windows(target.memory, ps).index_copy_(0, (target.begin + head)[lane].add_(page * ps), entry)
    return past_edges + (0 if past is None else int(past.sum()) * ps)


def _write_cells(source: Source, lanes: Lanes, targets: Sequence[Target], v2p: torch.Tensor, unit: Unit) -> int:
    lane, step = expand(lanes.cells)
    if not lane.shape[0]:
        return 0
    row, column = lanes.row.index_select(0, lane), lanes.first.index_select(0, lane).add_(step)
    ids = read_ids(source.form, source.granularity, source.page_size, source.request_table, row, column)
    entry, past = entries(ids, v2p, unit)
    for target in targets:
        at = target.begin.index_select(0, lane).add_(step)
        if target.cells is lanes.cells or torch.equal(target.cells, lanes.cells):
            target.memory.scatter_(0, at, entry)
        else:
            taken = step < target.cells.index_select(0, lane)
            target.memory.scatter_(0, at[taken], entry[taken])
    return 0 if past is None else int(past.sum())


def _windows(memory: torch.Tensor, width: int, step: int = 1) -> torch.Tensor:
    """View memory as every run of `width` cells, `step` apart, that lies in it; row i begins at cell i."""
    return memory.as_strided((memory.shape[0] - (width - 1) * step, width), (1, step))
