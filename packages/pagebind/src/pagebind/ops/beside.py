"""A second read table beside a first: what its plan decides, what its call brings, and that the two lie apart.

    request_table, req_rows, seq_lens  ->  v2p of full attention   ->  out
                                       ->  v2p of a sliding window ->  beside.out

A model with full and sliding-window attention needs both in every step, over the same rows and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import need_count


@dataclass(frozen=True)
class Beside:
    """What the second table's plan decides; everything else it shares with the first. `num_physical` counts the sink.

    `windowed` plans for calls with `beside.starts`.
    """

    num_physical: int
    multiplier: int = 1
    windowed: bool = False

    def __post_init__(self) -> None:
        need_count("beside.num_physical", self.num_physical, 1)
        need_count("beside.multiplier", self.multiplier, 1)


class SecondTable(NamedTuple):
    """What a call with a second table brings for it; each as its counterpart of the first."""

    v2p: torch.Tensor  # [num_virtual + 1], index_dtype
    out: torch.Tensor  # [>= bs, width], out_dtype; any row stride; written; its width and rows are its own
    starts: torch.Tensor | None = None  # [bs], length_dtype; tokens; with a windowed Beside
    state: torch.Tensor | None = None  # [32], int64; counts clipped, bad_row, bad_id of this table; may be the first's


def need_apart(name: str, value: torch.Tensor, of: str, other: torch.Tensor) -> None:
    """Refuse two 2-D outputs of a call that share cells; rows that alternate in one buffer do not."""
    if value.is_meta or 0 in (value.numel(), other.numel()):
        return
    unit = value.element_size()
    begin, first = value.data_ptr() // unit, other.data_ptr() // unit
    if begin >= first + _span(other) or first >= begin + _span(value):
        return
    stride = value.stride(0)
    if stride == other.stride(0) and stride > 0:
        ahead = (first - begin) % stride  # columns from a row of `value` to the next row of `other`
        if value.shape[1] <= ahead and ahead + other.shape[1] <= stride:
            return
    raise InvalidArgument(f"{name} shares memory with {of}; pass a tensor of its own")


def _span(table: torch.Tensor) -> int:
    # Elements from the first cell of a table to behind its last.
    return (table.shape[0] - 1) * table.stride(0) + table.shape[1]
