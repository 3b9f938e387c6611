"""unbind: tombstone both tables for the ids of a call and emit the pages they held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops import UnbindSpec
from pagebind.words import SINK, TOMBSTONE

from pagebind_numpy.arrays import Array, count


class Unbound(NamedTuple):
    """What became of the lanes of a call."""

    lane: Array  # [k], int64; the lanes that were served, rising
    page: Array  # [k]; what they released
    absent: int  # lanes whose id is not bound
    repeated: int  # lanes whose id another lane frees
    bad: int  # lanes whose id is the sink or past the table, or whose page is not one


def plan(spec: UnbindSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan an unbinding."""

    def run(
        ids: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        freed: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> None:
        done = unbind(ids.numpy(), v2p.numpy(), p2v.numpy(), freed.numpy())
        if options.count:
            count(state, double_free=done.absent + done.repeated, bad_free=done.bad)

    return NoWarmup(run)


def unbind(ids: Array, v2p: Array, p2v: Array, freed: Array) -> Unbound:
    """Unbind every id that is bound, and write `freed`.

    Every lane writes its number into the row of its id: where lanes repeat an id, the row says which of them is served.
    """
    inside = (ids > SINK) & (ids < v2p.size - 1)
    lane = inside.nonzero()[0]
    page = v2p[ids[lane]]
    absent = np.count_nonzero(page < 0)
    bound = (page > SINK) & (page < p2v.size - 1)
    lane, page = lane[bound], page[bound]
    v = ids[lane]
    v2p[v] = lane
    served = v2p[v] == lane
    v2p[v] = TOMBSTONE
    repeated = lane.size - np.count_nonzero(served)
    if repeated:
        lane, page = lane[served], page[served]
    p2v[page] = TOMBSTONE
    freed.fill(TOMBSTONE)
    freed[lane] = page
    bad = np.count_nonzero(ids >= 0) - lane.size - absent - repeated
    return Unbound(lane, page, int(absent), int(repeated), int(bad))
