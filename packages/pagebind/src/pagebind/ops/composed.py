"""A launch made of core launches and torch: what an operation is on a backend that has no planner for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pagebind.errors import CaptureError
from pagebind.operation import Launch


class Composed:
    """The function that is the call of `operation`, and the core launches it uses.

    Values, counters and contracts 1, 2 and 4 to 8 hold; it waits and allocates, so inside a capture it is refused.
    """

    __slots__ = ("_on_gpu", "_operation", "_parts", "_run")

    def __init__(self, operation: str, device: torch.device, run: Callable[..., None], *parts: Launch) -> None:
        self._operation = operation
        self._on_gpu = device.type == "cuda"
        self._run = run
        self._parts = parts

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch. Raises CaptureError before anything is launched where the current stream is capturing."""
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"{self._operation} is composed from core operations here, which waits and cannot be captured; call it "
                f"outside the capture, or plan it with a backend that has {self._operation} itself"
            )
        self._run(*args, **kwargs)

    def warmup(self) -> None:
        """Compile what the core launches need."""
        for part in self._parts:
            part.warmup()
