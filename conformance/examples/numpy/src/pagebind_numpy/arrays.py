"""What all planners do with arrays of NumPy, which lie over the memory of torch's tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from pagebind.words import COUNTERS

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def quotient(values: Array, divisor: int) -> Array:
    """Return `values // divisor`; by a shift where it can be one, which costs a fraction of a division."""
    if divisor == 1:
        return values
    result: Array = values >> (divisor.bit_length() - 1) if divisor & (divisor - 1) == 0 else values // divisor
    return result


def remainder(values: Array, divisor: int) -> Array:
    """Return `values % divisor`; by a mask where it can be one."""
    result: Array = values & (divisor - 1) if divisor & (divisor - 1) == 0 else values % divisor
    return result


def count(state: torch.Tensor | None, **faults: int | np.intp) -> None:
    """Add to the counters of a state block by name; nothing where there is none."""
    if state is not None:
        words = state.numpy()
        for name, found in faults.items():
            words[COUNTERS[name]] += found
