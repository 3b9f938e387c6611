"""Memory that a pool takes when it is made; where there is too little, it is said for what."""

from __future__ import annotations

from collections.abc import Callable

import torch


def take(what: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the tensor that `make` makes; an error of torch's says `what` it is, and keeps its type."""
    try:
        return make()
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        raise type(error)(f"{what} cannot be had; make it smaller: {error}") from error
