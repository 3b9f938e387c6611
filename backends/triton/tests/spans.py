"""Read the span of random sub-pools, words spoiled among them, in a kernel and by `pagebind.ops.span`; print both."""

import json
import random
import sys

import torch
import triton
import triton.language as tl
from pagebind.ops.span import read_span
from pagebind.words import (
    BASE,
    DOWN,
    FLOAT,
    GROWTH,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    UP,
    WATERMARK,
    PageTables,
)
from pagebind_triton import span

GEOMETRY = (GROWTH, BASE, PAGE_BYTES)
POSITIONS = (SEAT, WATERMARK, REACH)
EXTREMES = (-(2**63), -(2**31), -1, 0, 1, 3, 2**30, 2**31 - 1, 2**31, 2**32 + 5, 2**61, 2**62, 2**63 - 1)


@triton.jit
def span_kernel(state, chain, out, sub_pools, place, num_physical, CHAINED: tl.constexpr):
    """Write the six positions."""
    seat, watermark, up, down, above, below = span.read_span(state, chain, sub_pools, place, num_physical, CHAINED)
    tl.store(out, seat)
    tl.store(out + 1, watermark)
    tl.store(out + 2, up)
    tl.store(out + 3, down)
    tl.store(out + 4, above)
    tl.store(out + 5, below)


def pools():
    """Yield tables: chains of one to twenty sub-pools, plain ones and such with words of any value."""
    rng = random.Random(8)
    for number in range(600):
        sub_pools = rng.choice((1, 2, 3, 3, 8, 9, 20))
        chain = torch.zeros(sub_pools, STATE_WORDS, dtype=torch.int64)
        base = 0
        for block in chain:
            block[GROWTH], block[BASE] = rng.choice((UP, DOWN, FLOAT)), base
            block[PAGE_BYTES] = rng.choice((1, 3, 16, 48))
            block[SEAT], block[WATERMARK] = rng.randint(0, 30), rng.choice((0, rng.randint(0, 30)))
            block[REACH] = rng.choice((0, rng.randint(0, 60)))
            base += int(block[PAGE_BYTES])
        for _ in range(rng.choice((0, 0, 1, 3, 6 * sub_pools))):
            word = rng.choice(POSITIONS + GEOMETRY)
            chain[rng.randrange(sub_pools)][word] = rng.choice((*EXTREMES, rng.randint(-(2**63), 2**63 - 1)))
        place = rng.randrange(sub_pools)
        # Nobody holds the widest tables; their sizes are what counts here.
        num_physical = rng.choice((1, 2, 40, 100, 2**31, 2**40))
        v2p, p2v, stack = (torch.empty(length, device="meta") for length in (2, num_physical + 1, num_physical))
        chained = number % 4 > 0
        yield PageTables(v2p, p2v, stack, stack, chain[place], chain if chained else None, place)


def main():
    """Compare each pool's span; print how many agree, and those that do not."""
    agreed, wrong = 0, []
    out = torch.zeros(6, dtype=torch.int64)
    for tables in pools():
        chain, sub_pools, place = span.chain_of(tables)
        span_kernel[(1,)](
            tables.state, chain, out, sub_pools, place, tables.p2v.shape[0] - 1, CHAINED=tables.chain is not None
        )
        found = read_span(tables)
        wanted = [found.seat, found.watermark, found.up, found.down, found.above, found.below]
        if out.tolist() == wanted:
            agreed += 1
        else:
            wrong.append([chain.tolist(), place, out.tolist(), wanted])
    json.dump({"agreed": agreed, "wrong": wrong[:3]}, sys.stdout)


if __name__ == "__main__":
    main()
