"""bind: write pairs of a virtual and a physical page into both tables, unless either is bound."""

from __future__ import annotations

import numpy as np
import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops import BindSpec
from pagebind.words import SINK, TOMBSTONE

from pagebind_numpy.arrays import Array, count


def plan(spec: BindSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a binding."""

    def run(
        virtual: torch.Tensor,
        physical: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        v = virtual.numpy()
        served = bind(v, physical.numpy(), v2p.numpy(), p2v.numpy())
        if options.count:
            count(state, bad_bind=np.count_nonzero(v >= 0) - np.count_nonzero(served))

    return NoWarmup(run)


def bind(virtual: Array, physical: Array, v2p: Array, p2v: Array) -> Array:
    """Bind each pair that may be bound; return which lanes were served, bool `[n]`.

    Every lane writes its number into the rows it asks for: where lanes repeat a page, the rows say which of them stays.
    """
    inside = (virtual > SINK) & (virtual < v2p.size - 1) & (physical > SINK) & (physical < p2v.size - 1)
    lane = inside.nonzero()[0]
    lane = lane[(v2p[virtual[lane]] == TOMBSTONE) & (p2v[physical[lane]] == TOMBSTONE)]
    v, p = virtual[lane], physical[lane]
    v2p[v], p2v[p] = lane, lane
    stays = (v2p[v] == lane) & (p2v[p] == lane)
    if not stays.all():
        v2p[v], p2v[p] = TOMBSTONE, TOMBSTONE
        v, p, lane = v[stays], p[stays], lane[stays]
    v2p[v], p2v[p] = p, v
    served = np.zeros(virtual.size, dtype=np.bool_)
    served[lane] = True
    return served
