"""The request table and who owns its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagebind.errors import InvalidArgument
from pagebind.ops.touch import new_versions
from pagebind.pool.memory import take
from pagebind.words import HOLE, Form


@dataclass(frozen=True)
class Row:
    """A request's row: its index in the request table, and which owner of that row it is."""

    index: int
    generation: int


class RequestTable:
    """int32 `[max_requests, max_context]` virtual token ids, or `[max_requests, max_pages]` virtual page ids.

    Rows are handed out by the host. A row that was closed has a new generation, so that a late release of its last
    owner is refused instead of emptying the row of the next one.
    """

    def __init__(self, max_requests: int, max_context: int, page_size: int, form: Form, device: torch.device) -> None:
        self.form = form
        self.max_context = max_context
        """Tokens a row has room for."""
        width = max_context if form == "token" else -(-max_context // page_size)
        self.table = take(
            f"a request table of max_requests={max_requests} rows of {width} cells (max_context={max_context})",
            lambda: torch.full((max_requests, width), HOLE, dtype=torch.int32, device=device),
        )
        self.versions = new_versions(max_requests, device)
        """int32 `[max_requests, 2]`: what read tables that are kept compare; see `pagebind.ops.touch`."""
        self._generations = [0] * max_requests
        self._closed = list(range(max_requests - 1, -1, -1))
        self._open: set[Row] = set()

    @property
    def open_rows(self) -> int:
        """Rows that have an owner."""
        return len(self._open)

    def open(self) -> Row:
        """Hand out a row; raises InvalidArgument where none is left."""
        if not self._closed:
            raise InvalidArgument(
                f"all {len(self._generations)} rows have an owner; release one, or plan max_requests for more"
            )
        index = self._closed.pop()
        row = Row(index, self._generations[index])
        self._open.add(row)
        return row

    def need_open(self, rows: Sequence[Row]) -> None:
        """Refuse rows that are not open, or stand twice: a late release, or a second one."""
        if not all(isinstance(row, Row) for row in rows):
            raise InvalidArgument(f"rows is {rows!r}; it must be a sequence of Row, as open_row returns them")
        if len(set(rows)) != len(rows):
            raise InvalidArgument(f"a row stands twice among {[row.index for row in rows]}; name each once")
        for row in rows:
            if row not in self._open:
                raise InvalidArgument(
                    f"row {row.index} (generation {row.generation}) was released before and may have a new owner; "
                    "nothing was changed: release each row once"
                )

    def close(self, rows: Sequence[Row]) -> None:
        """Take rows back; the next owner gets a new generation."""
        for row in rows:
            self._open.remove(row)
            self._generations[row.index] += 1
            self._closed.append(row.index)
