"""Who still reads pages: what a stream waits for before bytes move or a vacated page is handed out again.

The host waits for nothing and asks no event: the waits are enqueued on the stream that mutates the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument


class Event(Protocol):
    """What a reader hands in: `torch.cuda.Event`, recorded behind its last read; or anything a stream can wait for."""

    def wait(self) -> None:
        """Make the current stream wait for it."""


class Readers:
    """Registered readers of a pool, and the move gate."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._reading: list[Event] = []
        self._vacated = False  # a page was freed or moved while somebody read
        self._held = 0
        self._moved: Event | None = None  # behind the last move

    @property
    def held(self) -> bool:
        """Whether the gate is closed: nothing may move."""
        return self._held > 0

    def reading(self, event: Event) -> None:
        """Register a reader: `event` is recorded behind its last read of any page."""
        if not callable(getattr(event, "wait", None)):
            raise InvalidArgument(f"event is a {type(event).__name__}; it must have wait(), as torch.cuda.Event has")
        self._reading.append(event)

    def join(self) -> None:
        """Make the current stream wait for every registered reader, and forget them."""
        for event in self._reading:
            event.wait()
        self._reading.clear()
        self._vacated = False

    def vacate(self) -> None:
        """Note that pages were vacated: who takes pages next may get them."""
        self._vacated = bool(self._reading)

    def before_take(self) -> None:
        """Make the current stream wait where a page that somebody still reads may be handed out again."""
        if self._vacated:
            self.join()

    def moved(self) -> None:
        """Note that moves were enqueued on the current stream."""
        if self._on_gpu:
            event = torch.cuda.Event()
            event.record()
            self._moved = event

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Close the gate, ordered behind the moves enqueued before; it opens again with the last holder."""
        if self._moved is not None:
            self._moved.wait()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
