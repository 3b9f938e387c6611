"""What a failed comparison hands on beside its words: the cells that differ as small grids, and the call they are of.

A grid is a window of a tensor, at most 64 x 64 cells around the first difference. A row of it is a string,
`"16 17 . -1"`: int64 is exact in it everywhere, and `.` is poison, a cell that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

MOST_ROWS = MOST_COLUMNS = 64
"""Size of the window around a difference."""
MOST_INPUT_ROWS, MOST_INPUTS = 16, 24
"""Rows of a tensor as it was before the call, from the first on; tensors of a call."""
UNWRITTEN = "."
SPARE = "word "
"""How the name of a state block's word begins that has none of its own."""

Grid = dict[str, Any]


class Difference(AssertionError):
    """Tensors hold what they must not: `tensors` are grids of them, `call` is the call they are of."""

    def __init__(self, complaint: str, tensors: Sequence[Grid] = (), call: Mapping[str, Any] | None = None) -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.tensors = list(tensors)
        self.call = call

    def of(self, call: Mapping[str, Any], told: str) -> Difference:
        """Return the same of a call, with the words for it at the end of the message."""
        other = Difference(f"{self}\n{told}", self.tensors, call)
        other.complaint = self.complaint
        return other

    def record(self) -> dict[str, Any]:
        """Return what a report keeps."""
        return {"call": self.call, "tensors": self.tensors}


def joined(differences: Sequence[Difference]) -> Difference:
    """Return the differences of several tensors as one."""
    tensors = [tensor for one in differences for tensor in one.tensors]
    return Difference("\n".join(one.complaint for one in differences), tensors)


def found_in(error: BaseException | None) -> Difference | None:
    """Return the difference that an error is, came from, or holds as one of several failed examples."""
    return next(_all_in(error), None)


def _all_in(error: BaseException | None) -> Iterator[Difference]:
    if isinstance(error, Difference):
        yield error
    for inside in getattr(error, "exceptions", ()):
        yield from _all_in(inside)
    if error is not None:
        yield from _all_in(error.__cause__)


def differing(
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor | None,
    poison: int,
    outside: int = 0,
    words: Sequence[str] | None = None,
) -> Grid:
    """Return the grid of a tensor that differs; `expected` None where the contract leaves open what it has to hold.

    `outside` counts what was written past its cells; `words` names the columns of a state block, of which spare ones
    that hold nothing and have to hold nothing are left out.
    """
    cells, wanted = _rows(actual), None if expected is None else _rows(expected)
    wrong = torch.nonzero(cells != wanted).tolist() if wanted is not None else []
    grid: Grid = {"name": name, "shape": list(actual.shape), "differing": len(wrong), "outside": outside}
    if words is not None and wanted is not None:
        told = _telling(words, torch.cat([cells, wanted]), poison)
        cells, wanted = cells[:, told], wanted[:, told]
        grid["words"] = [words[i] for i in told]
        wrong = torch.nonzero(cells != wanted).tolist()
    at = wrong[0] if wrong else (0, 0)
    row, column = (_first(at[i], cells.shape[i], most) for i, most in enumerate((MOST_ROWS, MOST_COLUMNS)))
    window = (slice(row, row + MOST_ROWS), slice(column, column + MOST_COLUMNS))
    return {
        **grid,
        "row": row,
        "column": column,
        "expected": None if wanted is None else _strings(wanted[window], poison),
        "actual": _strings(cells[window], poison),
    }


def before(name: str, cells: torch.Tensor, poison: int, words: Sequence[str] | None = None) -> Grid:
    """Return the grid of a tensor as it was before a call."""
    rows = _rows(cells)
    grid: Grid = {"name": name, "shape": list(cells.shape)}
    if words is not None:
        told = _telling(words, rows, poison)
        rows, grid["words"] = rows[:, told], [words[i] for i in told]
    return {**grid, "cells": _strings(rows[:MOST_INPUT_ROWS, :MOST_COLUMNS], poison)}


def _telling(words: Sequence[str], rows: torch.Tensor, poison: int) -> list[int]:
    spare = [word.startswith(SPARE) for word in words]
    empty = (rows == poison) | ((rows == 0) & torch.tensor(spare))
    return torch.nonzero(~empty.all(dim=0)).flatten().tolist()


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else tensor.reshape(1, -1)


def _first(at: int, size: int, most: int) -> int:
    # The difference stands in the middle, where there is that much on both sides.
    return max(0, min(at - most // 2, size - most))


def _strings(rows: torch.Tensor, poison: int) -> list[str]:
    return [" ".join(UNWRITTEN if cell == poison else str(cell) for cell in row) for row in rows.tolist()]
