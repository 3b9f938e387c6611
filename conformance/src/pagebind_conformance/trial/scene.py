"""A request table whose rows hold pages of their own, and tables that follow it as it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from pagebind.ops import RefreshTableSpec, TouchSpec

from pagebind_conformance import generate
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How
from pagebind_conformance.trial.refresh_table import Cells, Refreshed
from pagebind_conformance.trial.touch import touch

SPARE = 40
"""Ids that are bound and stand in no row."""


class Scene:
    """Rows, versions, `first`, the page table and the epoch: what a refresh reads. Cases write them as they like."""

    def __init__(
        self, subject: Subject, page_size: int, form: str, *, rows: int = 4, pages: int = 6, num_physical: int = 512
    ) -> None:
        """Fill every row with `pages` different pages."""
        rng = Random(rows + pages)
        held = rows * pages
        self.subject, self.page_size, self.form, self.pages = subject, page_size, form, pages
        self.v2p, _ = generate.page_tables(rng, held + SPARE + 1, num_physical, held + SPARE)
        ids = rng.sample(range(1, held + SPARE + 1), held + SPARE)
        self.spare = ids[held:]
        self.request_table = [generate.spread(ids[r * pages : (r + 1) * pages], page_size, form) for r in range(rows)]
        self.versions = [[0, 0] for _ in range(rows)]
        self.first = [0] * rows
        self.epoch = 5
        self.telling = replace(subject, composed=True)  # whoever refreshes may leave touch to its composed form
        self.touches = TouchSpec(max_bs=80)

    def table(
        self, spec: RefreshTableSpec, rows: int, how: How = USUAL, built: Sequence[Sequence[int]] | None = None
    ) -> Refreshed:
        """Return a table of so many rows, as wide as a row of the request table."""
        width = self.pages * (1 if spec.granularity == "page" else self.page_size)
        return Refreshed(self.subject, spec, rows, width, how, built)

    def refresh(self, table: Refreshed, req_rows: Sequence[int], lens: Sequence[int], **more: Any) -> Cells:
        """Bring a table up to date; return which columns of each row the call wrote."""
        __tracebackhide__ = True
        first = self.first if table.spec.borrowed else None
        given = {"epoch": self.epoch, "first": first, **more}
        table.refresh(self.request_table, req_rows, lens, self.v2p, self.versions, **given)
        return table.written

    def touch(self, row: int, token: int) -> None:
        """Tell that a row changed from a token on."""
        self.versions = touch(self.telling, self.touches, self.versions, [row], [token])

    def renew(self, row: int, page: int) -> None:
        """Put another page in the place of one of a row's."""
        self.write(row, page, self.spare.pop())

    def write(self, row: int, page: int, virtual: int) -> None:
        """Write a page id, or a hole where it is negative, into a row."""
        cells = generate.spread([virtual], self.page_size, self.form)
        at = page * len(cells)
        self.request_table[row][at : at + len(cells)] = cells

    def move(self, row: int, page: int) -> None:
        """Move a row's page to where a spare one lies, as a compaction moves it."""
        cell = self.request_table[row][page * (self.page_size if self.form == "token" else 1)]
        v, other = cell // (self.page_size if self.form == "token" else 1), self.spare[-1]
        self.v2p[v], self.v2p[other] = self.v2p[other], self.v2p[v]
