"""Look at a state block without waiting: copies into pinned memory, and the newest that has arrived."""

from __future__ import annotations

import torch

from pagebind.words import COUNTERS, STATE_WORDS

SLOTS = 4
"""Copies under way at most; a poll that finds all of them pending enqueues none."""


class Poll:
    """A ring of pinned copies of one state block."""

    def __init__(self, state: torch.Tensor) -> None:
        self._state = state
        pinned = state.device.type == "cuda"
        self._ring = torch.zeros((SLOTS, STATE_WORDS), dtype=torch.int64, pin_memory=pinned)
        self._arrived = [torch.cuda.Event() for _ in range(SLOTS)] if pinned else []
        self._sent = 0  # copies enqueued so far; copy n lies in slot n % SLOTS
        self._newest = -1  # the newest that is known to have arrived

    def __call__(self) -> dict[str, int]:
        """Enqueue a copy and return the counters of the newest that has arrived, zeros before the first."""
        if not self._arrived:
            self._ring[0] = self._state
            return self._counters(0)
        while self._newest + 1 < self._sent and self._arrived[(self._newest + 1) % SLOTS].query():
            self._newest += 1
        told = self._counters(self._newest % SLOTS) if self._newest >= 0 else dict.fromkeys(COUNTERS, 0)
        if self._sent - max(self._newest, 0) < SLOTS:  # the slot of the newest stays whole until the next arrives
            slot = self._sent % SLOTS
            self._ring[slot].copy_(self._state, non_blocking=True)
            self._arrived[slot].record()
            self._sent += 1
        return told

    def _counters(self, slot: int) -> dict[str, int]:
        words = self._ring[slot].tolist()
        return {name: words[word] for name, word in COUNTERS.items()}
