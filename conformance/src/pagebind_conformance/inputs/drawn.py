"""What an input is: the tensors of one call as arrays, how each lies in memory, and the sub-pool they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pagebind import LaunchOptions, Operation

from pagebind_conformance.guarded import Layout
from pagebind_conformance.oracle import Chain, SubPool

Ints = NDArray[Any]

NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
}

STRAIGHT = Layout()


class Cells(NamedTuple):
    """One tensor: its values, or None where it is all poison, as an output is before a call."""

    values: Ints | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: Layout = STRAIGHT


def cells(values: Any, dtype: torch.dtype, layout: Layout = STRAIGHT) -> Cells:
    """Return a tensor of these values."""
    array = np.asarray(values, dtype=NUMPY[dtype])
    return Cells(array, dtype, array.shape, layout)


def poison(dtype: torch.dtype, *shape: int, layout: Layout = STRAIGHT) -> Cells:
    """Return a tensor that is all poison."""
    return Cells(None, dtype, shape, layout)


class Pool(NamedTuple):
    """A sub-pool as arrays; fields as the oracle's SubPool."""

    v2p: Ints
    p2v: Ints
    virtual_stack: Ints
    hole_stack: Ints
    virtual_top: int
    hole_top: int
    watermark: int
    epoch: int = 0
    seat: int = 0
    chain: Chain | None = None

    def listed(self) -> SubPool:
        """Return the same as lists, for the oracle."""
        v2p, p2v, virtual_stack, hole_stack = (part.tolist() for part in self[:4])
        return SubPool(v2p, p2v, virtual_stack, hole_stack, *self[4:])

    def positions(self) -> SubPool:
        """Return its positions alone, which its state block tells."""
        return SubPool([], [], [], [], *self[4:])


@dataclass(frozen=True)
class Input:
    """One call: `tensors` by argument name, those of a second table as `beside.NAME`, and what is no tensor.

    Of an operation that takes tables, those of the `pool` are not among `tensors`. `open` says that lanes repeat an id,
    or the like, so that the contract leaves open which of them is served: backends may differ in it.
    """

    tensors: Mapping[str, Cells]
    plain: Mapping[str, Any] = field(default_factory=dict)
    pool: Pool | None = None
    open: bool = False
    in_place: bool = False
    """Whether `out` is `ids` itself."""


@dataclass(frozen=True)
class Plan:
    """One plan: what is planned, and how; number and seed are those of its inputs too."""

    number: int
    seed: int
    operation: Operation[Any, Any]
    spec: Any
    checks: str
    options: LaunchOptions | None
    small: bool
    """Whether inputs have few lanes and cells, for code that runs slowly."""
