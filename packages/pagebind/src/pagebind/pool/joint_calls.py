"""The planned calls that make up one call of a pool: found sound together, given room, launched, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from pagebind.errors import FaultError, InvalidArgument
from pagebind.plan import Planned, capturing, refused
from pagebind.pool.chain import SubPool
from pagebind.pool.full_checks import Releases, need_sound
from pagebind.pool.ledger import Demand, Ledger
from pagebind.pool.moves import Moves
from pagebind.pool.readers import Readers
from pagebind.words import PageTables

Call = tuple[Planned, tuple[Any, ...], dict[str, Any]]
"""A planned call with its arguments: all those of one call of a pool are checked before the first of them launches."""


class JointCalls:
    """How calls of a pool take pages and give them back."""

    def __init__(
        self,
        device: torch.device,
        checks: str,
        ledger: Ledger,
        readers: Readers,
        moves: Moves,
        sub_pools: Mapping[str, SubPool],
        tables: Mapping[str, PageTables],
    ) -> None:
        self._device, self._ledger, self._readers, self._moves, self._tables = device, ledger, readers, moves, tables
        self._borrowers = {name: tables[name] for name, s in sub_pools.items() if s.ids_of is not None}
        self._releases = Releases() if checks == "full" else None

    def on_lease(self, pages: Demand | None) -> bool:
        """Return whether a call moves no counts: inside a capture, or with no count while a lease is open."""
        if capturing(self._device):
            return True
        if pages is None and self._ledger.lease is None:
            raise InvalidArgument(
                "pages is None and no lease is open; count the pages of the call, or reserve a lease before it"
            )
        return pages is None

    def make_room(self, counts: Sequence[int], calls: Sequence[Call]) -> list[Callable[[], None]]:
        """Make room for `counts` pages and return what launches the calls that take them.

        Nothing begins, no move either, before all calls are known to be sound.
        """
        if capturing(self._device):
            return _ready(calls)
        moves = self._ledger.moves_for(counts, self._readers.held)
        if self._releases is not None:
            # What is looked at for faults is what there is after the moves and earlier calls.
            for planned, args, kwargs in calls:
                planned.need_arguments(*args, **kwargs)
            need_sound(*calls[0], room_comes=bool(moves))
            launches: list[Callable[[], None]] = [partial(planned, *args, **kwargs) for planned, args, kwargs in calls]
        else:
            launches = _ready(calls)
        self._moves.run(moves)
        self._readers.before_take()
        return launches

    def give_back(self, what: str, counts: Sequence[int] | None, calls: Sequence[Call]) -> None:
        """Launch the calls that make up `what`, and account for `counts` pages that come back: for none on a lease."""
        captured = capturing(self._device)
        counted = None if captured else counts
        if counted is not None:
            self._ledger.need_live(counted)
        with nullcontext() if self._releases is None else self._releases.watch(what, self._tables):
            try:
                launches = _ready(calls)
            except (InvalidArgument, FaultError):
                self._blame(what, calls)
                raise
            for launch in launches:
                launch()
        if counted is not None:
            self._ledger.give(counted)
        if not captured:
            self._readers.vacate()

    def _blame(self, what: str, calls: Sequence[Call]) -> None:
        # What is refused is told of the call `what` that was made, not of one of its parts.
        for planned, args, kwargs in sorted(calls, key=lambda call: call[0].operation.name != what):
            try:
                planned.check(*args, **kwargs)
            except FaultError as error:
                part = "" if planned.operation.name == what else f"; found by {planned.operation.name}"
                of = [name for name, tables in self._borrowers.items() if any(tables is given for given in args)]
                raise refused(what, error.ids, f"{part} in sub-pool {of[0]!r}" if of else part) from None


def _ready(calls: Sequence[Call]) -> list[Callable[[], None]]:
    # All are checked before the first of them launches.
    return [planned.ready(*args, **kwargs) for planned, args, kwargs in calls]
