"""Look at state blocks without waiting: copies into pinned memory, and the newest that has arrived."""

from __future__ import annotations

import torch

from pagebind.words import COUNTERS

SLOTS = 4
"""Copies under way at most; a poll that finds all of them pending enqueues none."""


class Poll:
    """A ring of pinned copies of the state blocks of a pool, int64 `[sub-pools, STATE_WORDS]`."""

    def __init__(self, blocks: torch.Tensor) -> None:
        self._blocks = blocks
        pinned = blocks.device.type == "cuda"
        self._ring = torch.zeros((SLOTS, *blocks.shape), dtype=torch.int64, pin_memory=pinned)
        self._arrived = [torch.cuda.Event() for _ in range(SLOTS)] if pinned else []
        self._sent = 0  # copies enqueued so far; copy n lies in slot n % SLOTS
        self._newest = -1  # the newest that is known to have arrived

    def __call__(self) -> list[dict[str, int]]:
        """Enqueue a copy and return each block's counters in the newest that has arrived, zeros before the first."""
        if self._blocks.is_meta:
            return self._counters(0)
        if not self._arrived:
            self._ring[0] = self._blocks
            return self._counters(0)
        while self._newest + 1 < self._sent and self._arrived[(self._newest + 1) % SLOTS].query():
            self._newest += 1
        none = [dict.fromkeys(COUNTERS, 0) for _ in range(self._blocks.shape[0])]
        told = self._counters(self._newest % SLOTS) if self._newest >= 0 else none
        if self._sent - max(self._newest, 0) < SLOTS:  # the slot of the newest stays whole until the next arrives
            slot = self._sent % SLOTS
            self._ring[slot].copy_(self._blocks, non_blocking=True)
            self._arrived[slot].record()
            self._sent += 1
        return told

    def _counters(self, slot: int) -> list[dict[str, int]]:
        return [{name: words[word] for name, word in COUNTERS.items()} for words in self._ring[slot].tolist()]
