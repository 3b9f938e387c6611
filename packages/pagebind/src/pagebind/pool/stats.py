"""Snapshots of a pool's host counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pagebind.pool.ledger import Ledger, span_bytes


@dataclass(frozen=True)
class SubPoolStats:
    """One sub-pool, in pages but for its frontiers; exact until a fault is dropped."""

    page_bytes: int
    capacity: int  # what it could hold alone in the buffer, or its max_pages
    live: int
    holes: int
    span: int
    leased: int
    free: int  # what it can take now, if no other takes any
    first_byte: int  # of its span
    end_byte: int  # past its span


@dataclass(frozen=True)
class PoolStats:
    """Every sub-pool by name, by rising address, and the request table."""

    sub_pools: Mapping[str, SubPoolStats]
    rows: int
    total_bytes: int

    @property
    def live_bytes(self) -> int:
        """Bytes of pages that are bound."""
        return sum(s.live * s.page_bytes for s in self.sub_pools.values())

    @property
    def span_bytes(self) -> int:
        """Bytes inside the frontiers: live pages and holes."""
        return sum(s.span * s.page_bytes for s in self.sub_pools.values())


def snapshot(ledger: Ledger, gate_closed: bool, rows: int, total_bytes: int) -> PoolStats:
    """Return the counts of a ledger."""
    sub_pools = {}
    for i, (place, at) in enumerate(zip(ledger.places, ledger.positions, strict=True)):
        first_byte, end_byte = span_bytes(ledger.places, ledger.positions, i)
        sub_pools[place.name] = SubPoolStats(
            page_bytes=place.page_bytes,
            capacity=place.most,
            live=at.live,
            holes=at.holes,
            span=at.span,
            leased=ledger.leased(i),
            free=ledger.most(i, gate_closed),
            first_byte=first_byte,
            end_byte=end_byte,
        )
    return PoolStats(MappingProxyType(sub_pools), rows, total_bytes)
