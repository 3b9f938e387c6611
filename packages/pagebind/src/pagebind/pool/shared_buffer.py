"""Sub-pools of one buffer: where their pages lie, their device tables and host counts, and what looks at them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagebind.backend import Backend
from pagebind.config import resolve
from pagebind.errors import CaptureError, InvalidArgument
from pagebind.operation import Checks, need_choice
from pagebind.ops.compact import ALIGNMENT
from pagebind.plan import capturing, check
from pagebind.pool.audit import audit_chain
from pagebind.pool.chain import GROWTH_WORDS, SubPool, lay_out
from pagebind.pool.id_plans import IdPlans
from pagebind.pool.joint_calls import JointCalls
from pagebind.pool.ledger import Demand, Ledger
from pagebind.pool.memory import take
from pagebind.pool.moves import Moves
from pagebind.pool.polling import Poll
from pagebind.pool.readers import Readers
from pagebind.pool.stats import PoolStats, snapshot
from pagebind.pool.views import page_view
from pagebind.registry import settle
from pagebind.words import (
    BASE,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    WATERMARK,
    PageTables,
    new_tables,
)


class SharedBuffer:
    """What calls of a pool work on; its pages are handed out by `MultiEndedAllocator`."""

    def __init__(
        self,
        total_bytes: int,
        sub_pools: Sequence[SubPool],
        *,
        rows_of: str | None = None,
        buffer: bool = True,
        backend: str | Backend | None = None,
        device: str | torch.device | None = None,
        checks: Checks | None = None,
        index_dtype: torch.dtype | None = None,
    ) -> None:
        config = resolve(
            backend=None if isinstance(backend, Backend) else backend,
            device=None if device is None else str(device),
            checks=checks,
            index_dtype=None if index_dtype is None else str(index_dtype).removeprefix("torch."),
        )
        self.backend, self.device = settle(backend if isinstance(backend, Backend) else config.backend, config.device)
        self.checks = config.checks.value
        self.index_dtype = torch.int32 if config.index_dtype.value == "int32" else torch.int64
        for s in sub_pools:
            if not isinstance(s, SubPool):
                raise InvalidArgument(f"sub_pools has a {type(s).__name__}; each must be a SubPool")
        self.total_bytes, self.sub_pools = total_bytes, {s.name: s for s in sub_pools}
        places = lay_out(total_bytes, sub_pools)
        if buffer:
            _need_aligned(sub_pools)
        owners = [s.name for s in sub_pools if s.ids_of is None]
        self.rows_of = owners[0] if rows_of is None else rows_of
        """The sub-pool whose ids a request table holds."""
        need_choice("rows_of", self.rows_of, owners)
        self.ledger = Ledger(places, self.rows_of, self._tell_reach)
        """The host counts."""
        self._chain = torch.zeros((len(places), STATE_WORDS), dtype=torch.int64, device=self.device)
        self.buffer = self._take_buffer() if buffer else None
        """Bytes of all pages, uint8 `[total_bytes]`, or None."""
        self.tables: dict[str, PageTables] = {}
        """Device tables, stacks and state block of each sub-pool."""
        self._ids: dict[str, IdPlans] = {}
        for i, (sub_pool, place) in enumerate(zip(sub_pools, places, strict=True)):
            geometry = {
                GROWTH: GROWTH_WORDS[place.grows],
                BASE: place.base,
                PAGE_BYTES: place.page_bytes,
                SEAT: self.ledger.positions[i].seat,
            }
            for word, value in geometry.items():
                self._chain[i, word].fill_(value)
            num_virtual = self.num_virtual(sub_pool.ids_of or sub_pool.name)
            self.tables[place.name] = new_tables(
                num_virtual,
                place.num_physical,
                self.device,
                self.index_dtype,
                borrows=sub_pool.ids_of is not None,
                chain=self._chain,
                place=i,
            )
            self._ids[place.name] = IdPlans(self, sub_pool, place, num_virtual)
        most = max(place.num_physical for place in places)
        self._pages, self._targets = (torch.empty(most, dtype=torch.int32, device=self.device) for _ in range(2))
        self._to_clear = torch.empty(most, dtype=torch.int64, device=self.device)
        self._readers = Readers(self.device)
        self._poll = Poll(self._chain)
        self._moves = Moves(self.ledger, self._readers, self._ids, self.tables, self.buffer, self._pages, self._targets)
        self._calls = JointCalls(
            self.device, self.checks, self.ledger, self._readers, self._moves, self.sub_pools, self.tables
        )

    def _take_buffer(self) -> torch.Tensor:
        return take(
            f"a buffer of total_bytes={self.total_bytes}",
            lambda: torch.zeros(self.total_bytes, dtype=torch.uint8, device=self.device),
        )

    def num_virtual(self, name: str) -> int:
        """Return how many virtual ids a sub-pool that owns its ids has, the sink counted."""
        place = self.ledger.places[self.ledger.index(name)]
        return place.num_physical - place.first + 1

    @property
    def open_rows(self) -> int:
        """Rows of a request table that have an owner: none without one."""
        return 0

    def view(self, name: str, dtype: torch.dtype, shape: Sequence[int], *, offset: int = 0) -> torch.Tensor:
        """Return a layer's part of every page of a sub-pool: `[num_physical, *shape]`, `offset` bytes into each page.

        A strided view of the buffer, page-major: what is written shows in the pages, and moves with them. Raises
        InvalidArgument where the part does not lie inside a page, or not on a multiple of its dtype's size.
        """
        return page_view(self.buffer, self.ledger.places[self.ledger.index(name)], dtype, shape, offset)

    def warmup(self) -> None:
        """Compile everything that calls can need."""
        for plans in self._ids.values():
            plans.warmup()

    # ---- counts: host ints, nothing waits ----------------------------------------------------------------------------

    def can_reserve(self, demand: Demand) -> bool:
        """Return whether all of the demand can be met now: whether `reserve`, or a take of it, succeeds."""
        return self.ledger.fits(self.ledger.spread(demand), self._readers.held)

    def free_pages(self, name: str | None = None) -> int:
        """Return the most pages that one sub-pool can take now, if no other takes any."""
        return self.ledger.most(self.ledger.index(self._name(name)), self._readers.held)

    def stats(self) -> PoolStats:
        """Return the host counts."""
        return snapshot(self.ledger, self._readers.held, self.open_rows, self.total_bytes)

    # ---- looking -----------------------------------------------------------------------------------------------------

    def poll(self) -> dict[str, dict[str, int]]:
        """Enqueue a copy of the fault counters and return the newest that has arrived, by sub-pool. Waits for nothing.

        Raises CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError("poll asks which copies have arrived; call it outside the capture")
        return dict(zip(self.tables, self._poll(), strict=True))

    # ---- looking: these wait for the device --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise FaultError with every counter above 0 of the first sub-pool that has one."""
        for tables in self.tables.values():
            check(tables.state)

    def reconcile(self) -> PoolStats:
        """Set the host counts from the state blocks, after a fault was dropped.

        Raises InvalidArgument while a lease is open: settling it would bring back the counts from before.
        """
        self.ledger.need_no_lease()
        for i, words in enumerate(self._chain.tolist()):
            live = words[WATERMARK] - words[HOLE_TOP]
            self.ledger.set_found(i, seat=words[SEAT], span=words[WATERMARK], live=live)
        return self.stats()

    def audit(self) -> list[str]:
        """Recompute everything from the tables and return each term that disagrees; see `pagebind.pool.audit`."""
        return audit_chain(self.ledger, list(self.sub_pools.values()), self.tables, self.total_bytes)

    # ---- what names mean ---------------------------------------------------------------------------------------------

    def _name(self, name: str | None) -> str:
        if name is None:
            return self.rows_of
        self.ledger.index(name)
        return name

    def _need_owner(self, owner: str, borrowers: Sequence[str]) -> None:
        if self.sub_pools[owner].ids_of is not None:
            raise InvalidArgument(
                f"sub-pool {owner!r} borrows the ids of {self.sub_pools[owner].ids_of!r}: name the owner, and this one "
                "beside it"
            )
        able = [s.name for s in self.sub_pools.values() if s.ids_of == owner]
        for name in borrowers:
            if name not in able:
                raise InvalidArgument(f"sub-pool {name!r} does not borrow the ids of {owner!r}; those that do: {able}")

    def _tell_reach(self, index: int, reach: int) -> None:
        self._chain[index, REACH].fill_(reach)


def _need_aligned(sub_pools: Sequence[SubPool]) -> None:
    for s in sub_pools:
        if s.page_bytes % ALIGNMENT:
            raise InvalidArgument(
                f"page_bytes of sub-pool {s.name!r} is {s.page_bytes}; in a real buffer it must be a multiple of "
                f"{ALIGNMENT}: pad the page, or pass buffer=False"
            )
