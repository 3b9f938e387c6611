"""Random parts of inputs: page tables, sub-pools, request tables and lanes, sound with a share of garbage.

Everything is drawn by one generator, which begins at a seed of its own for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import numpy as np
import torch

from pagebind_conformance import generate
from pagebind_conformance.generate import LIMITS, STACK_POISON
from pagebind_conformance.guarded import Layout
from pagebind_conformance.inputs.drawn import Ints, Pool
from pagebind_conformance.oracle import Block, Chain

T = TypeVar("T")

EXTREMES = (-1, -(2**31) - 1, -(2**63), 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
PAST = 10**6
"""An id past every table that is drawn."""


class Draw:
    """A seeded source. `scale` is 0 for few lanes and cells, 1 for dozens, 2 for more than a block has threads.

    One input in three is `coarse`: its sizes are the ends of their ranges or the middle, so that shapes come again.
    """

    def __init__(self, seed: Sequence[int], *, small: bool) -> None:
        self.rng = np.random.default_rng(list(seed))
        self.small = small
        self.coarse = self.chance(0.33)
        self.scale = 0 if small else int(np.searchsorted((0.82, 0.985), self.rng.random()))

    # ---- numbers ----

    def upto(self, low: int, high: int) -> int:
        """Return an int of `[low, high]`, both among them."""
        if self.coarse:
            return (low, (low + high) // 2, high)[int(self.rng.integers(3))]
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        """Return True so often."""
        return bool(self.rng.random() < share)

    def size(self, *most: int) -> int:
        """Return a size up to that of the scale, and above that of the one below; `most` has one for each."""
        high = most[self.scale]
        low = most[self.scale - 1] if self.scale else 0
        return self.upto(min(low, high), high)

    def layout(self, row_gap: int = 5) -> Layout:
        """Return how a tensor lies: half of them straight."""
        if self.chance(0.5):
            return Layout()
        return Layout(row_gap=self.upto(0, row_gap), shift=self.upto(0, 3))

    # ---- ids and tables ----

    def spoil(self, values: Ints, share: float, junk: Sequence[int]) -> Ints:
        """Return the values, that share of them replaced by junk."""
        if share and values.size:
            wrong = self.rng.random(values.shape) < share
            values[wrong] = np.array(junk, dtype=values.dtype)[self.rng.integers(0, len(junk), int(wrong.sum()))]
        return values

    def page_table(self, num: int, pages: int) -> Ints:
        """Return `v2p` of `num` ids over `pages` pages: many bound, some tombstones, now and then another negative."""
        table = np.full(num + 1, -1, dtype=np.int64)
        bound = min(num - 1, pages - 1)
        bound = self.upto(bound // 2, bound)
        at = 1 + self.rng.permutation(num - 1)[:bound]
        table[at] = 1 + self.rng.permutation(pages - 1)[:bound]
        if self.chance(0.1):
            table[:-1] = self.spoil(table[:-1], 0.1, (-7, -(2**31)))
        table[0] = 0
        return table

    def sub_pool(self, num_virtual: int, num_physical: int, live: int, holes: int, seat: int = 0) -> Pool:
        """Return a sub-pool of `live` bound pages among `holes` freed ones, as many as fit, right above `seat`."""
        live = min(live, num_virtual - 1, num_physical - 1 - seat)
        holes = min(holes, num_physical - 1 - seat - live)
        span = seat + 1 + self.rng.permutation(live + holes)
        virtual = 1 + self.rng.permutation(num_virtual - 1)
        v2p, p2v = np.full(num_virtual + 1, -1, dtype=np.int64), np.full(num_physical + 1, -1, dtype=np.int64)
        v2p[0] = p2v[0] = 0
        v2p[virtual[:live]], p2v[span[:live]] = span[:live], virtual[:live]
        ids, pages = virtual[live:], span[live:]
        virtual_stack, hole_stack = (np.full(num, STACK_POISON, dtype=np.int64) for num in (num_virtual, num_physical))
        virtual_stack[: len(ids)], hole_stack[: len(pages)] = ids, pages
        epoch = self.upto(0, 99)
        return Pool(v2p, p2v, virtual_stack, hole_stack, len(ids), len(pages), live + holes, epoch, seat)

    def chained(self, live: int, num_virtual: int = 70) -> Pool:
        """Return a sub-pool of one to four that share some bytes, often to the last one; few pages."""
        page_bytes = [self.one((1, 1, 2, 3, 5, 16)) for _ in range(self.upto(1, 4))]
        total = 2 * sum(page_bytes) + self.upto(0, 150)
        blocks = generate.filled_blocks(Random(self.upto(0, 2**32)), page_bytes, total)
        place = self.upto(0, len(blocks) - 1)
        own = blocks[place]
        live = min(live, own.watermark, num_virtual - 1)
        pages = generate.num_pages(own, total)
        pool = self.sub_pool(num_virtual, pages, live, own.watermark - live, own.seat)
        return pool._replace(watermark=own.watermark, chain=Chain(tuple(blocks), place))

    def borrowing(self, pool: Pool, lost: float = 0.0) -> Pool:
        """Return the sub-pool as one that borrows its ids; it has `lost` a share of its pages."""
        stack = np.full_like(pool.virtual_stack, STACK_POISON)
        pool = pool._replace(virtual_stack=stack, virtual_top=0)
        gone = np.flatnonzero((pool.v2p > 0) & (self.rng.random(pool.v2p.shape) < lost))
        pool.p2v[pool.v2p[gone]] = -1
        pool.v2p[gone] = -1
        return pool

    def bound_by_hand(self, pool: Pool, most: int = 2) -> Pool:
        """Bind ids to free pages in place, as nobody may; both may stand on the stacks."""
        for _ in range(self.upto(1, most)):
            ids, pages = np.flatnonzero(pool.v2p[:-1] < 0), np.flatnonzero(pool.p2v[:-1] < 0)
            if len(ids) and len(pages):
                v, p = self.one(ids.tolist()), self.one(pages.tolist())
                pool.v2p[v], pool.p2v[p] = p, v
        return pool

    def spoiled(self, pool: Pool) -> Pool:
        """Return the sub-pool with words of its chain's blocks spoiled; without holes, which growth could reach."""
        assert pool.chain is not None
        blocks, place = list(pool.chain.blocks), pool.chain.place
        for _ in range(self.upto(1, 3)):
            word, j, value = self.one(Block._fields), self.upto(0, len(blocks) - 1), self.one(EXTREMES)
            if j == place and word in ("seat", "watermark"):
                pool = pool._replace(seat=value) if word == "seat" else pool._replace(watermark=value)
            else:
                blocks[j] = blocks[j]._replace(**{word: value})
        return pool._replace(hole_top=0, chain=Chain(tuple(blocks), place))

    def request_table(self, rows: int, width: int, page_size: int, form: str, ids: int, garbage: float) -> Ints:
        """Return `rows` x `width` cells that name pages below `ids`; `garbage` of them are holes or nonsense."""
        pages = width if form == "page" else -(-width // page_size)
        table = self.rng.integers(0 if ids == 1 else 1, max(ids, 2), (rows, pages))
        if form == "token":
            table = self.spread(table, page_size)[:, :width]
        return self.spoil(table, garbage, (-1, -1, -5, -(2**31), 2**31 - 1, ids * page_size, ids, self.upto(0, PAST)))

    @staticmethod
    def spread(pages: Ints, page_size: int) -> Ints:
        """Return the token ids of pages, row after row; a hole's are holes."""
        tokens = np.repeat(pages, page_size, axis=1)
        offsets = np.tile(np.arange(page_size), pages.shape[1])
        return np.where(tokens >= 0, tokens * page_size + offsets, -1)

    # ---- lanes ----

    def lengths(self, count: int, most: int, dtype: torch.dtype, wild: float = 0.1) -> Ints:
        """Return lengths from 0 to `most`, `wild` of them outside, as far as the dtype goes."""
        least, largest = LIMITS[dtype]
        found = self.rng.integers(0, most + 1, count)
        found = self.spoil(found, 0.3, (0, 1 if most else 0, most, max(most - 1, 0), most // 2))
        outside = (-1, -7, most + 1, most + 9, least, largest, largest - 1, -(2**31), 2**31 - 1)
        return self.spoil(found, wild, (*outside, max(least, -(2**61) - 1)))

    def any_rows(self, count: int, rows: int) -> Ints:
        """Return a row for each lane, some in several lanes, some outside of the request table."""
        return self.spoil(self.rng.integers(0, max(rows, 1), count), 0.1, (-1, rows))

    def apart(self, count: int, num: int, dtype: torch.dtype, wild: float, first: int = 0) -> Ints:
        """Return ids of `[first, num)`, none twice; `wild` of them, and what is missing, holes or once outside."""
        least, largest = LIMITS[dtype]
        found = np.full(count, -1, dtype=np.int64)
        some = first + self.rng.permutation(num - first)[:count] if num > first else found[:0]
        found[: len(some)] = some
        found = self.spoil(self.rng.permutation(found), wild, (-1, -1, -4, least))
        if wild and count:
            for outside in (0, num, num + 1, largest)[0 if first else 1 :]:
                if self.chance(min(wild * count, 0.5)):
                    found[self.upto(0, count - 1)] = outside
        return found

    def offsets(self, sizes: Ints, dtype: torch.dtype, wild: float = 0.0, slack: int = 0) -> Ints:
        """Return the `indptr` of parts of these sizes, up to `slack` apart; `wild` of its cells are nonsense."""
        steps = np.concatenate(([0], sizes)) + self.rng.integers(0, slack + 1, len(sizes) + 1)
        indptr = np.cumsum(steps)
        return self.spoil(indptr, wild, (-1, -9, int(indptr[-1]) + 5, 2**30, *LIMITS[dtype]))
