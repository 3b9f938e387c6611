"""Whether tensors are of the same kind as those of an earlier call, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import torch

from pagebind.repeat.signature import Tensors, given

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # a torch without it: tensors are compared in Python
    TensorGuards = None  # type: ignore[assignment,misc]

Alike = Callable[..., bool]

_facts = attrgetter("__class__", "shape", "dtype", "device", "layout", "requires_grad")


def alike(tensors: Tensors) -> Alike:
    """Return a test whether as many tensors have the types, shapes, strides, dtypes and devices of these.

    Where there is None among them the test does not look: calls with another None have another key.
    """
    there = tuple(tensor for tensor in tensors if tensor is not None)
    test = _alike_in_torch(there) or alike_in_python(there)
    return test if len(there) == len(tensors) else given(tuple(tensor is not None for tensor in tensors))(test)


def _alike_in_torch(tensors: tuple[torch.Tensor, ...]) -> Alike | None:
    if TensorGuards is None:
        return None
    try:
        check: Alike = TensorGuards(
            *tensors,
            dynamic_dims_sizes=cast("Any", [list(tensor.shape) for tensor in tensors]),
            dynamic_dims_strides=cast("Any", [list(tensor.stride()) for tensor in tensors]),
        ).check
        return check if check(*tensors) else None
    except (TypeError, RuntimeError, ValueError, SystemError):
        return None  # it is no public interface: where it has changed, Python compares


def alike_in_python(tensors: tuple[torch.Tensor, ...]) -> Alike:
    """Return the same test, which takes several times as long."""
    facts = [(_facts(tensor), tensor.stride()) for tensor in tensors]

    def check(*others: torch.Tensor) -> bool:
        return all(type(other) is torch.Tensor for other in others) and facts == [
            (_facts(other), other.stride()) for other in others
        ]

    return check
