"""Inputs of generated cases: sub-pools, request tables and batches, sane with a share of garbage, never an identity."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from hypothesis import strategies as st

from pagebind_conformance.guarded import POISON
from pagebind_conformance.oracle import DOWN, FLOAT, UP, Block, Chain, SubPool

RANDOM = st.integers(0, 2**32 - 1).map(Random)
"""A source for the cells of a case; its sizes are drawn one by one, so that they shrink."""

STACK_POISON = POISON[torch.int32]
"""What a stack holds at and above its top: an id of nobody."""

LIMITS = {torch.int32: (-(2**31), 2**31 - 1), torch.int64: (-(2**63), 2**63 - 1)}

INDEX_DTYPES = (torch.int32, torch.int64)


def page_tables(rng: Random, num_virtual: int, num_physical: int, bound: int) -> tuple[list[int], list[int]]:
    """Return `v2p` and `p2v` with `bound` random pairs, as many as fit; the counts include the sink."""
    v2p = [0] + [-1] * num_virtual
    p2v = [0] + [-1] * num_physical
    bound = min(bound, num_virtual - 1, num_physical - 1)
    virtual = rng.sample(range(1, num_virtual), bound)
    physical = rng.sample(range(1, num_physical), bound)
    if virtual == physical:  # an identity hides a skipped translation
        physical = physical[1:] + physical[:1]
    for v, p in zip(virtual, physical, strict=True):
        v2p[v], p2v[p] = p, v
    return v2p, p2v


def sub_pool(
    rng: Random,
    num_virtual: int,
    num_physical: int,
    live: int,
    holes: int,
    *,
    seat: int = 0,
    chain: Chain | None = None,
) -> SubPool:
    """Return a sub-pool of `live` bound pages among `holes` freed ones, as many as fit, free ids in random order.

    They lie right above `seat`.
    """
    live = min(live, num_virtual - 1, num_physical - 1 - seat)
    holes = min(holes, num_physical - 1 - seat - live)
    span = rng.sample(range(seat + 1, seat + live + holes + 1), live + holes)
    virtual = rng.sample(range(1, num_virtual), num_virtual - 1)
    v2p = [0] + [-1] * num_virtual
    p2v = [0] + [-1] * num_physical
    for v, p in zip(virtual[:live], span[:live], strict=True):
        v2p[v], p2v[p] = p, v
    free_ids, free_pages = virtual[live:], span[live:]
    return SubPool(
        v2p=v2p,
        p2v=p2v,
        virtual_stack=free_ids + [STACK_POISON] * (num_virtual - len(free_ids)),
        hole_stack=free_pages + [STACK_POISON] * (num_physical - len(free_pages)),
        virtual_top=len(free_ids),
        hole_top=len(free_pages),
        watermark=live + holes,
        epoch=rng.randrange(100),
        seat=seat,
        chain=chain,
    )


def borrower(pool: SubPool) -> SubPool:
    """Return the sub-pool as one that borrows its ids: none is on its stack."""
    return pool._replace(virtual_stack=[STACK_POISON] * len(pool.virtual_stack), virtual_top=0)


def empty_blocks(page_bytes: Sequence[int], total: int) -> list[Block]:
    """Return the blocks of empty sub-pools that share `total` bytes: an end up, floats between, an end down.

    The sinks lie one after another at the start, data pages above them all.
    """
    sinks, last = sum(page_bytes), len(page_bytes) - 1
    blocks = []
    for j, size in enumerate(page_bytes):
        base = sum(page_bytes[:j])
        growth = UP if j == 0 else DOWN if j == last else FLOAT
        seat = (total - base) // size - 1 if growth == DOWN else -(-(sinks - base) // size) - 1
        blocks.append(Block(growth, base, size, seat=seat))
    return blocks


def num_pages(block: Block, total: int) -> int:
    """Return the pages that a sub-pool has in `total` bytes, the sink among them."""
    return (total - block.base) // block.page_bytes


def member(rng: Random, blocks: Sequence[Block], place: int, total: int, num_virtual: int, live: int) -> SubPool:
    """Return the sub-pool at `place` of a chain: `live` pages of its span are bound, or fewer, the others are holes."""
    own = blocks[place]
    live = min(live, own.watermark, num_virtual - 1)
    chain = Chain(tuple(blocks), place)
    num = num_pages(own, total)
    return sub_pool(rng, num_virtual, num, live, own.watermark - live, seat=own.seat, chain=chain)


def leased(pool: SubPool, place: int, reach: int) -> SubPool:
    """Return the sub-pool with another reach of the one at `place` of its chain."""
    assert pool.chain is not None
    blocks = list(pool.chain.blocks)
    blocks[place] = blocks[place]._replace(reach=reach)
    return pool._replace(chain=pool.chain._replace(blocks=tuple(blocks)))


def filled_blocks(rng: Random, page_bytes: Sequence[int], total: int) -> list[Block]:
    """Return such blocks with spans at random places, often to the last byte, and reaches of the ends."""
    blocks = empty_blocks(page_bytes, total)
    low, high = sum(page_bytes), total
    for j in (0, len(blocks) - 1, *range(1, len(blocks) - 1)):
        block = blocks[j]
        base, size = block.base, block.page_bytes
        first, end = -(-(low - base) // size), (high - base) // size  # the pages that lie wholly in what is left
        room = max(end - first, 0)
        span = rng.choice([0, room, rng.randint(0, room), rng.randint(0, room // 2)])
        if block.growth == UP:
            reach = rng.choice([0, span, rng.randint(span, max(room, span) + 2)])
            blocks[j] = block._replace(watermark=span, reach=reach)
            low = max(low, base + (block.seat + 1 + span) * size)
        elif block.growth == DOWN:
            reach = rng.choice([0, span, rng.randint(span, max(room, span) + 2)])
            blocks[j] = block._replace(seat=block.seat - span, watermark=span, reach=reach)
            high = base + (block.seat + 1 - span) * size if span else high
        else:
            seat = first - 1 + rng.choice([0, room - span, rng.randint(0, room - span)])
            seat = min(seat, num_pages(block, total) - 1)  # where nothing is left for it
            blocks[j] = block._replace(seat=seat, watermark=span, reach=rng.choice([0, 9]))
            low = base + (seat + 1 + span) * size if span else low
    return blocks


def spread(pages: Sequence[int], page_size: int, form: str) -> list[int]:
    """Return the cells of a request-table row that holds these virtual pages; a negative one is a hole."""
    if form == "page":
        return list(pages)
    return [v * page_size + i if v >= 0 else -1 for v in pages for i in range(page_size)]


def request_table(
    rng: Random, rows: int, width: int, page_size: int, form: str, ids: Sequence[int], garbage: float = 0.1
) -> list[list[int]]:
    """Return `rows` x `width` cells naming pages of `ids` in random order, `garbage` of them holes or nonsense."""
    table = []
    for _ in range(rows):
        count = width if form == "page" else -(-width // page_size)
        row = spread([rng.choice(ids) if ids else -1 for _ in range(count)], page_size, form)[:width]
        for i in range(width):
            if rng.random() < garbage:
                row[i] = rng.choice([-1, -1, -5, rng.randint(-(2**31), 2**31 - 1), rng.randint(0, 400)])
        table.append(row)
    return table


def lengths(rng: Random, count: int, most: int, dtype: torch.dtype, wild: float = 0.15) -> list[int]:
    """Return lengths from 0 to `most`, `wild` of them outside, as far as the dtype goes."""
    least, largest = LIMITS[dtype]
    outside = [-1, -7, most + 1, most + 9, least, largest, largest - 1, -(2**31), 2**31 - 1, max(least, -(2**61) - 1)]
    inside = [0, 1, most, max(most - 1, 0), most // 2]
    found = []
    for _ in range(count):
        if rng.random() < wild:
            found.append(rng.choice(outside))
        else:
            found.append(rng.choice(inside) if rng.random() < 0.3 else rng.randint(0, most))
    return found


def row_indices(rng: Random, count: int, rows: int, dtype: torch.dtype, wild: float = 0.15) -> list[int]:
    """Return rows, no row twice while there are enough, `wild` of them outside the request table."""
    inside = rng.sample(range(rows), rows) + [-1] * count
    outside = [-1, rows, rows + 3, *LIMITS[dtype]]
    return [rng.choice(outside) if rng.random() < wild else inside[i] for i in range(count)]


def page_ids(
    rng: Random, count: int, ids: Sequence[int], past: int, dtype: torch.dtype, wild: float = 0.2
) -> list[int]:
    """Return ids out of `ids`, none twice while there are enough; `wild` of them holes, the sink or past the table."""
    outside = [-1, -1, -4, 0, past, past + 1, *LIMITS[dtype]]
    inside = rng.sample(list(ids), len(ids))[:count]
    inside += [-1] * (count - len(inside))
    return [rng.choice(outside) if rng.random() < wild else v for v in inside]


def offsets(rng: Random, sizes: Sequence[int], dtype: torch.dtype, wild: float = 0.0, slack: int = 0) -> list[int]:
    """Return the `indptr` of parts of these sizes, up to `slack` apart; `wild` of its cells are nonsense."""
    indptr = [rng.randint(0, slack)]
    for size in sizes:
        indptr.append(indptr[-1] + size + rng.randint(0, slack))
    outside = [-1, -9, indptr[-1] + 5, 2**30, *LIMITS[dtype]]
    return [rng.choice(outside) if rng.random() < wild else cell for cell in indptr]
