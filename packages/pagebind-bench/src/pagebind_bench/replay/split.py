"""The sub-pools of a model in a budget of bytes: sharing all of it, or with a part for each kind set up front.

The static split is the one that SGLang makes when a server starts (python/sglang/srt/model_executor/
model_runner_kv_cache_mixin.py), with the default ratios of its ServerArgs:

    states    state bytes / other bytes = 0.9       handle_max_mamba_cache; mamba_full_memory_ratio
    window    window tokens / full tokens = 0.8     set_num_tokens_hybrid_swa; swa_full_tokens_ratio

so that of B bytes the states get `B * 0.9 / 1.9`, and of the rest R the full pages get `R * F / (F + 0.8 * W)` and the
window pages what is left, where F and W are the bytes of a token in all full and in all window layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pagebind.errors import InvalidArgument
from pagebind.pool import SubPool, UnifiedPool

from pagebind_bench.replay.cards import Card
from pagebind_bench.replay.kinds import FULL, STATE, WINDOW, Kinds

PoolKind = Literal["unified", "static"]


def sub_pools(
    card: Card, budget: int, page_size: int, pool: PoolKind, window_ratio: float, state_ratio: float
) -> list[SubPool]:
    """Return the sub-pools of a model by rising address; raises InvalidArgument where one would hold no page."""
    sizes = card.page_bytes(page_size)
    sinks = sum(sizes.values())
    if budget < 2 * sinks:
        raise InvalidArgument(
            f"a budget of {budget:,} bytes is too small for {card.name}: one page of each kind and its sink take "
            f"{2 * sinks:,}; pass a larger --budget"
        )
    grows: dict[str, Literal["up", "float", "down"]] = {FULL: "up"}
    if WINDOW in sizes:
        grows[WINDOW] = "float" if STATE in sizes else "down"
    if STATE in sizes:
        grows[STATE] = "down"
    shared = [
        SubPool(
            name=name,
            page_size=1 if name == STATE else page_size,
            page_bytes=size,
            grows=grows[name],
            ids_of=FULL if name == WINDOW else None,
        )
        for name, size in sizes.items()
    ]
    if pool == "unified":
        return shared
    caps = static_pages(sizes, budget - sinks, window_ratio, state_ratio)
    if not all(caps.values()):
        raise InvalidArgument(
            f"a budget of {budget:,} bytes, split up front for {card.name}, gives {caps}: no page of one kind; pass a "
            "larger --budget, or other ratios"
        )
    return [replace(sub_pool, max_pages=caps[sub_pool.name]) for sub_pool in shared]


def static_pages(sizes: Mapping[str, int], budget: int, window_ratio: float, state_ratio: float) -> dict[str, int]:
    """Return how many pages each kind gets of `budget` bytes; `sizes` are the bytes of a page.

    Every region begins and ends at pages of its own size: what is lost at its ends, less than a page at each that is
    not the buffer's own, comes off first.
    """
    lost = sum(sizes.values()) if len(sizes) > 1 else 0
    lost += sizes[WINDOW] if len(sizes) == 3 else 0  # a float has two such ends
    rest = budget - lost
    pages: dict[str, int] = {}
    if STATE in sizes:
        pages[STATE] = max(int(rest * state_ratio / (1 + state_ratio)) // sizes[STATE], 0)
        rest -= pages[STATE] * sizes[STATE]
    ratio = min(window_ratio, 1.0) if WINDOW in sizes else 0.0  # a window page needs an id of a full one
    pages[FULL] = max(int(rest / (sizes[FULL] + ratio * sizes.get(WINDOW, 0))), 0)
    if WINDOW in sizes:
        pages[WINDOW] = int(pages[FULL] * ratio)
    return {name: pages[name] for name in sizes}


def lay_out_regions(pool: UnifiedPool, kinds: Kinds, sub_pools: Sequence[SubPool]) -> None:
    """Grow every capped sub-pool to its cap and free the pages again: its region is its own from then on.

    What is free in it stays inside its frontiers, so no neighbour grows there and nothing ever has to move.
    """
    caps = {s.name: s.max_pages or 0 for s in sub_pools}
    states = pool.alloc(caps[kinds.state], name=kinds.state) if kinds.state else None
    both = caps[kinds.window] if kinds.window else 0
    alone = pool.alloc(caps[kinds.owner] - both)
    if kinds.window:
        pool.free(pool.alloc(both, also=[kinds.window]), also={kinds.window: both})
    pool.free(alone)
    if states is not None:
        pool.free(states, name=kinds.state)
    if pool.device.type == "cuda":
        torch.cuda.synchronize(pool.device)
