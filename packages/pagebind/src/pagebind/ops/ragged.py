"""Ragged batches in torch: a count a lane becomes one flat list of (lane, step) pairs, and tables become flat memory.

count  [2, 0, 3]   ->   lane  0 0 2 2 2
step  0 1 0 1 2
"""

from __future__ import annotations

import torch


def expand(count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(lane, step)`, int64 `[sum(count)]`: lane b stands `count[b]` times, with steps from 0.

    `count` is int64 `[bs]`, none negative. Waits for the device.
    """
    lane = torch.repeat_interleave(count)
    step = torch.arange(lane.shape[0], device=count.device).sub_(begins(count).index_select(0, lane))
    return lane, step


def begins(count: torch.Tensor) -> torch.Tensor:
    """Return how many items lie before each lane, int64 `[bs]`."""
    return count.cumsum(0) - count


def flat(table: torch.Tensor) -> torch.Tensor:
    """View a 2-D table of any row stride as its memory, first cell to last; `cell` says which is which."""
    rows, width = table.shape
    length = (rows - 1) * table.stride(0) + width if rows and width else 0
    return table.as_strided((length,), (1,))


def cell(table: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return where cells lie in `flat(table)`, int64; `row` and `column` are int64 and inside the table."""
    return row * table.stride(0) + column


def gather(table: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return `table[row, column]`, a flat list of cells."""
    return flat(table).index_select(0, cell(table, row, column))


def first_of_each(ids: torch.Tensor, size: int) -> torch.Tensor:
    """Return which lanes hold an id that no earlier lane holds, bool `[n]`; `ids` is int64 `[n]` in `[0, size)`."""
    lanes = torch.arange(ids.shape[0], device=ids.device)
    first = torch.empty(size, dtype=torch.int64, device=ids.device)  # only cells that ids name are written and read
    first.scatter_reduce_(0, ids, lanes, "amin", include_self=False)
    return first.index_select(0, ids) == lanes


def quotient(values: torch.Tensor, divisor: int) -> torch.Tensor:
    """Return `values // divisor`; by a shift where it can be one, which costs a fraction of a division."""
    if divisor == 1:
        return values
    return values >> (divisor.bit_length() - 1) if divisor & (divisor - 1) == 0 else values // divisor
