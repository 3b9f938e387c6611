"""Virtual ids and physical pages of the sub-pools of one buffer: taken, given back, moved, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from pagebind.backend import Backend
from pagebind.config import resolve
from pagebind.errors import CaptureError, FaultError, InvalidArgument
from pagebind.operation import Checks, need_choice, need_count, need_length, need_tensor
from pagebind.ops.compact import ALIGNMENT, SIDES, Side
from pagebind.plan import Planned, capturing, check, refused
from pagebind.pool.audit import audit_chain
from pagebind.pool.chain import GROWTH_WORDS, SubPool, lay_out
from pagebind.pool.id_plans import IdPlans
from pagebind.pool.ledger import Demand, Lease, Ledger
from pagebind.pool.memory import take
from pagebind.pool.polling import Poll
from pagebind.pool.readers import Event, Readers
from pagebind.pool.releases import Releases
from pagebind.pool.relief import Move
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
    SINK,
    STATE_WORDS,
    WATERMARK,
    PageTables,
    new_tables,
)

Call = tuple[Planned, tuple[Any, ...], dict[str, Any]]
"""A planned call with its arguments: checked with all others of a request before the first of them launches."""


class MultiEndedAllocator:
    """Sub-pools that grow up, down or float in one buffer of `total_bytes`; see `UnifiedPool` for what they are.

    Calls by id need no request table: ids are handed out and taken back. `rows_of` is the sub-pool that calls without a
    `name` mean, the first that owns its ids unless given.
    """

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
        self._releases = Releases() if self.checks == "full" else None

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

    def reserve(self, demand: Demand) -> Lease:
        """Set pages aside for replays or calls with `pages=None`, and make room for them now.

        Raises OutOfPages, changing nothing, where the demand does not fit; InvalidArgument while a lease is open.
        """
        if capturing(self.device):
            raise CaptureError("reserve makes room on the host's counts, which a replay does not; reserve before it")
        self.ledger.need_no_lease()
        counts = self.ledger.spread(demand)
        self._relieve(counts)
        return self.ledger.open_lease(counts)

    def stats(self) -> PoolStats:
        """Return the host counts."""
        return snapshot(self.ledger, self._readers.held, self.open_rows, self.total_bytes)

    # ---- pages by id -------------------------------------------------------------------------------------------------

    def alloc(
        self,
        count: int,
        *,
        name: str | None = None,
        also: Sequence[str] = (),
        ids: torch.Tensor | None = None,
        on_lease: bool = False,
    ) -> torch.Tensor:
        """Take `count` pages of `name` and return their virtual ids, int32 `[count]` (written to `ids` where given).

        `also` names sub-pools that borrow these ids and bind a page of their own to each. Inside a capture, or told to
        be `on_lease`, no count moves: the open lease bounds it. Raises OutOfPages, changing nothing, where the pages
        are not free.
        """
        name = self._name(name)
        need_count("count", count, 0)
        self._need_owner(name, also)
        if ids is None:
            ids = torch.empty(count, dtype=torch.int32, device=self.device)
        need_tensor("ids", ids, torch.int32, 1, self.device)
        need_length("ids", ids, count, "count")
        counts = self.ledger.spread(dict.fromkeys((name, *also), count))
        pages = self._pages[:count]
        calls: list[Call] = [(self._ids[name].alloc, (self.tables[name],), {"ids": ids, "pages": pages})]
        clears = [(name, pages)]
        for borrower in self.ledger.in_order(also):
            taken = self._targets[:count]
            calls.append((self._ids[borrower].alloc, (self.tables[borrower],), {"ids": ids, "pages": taken}))
            clears.append((borrower, taken))
        on_lease = self._on_lease(None if on_lease else count)
        launches = self._make_room([0] * len(counts) if on_lease else counts, calls)
        for launch, (cleared, of) in zip(launches, clears, strict=True):
            launch()
            self._clear(cleared, of)
        if not on_lease:
            self.ledger.take(counts)
        return ids

    def free(
        self,
        ids: torch.Tensor,
        *,
        name: str | None = None,
        also: Mapping[str, int] | None = None,
        on_lease: bool = False,
    ) -> None:
        """Free virtual page ids of `name`, int32 `[n]`, each bound there.

        `also` says how many of them have a page in sub-pools that borrow them: those go first. Inside a capture, or
        told to be `on_lease`, no count moves. A fault is dropped and counted, and then counts are off.
        """
        name, also = self._name(name), also or {}
        need_tensor("ids", ids, torch.int32, 1, self.device)
        self._need_owner(name, tuple(also))
        n = ids.shape[0]
        counts = self.ledger.spread({name: n, **also})
        freed = self._pages[:n]
        calls: list[Call] = [
            (self._ids[b].free, (ids, self.tables[b]), {"freed": freed, "pages": pages}) for b, pages in also.items()
        ]
        calls.append((self._ids[name].free, (ids, self.tables[name]), {"freed": freed}))
        self._give_back("free", None if self._on_lease(None if on_lease else n) else counts, calls)

    # ---- moving pages ------------------------------------------------------------------------------------------------

    def compact(self, max_pages: int | None = None, *, name: str | None = None, side: Side = "high") -> int:
        """Close holes: retreat a span by up to `max_pages` holes, all of them by default; return the pages retreated.

        `side` is the end at which a float retreats. Moves are picked, copied and rebound on the device; the current
        stream waits for registered readers first, the host for nothing. 0 while the move gate is closed. Raises
        InvalidArgument while a lease is open, CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError("compact decides on the host how far to retreat; call it outside the capture")
        if max_pages is not None:
            need_count("max_pages", max_pages, 0)
        need_choice("side", side, SIDES)
        index = self.ledger.index(self._name(name))
        holes = self.ledger.positions[index].holes
        retreat = 0 if self._readers.held else min(holes, holes if max_pages is None else max_pages)
        if not retreat:
            return 0
        self.ledger.need_no_lease()
        grows = self.ledger.places[index].grows
        at = side if grows == "float" else "high" if grows == "up" else "low"
        self._move([Move(index, at, retreat)])
        return retreat

    def hold_moves(self) -> AbstractContextManager[None]:
        """Close the move gate for a `with` block, in which a transfer reads pages; then nothing is moved.

        Capacity figures honour it: what would need a retreat is not free meanwhile. The current stream is ordered
        behind the moves that were enqueued before.
        """
        return self._readers.hold()

    def reading(self, event: Event) -> None:
        """Register a reader whose reads end at `event`: moves, and takes of pages vacated meanwhile, wait for it.

        The stream waits, never the host. Inside a capture nothing waits: call `join_readers` before the replay.
        """
        self._readers.reading(event)

    def join_readers(self) -> None:
        """Make the current stream wait for every registered reader now."""
        self._readers.join()

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

    # ---- how calls are made ------------------------------------------------------------------------------------------

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

    def _on_lease(self, pages: Demand | None) -> bool:
        """Return whether a call moves no counts: inside a capture, or with no count while a lease is open."""
        if capturing(self.device):
            return True
        if pages is None and self.ledger.lease is None:
            raise InvalidArgument(
                "pages is None and no lease is open; count the pages of the call, or reserve a lease before it"
            )
        return pages is None

    def _make_room(self, counts: Sequence[int], calls: Sequence[Call]) -> list[Callable[[], None]]:
        # Return what launches. Nothing begins, no move either, before all calls are known to be sound.
        if capturing(self.device):
            return _ready(calls)
        moves = self.ledger.moves_for(counts, self._readers.held)
        if self.checks == "full":  # what is looked at for faults is what there is after the moves and earlier calls
            for planned, args, kwargs in calls:
                planned.need_arguments(*args, **kwargs)
            _need_sound(calls[0], room_comes=bool(moves))
            launches: list[Callable[[], None]] = [partial(planned, *args, **kwargs) for planned, args, kwargs in calls]
        else:
            launches = _ready(calls)
        self._move(moves)
        self._readers.before_take()
        return launches

    def _relieve(self, counts: Sequence[int]) -> None:
        self._move(self.ledger.moves_for(counts, self._readers.held))

    def _move(self, moves: Sequence[Move]) -> None:
        if not moves:
            return
        self._readers.join()
        for move in moves:
            place = self.ledger.places[move.index]
            buffer = None if self.buffer is None else self.buffer[place.base : place.byte(place.num_physical)]
            self._ids[place.name].compact(
                self.tables[place.name],
                retreat=move.retreat,
                sources=self._pages,
                targets=self._targets,
                buffer=buffer,
                side=move.side,
                fresh=move.fresh,
                skip=move.skip,
            )
            self.ledger.retreat(move)
        self._readers.moved()
        self._readers.vacate()

    def _blame(self, what: str, calls: Sequence[Call]) -> None:
        # What is refused is told of the call `what` that was made, not of one of its parts.
        for planned, args, kwargs in sorted(calls, key=lambda call: call[0].operation.name != what):
            try:
                planned.check(*args, **kwargs)
            except FaultError as error:
                part = "" if planned.operation.name == what else f"; found by {planned.operation.name}"
                borrowers = {name: self.tables[name] for name, s in self.sub_pools.items() if s.ids_of is not None}
                of = [name for name, tables in borrowers.items() if any(tables is given for given in args)]
                raise refused(what, error.ids, f"{part} in sub-pool {of[0]!r}" if of else part) from None

    def _give_back(self, what: str, counts: Sequence[int] | None, calls: Sequence[Call]) -> None:
        counted = counts is not None and not capturing(self.device)
        if counted and counts is not None:
            self.ledger.need_live(counts)
        with nullcontext() if self._releases is None else self._releases.watch(what, self.tables):
            try:
                launches = _ready(calls)
            except (InvalidArgument, FaultError):
                self._blame(what, calls)
                raise
            for launch in launches:
                launch()
        if counted and counts is not None:
            self.ledger.give(counts)
        if not capturing(self.device):
            self._readers.vacate()

    def _tell_reach(self, index: int, reach: int) -> None:
        self._chain[index, REACH].fill_(reach)

    def _clear(self, name: str, pages: torch.Tensor) -> None:
        # Clears the bytes of pages that were handed out; lanes that got none clear the sink, which holds nothing.
        if self.buffer is None or not self.sub_pools[name].zero_on_alloc or not pages.shape[0]:
            return
        place = self.ledger.places[self.ledger.index(name)]
        index = self._to_clear[: pages.shape[0]].copy_(pages).clamp_(min=SINK)
        words = self.buffer[place.base : place.byte(place.num_physical)].view(torch.int64)
        words.view(place.num_physical, -1).index_fill_(0, index, 0)


def _ready(calls: Sequence[Call]) -> list[Callable[[], None]]:
    # All are checked before the first of them launches.
    return [planned.ready(*args, **kwargs) for planned, args, kwargs in calls]


def _need_sound(call: Call, *, room_comes: bool) -> None:
    # A fault is found before anything moves; what starves only until the moves made room is none.
    planned, args, kwargs = call
    try:
        planned.check(*args, **kwargs)
    except FaultError as error:
        if not room_comes or set(error.counters) != {"starved"}:
            raise


def _need_aligned(sub_pools: Sequence[SubPool]) -> None:
    for s in sub_pools:
        if s.page_bytes % ALIGNMENT:
            raise InvalidArgument(
                f"page_bytes of sub-pool {s.name!r} is {s.page_bytes}; in a real buffer it must be a multiple of "
                f"{ALIGNMENT}: pad the page, or pass buffer=False"
            )
