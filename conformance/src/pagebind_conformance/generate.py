"""Inputs of generated cases: sub-pools, request tables and batches, sane with a share of garbage, never an identity."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from hypothesis import strategies as st

from pagebind_conformance.guarded import POISON
from pagebind_conformance.oracle import SubPool

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


def sub_pool(rng: Random, num_virtual: int, num_physical: int, live: int, holes: int) -> SubPool:
    """Return a sub-pool of `live` bound pages among `holes` freed ones, as many as fit, free ids in random order."""
    live = min(live, num_virtual - 1, num_physical - 1)
    holes = min(holes, num_physical - 1 - live)
    span = rng.sample(range(1, live + holes + 1), live + holes)
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
    )


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
