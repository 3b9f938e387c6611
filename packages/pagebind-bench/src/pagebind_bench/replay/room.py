"""What the scheduler asks about room: of a plain count of pages, or of a pool whose kinds of page share their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pagebind.pool import UnifiedPool

from pagebind_bench.replay.job import Leaving
from pagebind_bench.replay.kinds import Kinds, Need
from pagebind_bench.replay.prefix import Block


class Room(Protocol):
    """Where a step's pages come from. Pages that preemption and eviction give back are there for the same step."""

    def begin(self) -> None:
        """Begin to plan a step: nothing is taken by it yet."""

    def short(self, need: Need) -> int:
        """Return how many pages of full attention must come back before `need` fits beside what the step took."""

    def take(self, need: Need) -> None:
        """Take pages for the step; they fit."""

    def release(self, leaving: Leaving) -> None:
        """Take back what a preempted request held."""

    def evict(self, blocks: Sequence[Block]) -> None:
        """Take back what the prefix cache has forgotten."""

    def give(self, pages: int) -> None:
        """Take back pages that the end of a step returns."""


class Count:
    """A pool of one kind, as a number of free pages: the loop makes the calls that return them, later and together."""

    def __init__(self, pages: int) -> None:
        self.free = pages

    def begin(self) -> None:
        """The count goes on."""

    def short(self, need: Need) -> int:
        """Return what is missing; below 0 where pages are left."""
        return need.full - self.free

    def take(self, need: Need) -> None:
        """Count pages out."""
        self.free -= need.full

    def release(self, leaving: Leaving) -> None:
        """Count pages in."""
        self.free += leaving.pages

    def evict(self, blocks: Sequence[Block]) -> None:
        """Count pages in."""
        self.free += sum(block.pages for block in blocks)

    def give(self, pages: int) -> None:
        """Count pages in."""
        self.free += pages


class PoolRoom:
    """A pool itself: whether a joint demand fits is its own exact answer, so pages come back at once."""

    def __init__(
        self,
        pool: UnifiedPool,
        kinds: Kinds,
        release: Callable[[Sequence[Leaving]], None],
        free_blocks: Callable[[Sequence[Block]], None],
    ) -> None:
        self.pool, self.kinds = pool, kinds
        self._release, self._free_blocks = release, free_blocks
        self.taken = Need()
        """What the step takes so far; the loop makes those calls after the plan."""

    def begin(self) -> None:
        """Nothing is taken yet."""
        self.taken = Need()

    def short(self, need: Need) -> int:
        """Return 0 where the demand fits jointly; else the missing pages, or 1 where another kind is short."""
        total = self.taken + need
        if self.pool.can_reserve(self.kinds.demand(total)):
            return 0
        return max(total.full - self.pool.free_pages(self.kinds.owner), 1)

    def take(self, need: Need) -> None:
        """Note pages that the loop takes after the plan."""
        self.taken += need

    def release(self, leaving: Leaving) -> None:
        """Release the row now."""
        self._release([leaving])

    def evict(self, blocks: Sequence[Block]) -> None:
        """Free the blocks' pages now."""
        self._free_blocks(blocks)

    def give(self, pages: int) -> None:
        """Nothing to note: the loop returns them to the pool before the next plan."""
