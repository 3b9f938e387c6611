"""A second read table beside a first: what its plan decides, and what its call brings.

    request_table, req_rows, seq_lens  ->  v2p of full attention   ->  out
                                       ->  v2p of a sliding window ->  beside.out

A model with full and sliding-window attention needs both in every step, over the same rows and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

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
