"""Cells of a batch of lanes: read their ids, translate them, write the entries.

A lane's cells lie side by side, in the request table as in the output, so they travel in blocks; the last block of a
lane is moved back to end with the lane, and writes again what the block before it wrote.

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

BLOCK = 64
FEWEST = 4096  # cells from which a second pass, for blocks or pages, pays


class Source(NamedTuple):
    """Where the ids are, and in which granularity they are wanted."""

    request_table: torch.Tensor  # [max_requests, max_context or max_pages], int32; any row stride
    form: Form
    granularity: Form
    page_size: int


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
    in_bulk = int(lanes.cells.sum()) >= FEWEST and all(torch.equal(t.cells, lanes.cells) for t in targets)
    if not in_bulk:
        return _write_cells(source, lanes, v2p, unit, targets)
    if source.form == "page" and source.granularity == "token":
        return _write_pages(source, lanes, v2p, unit, targets)
    return _write_blocks(source, lanes, v2p, unit, targets)


def _write_blocks(source: Source, lanes: Lanes, v2p: torch.Tensor, unit: Unit, targets: Sequence[Target]) -> int:
    short = lanes.cells < BLOCK
    rest = lanes.cells.masked_fill(~short, 0)
    past_rest = _write_cells(source, lanes._replace(cells=rest), v2p, unit, [t._replace(cells=rest) for t in targets])

    lane, block = expand((lanes.cells.masked_fill(short, 0) + (BLOCK - 1)) // BLOCK)
    if not lane.shape[0]:
        return past_rest
    planned = block * BLOCK
    begin = torch.minimum(planned, lanes.cells[lane] - BLOCK)
    table = source.request_table
    step = 1 if source.form == source.granularity else source.page_size
    at = cell(table, lanes.row[lane], (lanes.first[lane] + begin) * step)
    ids = _windows(flat(table), BLOCK, step).index_select(0, at)
    entry, past = entries(quotient(ids, step), v2p, unit)
    for target in targets:
        _windows(target.memory, BLOCK).index_copy_(0, target.begin[lane] + begin, entry)
    if past is None:
        return past_rest
    # Cells that the moved block shares with the one before it count once.
    fresh = torch.arange(BLOCK) >= (planned - begin)[:, None]
    return past_rest + int((past & fresh).sum())


def _write_pages(source: Source, lanes: Lanes, v2p: torch.Tensor, unit: Unit, targets: Sequence[Target]) -> int:
    # A lane is a head, whole pages, and a tail; heads and tails are lanes of less than a page.
    ps = source.page_size
    first_page = quotient(lanes.first + (ps - 1), ps)
    head = torch.minimum(first_page * ps - lanes.first, lanes.cells)
    whole = quotient(lanes.cells - head, ps)
    behind = head + whole * ps
    tail = lanes.cells - behind
    edges = Lanes(lanes.row.repeat(2), torch.cat((lanes.first, lanes.first + behind)), torch.cat((head, tail)))
    past_edges = _write_cells(
        source,
        edges,
        v2p,
        unit,
        [Target(t.memory, torch.cat((t.begin, t.begin + behind)), edges.cells) for t in targets],
    )

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


def _write_cells(source: Source, lanes: Lanes, v2p: torch.Tensor, unit: Unit, targets: Sequence[Target]) -> int:
    lane, step = expand(lanes.cells)
    if not lane.shape[0]:
        return 0
    row, column = lanes.row.index_select(0, lane), lanes.first.index_select(0, lane).add_(step)
    ids = read_ids(source.form, source.granularity, source.page_size, source.request_table, row, column)
    entry, past = entries(ids, v2p, unit)
    for target in targets:
        at = target.begin.index_select(0, lane).add_(step)
        if torch.equal(target.cells, lanes.cells):
            target.memory.scatter_(0, at, entry)
        else:
            taken = step < target.cells.index_select(0, lane)
            target.memory.scatter_(0, at[taken], entry[taken])
    return 0 if past is None else int(past.sum())


def _windows(memory: torch.Tensor, width: int, step: int = 1) -> torch.Tensor:
    """View memory as every run of `width` cells, `step` apart, that lies in it; row i begins at cell i."""
    return memory.as_strided((memory.shape[0] - (width - 1) * step, width), (1, step))
