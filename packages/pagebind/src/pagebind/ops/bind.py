"""bind: write given pairs of a virtual and a physical page into both tables, unless either is bound.

    for lane i:  v2p[v] == -1 and p2v[p] == -1   ->   v2p[v] = p, p2v[p] = v      (v = virtual[i], p = physical[i])
                 otherwise                       ->   dropped, counted bad_bind

A lane whose virtual id is negative is a hole: skipped, not counted. Among lanes of one call that repeat a virtual or a
physical page at most one is served.
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
from pagebind.words import SINK, TOMBSTONE


@dataclass(frozen=True, kw_only=True)
class BindSpec:
    """What a binding's plan decides: at most `max_items` pairs a call."""

    max_items: int
    index_dtype: torch.dtype = torch.int32  # of v2p and p2v
    id_dtype: torch.dtype = torch.int32  # of virtual and physical

    def __post_init__(self) -> None:
        need_fields(self)


class Bind(Protocol):
    """The planned call."""

    def __call__(
        self,
        virtual: torch.Tensor,  # [n], id_dtype; virtual pages
        physical: torch.Tensor,  # [n], id_dtype; physical pages
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype; written
        p2v: torch.Tensor,  # [num_physical + 1], index_dtype; written
        *,
        state: torch.Tensor | None = None,  # [32], int64; counts bad_bind
    ) -> None:
        """Bind each pair that may be bound.

        Counted: `bad_bind` lanes, other than holes, that were not served. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: BindSpec,
    device: torch.device,
    virtual: torch.Tensor,
    physical: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False where there are no pairs."""
    need_tensor("virtual", virtual, spec.id_dtype, 1, device)
    need_tensor("physical", physical, spec.id_dtype, 1, device)
    need_length("physical", physical, virtual.shape[0], "virtual")
    need_at_most("the number of pairs", virtual.shape[0], spec.max_items, "max_items")
    need_page_table("v2p", v2p, spec.index_dtype, device)
    need_page_table("p2v", p2v, spec.index_dtype, device)
    need_memory_of_its_own("v2p p2v", (v2p, p2v), "virtual physical", (virtual, physical))
    need_state(state, device)
    return virtual.shape[0] > 0


def bytes_moved(spec: BindSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to bind `items` pairs: two ids read, two rows looked at and written."""
    return items * (2 * spec.id_dtype.itemsize + 4 * spec.index_dtype.itemsize)


def features(spec: BindSpec) -> frozenset[str]:
    """Return the features a spec asks for: none."""
    return frozenset()


def faults(
    spec: BindSpec,
    virtual: torch.Tensor,
    physical: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: the virtual pages of the lanes that would be dropped."""
    return {"bad_bind": plain(virtual[(virtual >= 0) & ~bindable(virtual, physical, v2p, p2v)])}


def bindable(virtual: torch.Tensor, physical: torch.Tensor, v2p: torch.Tensor, p2v: torch.Tensor) -> torch.Tensor:
    """Return which lanes may be bound, bool `[n]`: both pages free, and the lane the first that names either."""
    v, p = virtual.long(), physical.long()
    num_virtual, num_physical = v2p.shape[0] - 1, p2v.shape[0] - 1
    outside = (v <= SINK) | (v >= num_virtual) | (p <= SINK) | (p >= num_physical)
    v, p = v.masked_fill(outside, SINK), p.masked_fill(outside, SINK)
    taken = (v2p.index_select(0, v) != TOMBSTONE) | (p2v.index_select(0, p) != TOMBSTONE) | outside
    # Lanes that cannot be served meet at the sink, where they do not stand before others.
    v, p = v.masked_fill_(taken, SINK), p.masked_fill_(taken, SINK)
    return first_of_each(v, num_virtual) & first_of_each(p, num_physical) & ~taken


BIND: Operation[BindSpec, Bind] = Operation(
    name="bind",
    level="core",
    spec=BindSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
)
