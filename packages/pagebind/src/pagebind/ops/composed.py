"""A launch made of core launches and torch: what an operation is on a backend that has no planner for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagebind.operation import Launch


class Composed:
    """The function that is the call, and the core launches it uses.

    Values, counters and contracts 1, 2 and 4 to 8 hold; it may wait and allocate, so a capture refuses it.
    """

    __slots__ = ("_parts", "_run")

    def __init__(self, run: Callable[..., None], *parts: Launch) -> None:
        self._run = run
        self._parts = parts

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch."""
        self._run(*args, **kwargs)

    def warmup(self) -> None:
        """Compile what the core launches need."""
        for part in self._parts:
            part.warmup()
