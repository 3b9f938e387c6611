"""The prefix cache: blocks of finished prompts, shared by count, evicted oldest first. Host ints only.

A block of `block_tokens` tokens owns the pages whose last token lies in it, so only whole pages are ever shared:

    tokens   0 ........ T - 1 | T ........ 2T - 1 | 2T ... n - 1       T = block_tokens, n = the prompt's tokens
    pages    [ 0 ][ 1 ][ 2   ][ 3 ][ 4 ][ 5  ][ 6 ][ 7 | 8 ]           block i owns [T i // ps, min(T (i + 1), n) // ps)
             block 0's         block 1's         block 2's  ^ partly filled: stays its request's own

Invariants: `cached == sum(pages of all blocks)`; `evictable == sum(pages of blocks without users)`; a block is used at
least as often as those that continue it, and stands behind them in the order of eviction, so no block loses its start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(eq=False, slots=True)
class Block:
    """One cached block: pages `[first, end)` of every row that begins with it."""

    hash_id: int
    number: int
    first: int
    end: int
    users: int = 0
    handle: Any = None
    """Where its page ids are; the cache never looks."""
    seen: list[int] | None = None
    """Its physical pages when they were last checked."""

    @property
    def pages(self) -> int:
        """Pages it owns."""
        return self.end - self.first


class Kept(NamedTuple):
    """What keeping a prompt came to.

    The row's pages `[before, swapped)` are in the cache already, as somebody else's: the row changes over to those, and
    its own come back. Pages `[swapped, end)` become those of the `new` blocks.
    """

    blocks: list[Block]
    new: list[Block]
    before: int
    swapped: int
    end: int


class PrefixCache:
    """Blocks by hash. `block_tokens` 0 caches nothing."""

    def __init__(self, page_size: int, block_tokens: int) -> None:
        self.page_size = page_size
        self.block_tokens = block_tokens
        self.cached = 0
        self.evictable = 0
        self._blocks: dict[int, Block] = {}
        self._idle: OrderedDict[Block, None] = OrderedDict()  # without users; the first is evicted first

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, hash_ids: Sequence[int], input_tokens: int, most: int) -> tuple[list[Block], int]:
        """Return the cached blocks that a prompt begins with, and their pages, within its first `most` tokens.

        A block is used whole or not at all, so that a request never keeps pages alive that it does not use. Nothing
        is held yet.
        """
        found: list[Block] = []
        pages = 0
        for number, hash_id in enumerate(hash_ids if self.block_tokens else ()):
            block = self._blocks.get(hash_id)
            _, end = self._span(number, input_tokens)
            if block is None or block.number != number or block.end != end or end > most // self.page_size:
                break
            found.append(block)
            pages = end
        return found, pages

    def idle_pages(self, blocks: Iterable[Block]) -> int:
        """Return the evictable pages among some blocks."""
        return sum(block.pages for block in blocks if not block.users)

    def hold(self, blocks: Iterable[Block]) -> None:
        """Count a user in for every block."""
        for block in blocks:
            if not block.users:
                del self._idle[block]
                self.evictable -= block.pages
            block.users += 1

    def drop(self, blocks: Sequence[Block]) -> None:
        """Count a user out of every block; one without users can be evicted, after those that continue it."""
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                self._idle[block] = None
                self.evictable += block.pages

    def keep(self, held: list[Block], shared: int, hash_ids: Sequence[int], input_tokens: int) -> Kept:
        """Take a finished prompt in; its row begins with `held` blocks of `shared` pages, the rest is its own."""
        blocks, new = list(held), list[Block]()
        swapped = end = shared
        rest = hash_ids[len(held) :] if self.block_tokens else ()
        for number, hash_id in enumerate(rest, start=len(held)):
            first, mine = self._span(number, input_tokens)
            block = self._blocks.get(hash_id)
            if block is None:
                block = Block(hash_id, number, first, mine, users=1)
                self._blocks[hash_id] = block
                self.cached += block.pages
                new.append(block)
            elif new or block.number != number or block.end != mine:
                break  # one of two prompts ends inside this block: what follows stays the request's own
            else:
                self.hold([block])
                swapped = mine
            blocks.append(block)
            end = mine
        return Kept(blocks, new, shared, swapped, end)

    def evict(self, pages: int) -> list[Block]:
        """Forget blocks without users, oldest first, until they come to `pages` pages or none is left; return them."""
        evicted: list[Block] = []
        while pages > 0 and self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._blocks[block.hash_id]
            self.evictable -= block.pages
            self.cached -= block.pages
            pages -= block.pages
            evicted.append(block)
        return evicted

    def _span(self, number: int, input_tokens: int) -> tuple[int, int]:
        start = number * self.block_tokens
        return start // self.page_size, min(start + self.block_tokens, input_tokens) // self.page_size
