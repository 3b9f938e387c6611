"""unbind: the fused tombstone free. One lane a page: gather `p = v2p[v]`, tombstone both tables, emit p in lane order.

    for lane i, v = ids[i], p = v2p[v]:   0 < v < num_virtual, p bound  ->  v2p[v] = -1, p2v[p] = -1, freed[i] = p
                                          v < 0                         ->  a hole: freed[i] = -1, not counted
                                          otherwise                     ->  freed[i] = -1, counted

Among lanes of one call that repeat an id exactly one is served and the others count `double_free`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.operation import (
    Operation,
    need_at_most,
    need_length,
    need_page_table,
    need_state,
    need_tensor,
    plain,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.fields import need_fields
from pagebind.ops.ragged import first_of_each
from pagebind.words import SINK


@dataclass(frozen=True, kw_only=True)
class UnbindSpec:
    """What an unbinding's plan decides: at most `max_items` ids a call."""

    max_items: int
    index_dtype: torch.dtype = torch.int32  # of v2p and p2v
    id_dtype: torch.dtype = torch.int32  # of ids and freed

    def __post_init__(self) -> None:
        need_fields(self)


class Unbind(Protocol):
    """The planned call."""

    def __call__(
        self,
        ids: torch.Tensor,  # [n], id_dtype; virtual pages
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype; written
        p2v: torch.Tensor,  # [num_physical + 1], index_dtype; written
        *,
        freed: torch.Tensor,  # [n], id_dtype; physical page lane i released, -1 where none; written
        state: torch.Tensor | None = None,  # [32], int64; counts double_free, bad_free
    ) -> None:
        """Unbind every id that is bound.

        Counted: `double_free` lanes whose id is not bound (its row of v2p is negative), or is served by another lane;
        `bad_free` lanes whose id is the sink or past the table, or whose row of v2p holds no page of p2v. Raises
        InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: UnbindSpec,
    device: torch.device,
    ids: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    *,
    freed: torch.Tensor,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False where there are no ids."""
    need_tensor("ids", ids, spec.id_dtype, 1, device)
    need_tensor("freed", freed, spec.id_dtype, 1, device)
    need_length("freed", freed, ids.shape[0], "ids")
    need_at_most("the number of ids", ids.shape[0], spec.max_items, "max_items")
    need_page_table("v2p", v2p, spec.index_dtype, device)
    need_page_table("p2v", p2v, spec.index_dtype, device)
    need_memory_of_its_own("v2p p2v freed", (v2p, p2v, freed), "ids", (ids,))
    need_state(state, device)
    return ids.shape[0] > 0


def bytes_moved(spec: UnbindSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to unbind `items` ids: an id read and a page written, one row read and two written."""
    return items * (2 * spec.id_dtype.itemsize + 3 * spec.index_dtype.itemsize)


def features(spec: UnbindSpec) -> frozenset[str]:
    """Return the features a spec asks for: none."""
    return frozenset()


def faults(
    spec: UnbindSpec,
    ids: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    *,
    freed: torch.Tensor,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count, with the virtual pages."""
    _, _, double_free, bad_free = unbindable(ids, v2p, p2v)
    return {"double_free": plain(ids[double_free]), "bad_free": plain(ids[bad_free])}


def unbindable(
    ids: torch.Tensor, v2p: torch.Tensor, p2v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each lane's page, `v2p`'s dtype `[n]`, and the masks of the served, double and bad lanes, bool `[n]`.

    Of lanes that repeat an id the first is served. A lane in none of the masks is a hole.
    """
    v = ids.long()
    num_virtual, num_physical = v2p.shape[0] - 1, p2v.shape[0] - 1
    inside = (v > SINK) & (v < num_virtual)
    v = v.masked_fill(~inside, SINK)
    page = v2p.index_select(0, v)
    bound = inside & (page > SINK) & (page < num_physical)
    served = bound & first_of_each(v.masked_fill(~bound, SINK), num_virtual)
    double_free = (inside & (page < SINK)) | (bound & ~served)
    return page, served, double_free, (ids >= 0) & ~served & ~double_free


UNBIND: Operation[UnbindSpec, Unbind] = Operation(
    name="unbind",
    level="core",
    spec=UnbindSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
)
