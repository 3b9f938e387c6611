"""A unified pool beside its model: every call is made on both, and what the pool must hold afterwards is known.

No value is read off the device to make a call: ids follow from the model. So a world also runs where nothing can be
read (`look` False, as on the meta device), and where the host must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch
from pagebind import Backend
from pagebind.errors import InvalidArgument, OutOfPages, PagebindError
from pagebind.ops import OPERATIONS
from pagebind.pool import Lease, PoolStats, Row, SubPool, UnifiedPool

from pagebind_conformance.pool_model import Model, Part
from pagebind_conformance.pool_setups import Setup

T = TypeVar("T")
E = TypeVar("E", bound=PagebindError)

POISON = 0x7A7A7A7A
"""What outputs hold before a call."""


def need(what: str, found: object, right: object) -> None:
    """Fail unless `found` is `right`."""
    if found != right:
        raise AssertionError(f"{what} is {found}, it should be {right}")


@dataclass
class Prefix:
    """Pages at the head of rows that belong to none of them."""

    ids: list[int]
    users: int = 0


@dataclass
class Request:
    """A row of the request table and what it holds."""

    row: Row
    tokens: int = 0
    pages: list[int] = field(default_factory=list)  # ids; 0 where none was found
    prefix: Prefix | None = None
    first: dict[str, int] = field(default_factory=dict)  # by borrower: the first page it may still hold there

    def shared(self) -> int:
        """Return how many of its pages are its prefix's."""
        return len(self.prefix.ids) if self.prefix is not None else 0


@dataclass
class Reader:
    """An event that counts how often a stream was made to wait for it."""

    waits: int = 0
    due: int = 0

    def wait(self) -> None:
        """Count."""
        self.waits += 1


class World:
    """One pool, its model, and the requests and loose ids of its users."""

    def __init__(self, setup: Setup, backend: Backend, device: torch.device, *, look: bool = True) -> None:
        self.setup, self.device, self.look = setup, device, look
        self.pool = UnifiedPool(
            setup.total_bytes,
            [SubPool(**asdict(kind)) for kind in setup.kinds],
            max_requests=setup.max_requests,
            max_context=setup.max_context,
            max_bs=setup.max_bs,
            max_tokens=setup.max_tokens,
            form=setup.form,
            ranks=setup.ranks,
            rank=setup.rank,
            rows_of=setup.rows_of,
            buffer=setup.buffer,
            backend=backend,
            device=device,
            checks=setup.checks,
            index_dtype=setup.index_dtype,
        )
        self.model = Model(setup.total_bytes, setup.kinds)
        self.parts = self.model.parts
        self.owner = setup.owner.name
        self.ps = setup.owner.page_size * setup.ranks
        """Tokens of a page of the rows, with those that other ranks store."""
        self.borrowers = [kind.name for kind in setup.kinds if kind.ids_of == self.owner]
        self.owners = [kind.name for kind in setup.kinds if kind.ids_of is None]
        self.loose: dict[str, list[int]] = {name: [] for name in self.owners}
        self.requests: list[Request] = []
        self.prefixes: list[Prefix] = []
        self.lease: Lease | None = None
        self.counted_since = False  # a call with counts was made while the lease was open
        self.gate = ExitStack()
        self.readers: list[Reader] = []
        self.seen: list[Reader] = []
        self.vacated = False
        self.steps = 0
        self.pending: list[tuple[str, torch.Tensor, list[int]]] = []
        """Outputs of the last call, with what they must hold."""
        self.pending_slots: list[tuple[str, torch.Tensor, list[tuple[int, int]]]] = []
        """Write slots of the last call by sub-pool, with the page id and the offset behind each."""
        self.silent = (
            device.type == "cuda" and setup.checks != "full" and all(name in backend.planners for name in OPERATIONS)
        )
        """Whether no call but those that say so may wait for the device."""
        pages = -(-setup.max_context // self.ps)
        self.read_tables = {
            name: self.pool.plan_read_table(pages, name=name, fill="sink") for name in (self.owner, *self.borrowers)
        }
        self.views = {
            name: self.pool.view(name, torch.int64, (part.kind.page_bytes // 8,))
            for name, part in self.parts.items()
            if setup.buffer
        }

    # ---- making calls ------------------------------------------------------------------------------------------------

    def ints(self, values: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return values as a tensor on the device."""
        return torch.tensor(list(values), dtype=dtype, device=self.device)

    def blank(self, cells: int) -> torch.Tensor:
        """Return a poisoned output, int32 `[cells]`."""
        return torch.full((cells,), POISON, dtype=torch.int32, device=self.device)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Make torch raise where the host would wait, if it may not."""
        if self.silent:
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if self.silent:
                torch.cuda.set_sync_debug_mode("default")

    def act(self, call: Callable[[], T]) -> T:
        """Make a call that succeeds and that waits for nothing."""
        with self.quiet():
            return call()

    def refuse(self, error: type[E], call: Callable[[], object], told: str = "") -> E:
        """Make a call that raises `error`, with `told` in its message, and changes nothing."""
        before = self.snapshot()
        try:
            call()
        except error as caught:
            if told not in str(caught):
                raise AssertionError(f"the message of {caught!r} does not tell {told!r}") from caught
            for what, right in self.snapshot().items():
                same = torch.equal(before[what], right) if isinstance(right, torch.Tensor) else before[what] == right
                if not same:
                    raise AssertionError(f"a call that was refused changed {what}: {caught}") from caught
            return caught
        raise AssertionError(f"a call that has to raise {error.__name__} did not")

    def snapshot(self) -> dict[str, Any]:
        """Return everything that a refused call must leave as it was."""
        held: dict[str, Any] = {"stats": self.pool.stats()}
        if not self.look:
            return held
        for name, tables in self.pool.tables.items():
            for what in ("v2p", "p2v", "virtual_stack", "hole_stack", "state"):
                held[f"{what} of {name!r}"] = getattr(tables, what).clone()
        held["request table"] = self.pool.requests.table.clone()
        held["digest"] = self.pool.digest()
        if self.pool.buffer is not None:
            held["buffer"] = self.pool.buffer.clone()
        return held

    # ---- what calls do to the model ----------------------------------------------------------------------------------

    def why_not(self, demand: Mapping[str, int]) -> type[PagebindError] | None:
        """Return what a take of `demand` raises, or None where it succeeds."""
        if self.model.unknown(demand):
            return InvalidArgument
        return None if self.model.fits(demand) else OutOfPages

    def make_room(self, demand: Mapping[str, int]) -> None:
        """Retreat as the pool does before it takes a demand that fits."""
        if self.model.relieve(demand):
            self.joined()

    def may_lease(self, demand: Mapping[str, int]) -> bool:
        """Return whether a call that takes `demand` may be on the open lease."""
        if self.lease is None or self.counted_since:
            return False
        return all(self.parts[name].held + n <= self.parts[name].leased for name, n in demand.items())

    def taken(self, owner: str, asked: int, also: Sequence[str], *, on_lease: bool) -> list[int]:
        """Take `asked` ids of `owner`, with a page in each of `also`; return them, 0 where none was found."""
        if self.vacated:
            self.joined()
        part = self.parts[owner]
        found = min(self.model.found(part, asked), len(part.stack))
        ids = [part.stack.pop() for _ in range(found)]
        part.counters["starved"] += asked - found
        self._bind(part, ids, on_lease)
        for other in self.model.in_order():
            if other.kind.name in also:
                found = self.model.found(other, len(ids))
                other.counters["starved"] += len(ids) - found
                self._bind(other, ids[:found], on_lease)
        return ids + [0] * (asked - len(ids))

    def _bind(self, part: Part, ids: list[int], on_lease: bool) -> None:
        self.model.take(part, ids)
        self._count(part, len(ids), on_lease)
        if self.look and self.setup.buffer and ids:
            view, pages = self.views[part.kind.name], self.pool.tables[part.kind.name].v2p[self.ints(ids).long()].long()
            if part.kind.zero_on_alloc and bool(view[pages].any()):
                raise AssertionError(f"pages of {part.kind.name!r} were handed out with bytes that are not 0")
            marks = self.ints([part.live[v] for v in ids], torch.int64)
            view[pages] = marks[:, None].expand(-1, view.shape[1])

    def gave(self, name: str, ids: Sequence[int], *, on_lease: bool) -> None:
        """Give back the pages of `ids` in a sub-pool; where it owns them, they go back on the stack."""
        part = self.parts[name]
        for v in ids:
            del part.live[v]
        if part.kind.ids_of is None:
            part.stack += ids
        self._count(part, -len(ids), on_lease)
        self.vacated = bool(self.readers)

    def _count(self, part: Part, pages: int, on_lease: bool) -> None:
        if on_lease:
            part.held += pages
            part.peak = max(part.peak, part.held)
        elif self.lease is not None:
            part.change += pages
            part.highest = max(part.highest, part.change)
            self.counted_since = True

    def joined(self) -> None:
        """Note that the stream waited for every reader."""
        for reader in self.readers:
            reader.due = 1
        self.readers = []
        self.vacated = False

    def open_lease(self, lease: Lease, demand: Mapping[str, int]) -> None:
        """Note that a lease is open."""
        self.lease, self.model.lease_open, self.counted_since = lease, True, False
        for name, part in self.parts.items():
            part.leased, part.opened = demand.get(name, 0), len(part.live)
            part.held = part.peak = part.change = part.highest = 0

    def close_lease(self) -> None:
        """Note that the lease is settled."""
        self.lease, self.model.lease_open = None, False
        for part in self.parts.values():
            part.leased = part.opened = part.held = part.peak = part.change = part.highest = 0

    # ---- what the model says -----------------------------------------------------------------------------------------

    def borrowed(self, ids: Sequence[int], owner: str | None = None) -> dict[str, list[int]]:
        """Return which of `ids` have a page in each sub-pool that borrows them."""
        lender = owner or self.owner
        borrowers = [part for part in self.parts.values() if part.kind.ids_of == lender]
        return {part.kind.name: [v for v in ids if v in part.live] for part in borrowers}

    def untold(self) -> bool:
        """Return whether calls on the lease did what the host was not told of."""
        return any(part.held or part.peak for part in self.parts.values())

    def stats(self) -> PoolStats:
        """Return what the pool says of itself."""
        return self.pool.stats()
