"""Moves of pages: what makes room for a take, or closes holes, run on the device and then counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pagebind.pool.id_plans import IdPlans
from pagebind.pool.ledger import Ledger
from pagebind.pool.readers import Readers
from pagebind.pool.relief import Move
from pagebind.words import PageTables


class Moves:
    """Runs moves that `pagebind.pool.relief` chose; they are written to `sources` and `targets` on the device."""

    def __init__(
        self,
        ledger: Ledger,
        readers: Readers,
        plans: Mapping[str, IdPlans],
        tables: Mapping[str, PageTables],
        buffer: torch.Tensor | None,
        sources: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        self._ledger, self._readers, self._plans, self._tables = ledger, readers, plans, tables
        self._buffer, self._sources, self._targets = buffer, sources, targets

    def run(self, moves: Sequence[Move]) -> None:
        """Enqueue moves behind all registered readers, and account for them."""
        if not moves:
            return
        self._readers.join()
        for move in moves:
            place = self._ledger.places[move.index]
            buffer = None if self._buffer is None else self._buffer[place.base : place.byte(place.num_physical)]
            self._plans[place.name].compact(
                self._tables[place.name],
                retreat=move.retreat,
                sources=self._sources,
                targets=self._targets,
                buffer=buffer,
                side=move.side,
                fresh=move.fresh,
                skip=move.skip,
            )
            self._ledger.retreat(move)
        self._readers.moved()
        self._readers.vacate()
