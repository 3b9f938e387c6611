"""Pages that rows give back: their tails, all of them, or those that fell out of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pagebind.errors import CaptureError, InvalidArgument
from pagebind.operation import need_length, need_tensor
from pagebind.ops.evict import Part
from pagebind.plan import capturing
from pagebind.pool.joint_calls import Call
from pagebind.pool.ledger import Demand
from pagebind.pool.row_pool import RowPool
from pagebind.pool.rows import Row


class RowReturns(RowPool):
    """Calls that take pages of rows back."""

    def truncate(
        self, req_rows: torch.Tensor, seq_lens: torch.Tensor, keep_lens: torch.Tensor, *, pages: Demand | None = None
    ) -> None:
        """Cut rows to `keep_lens` tokens; `pages` is what comes back in each sub-pool, 0 in those left out.

        An int is a count of the sub-pool whose ids the rows hold. Inside a capture it is the most that comes back; on
        an open lease it may be None, and no count moves.
        """
        on_lease = self._calls.on_lease(pages)
        counts, calls = self._back(pages, "tail", req_rows, keep_lens, seq_lens)
        owner = self.rows_of
        args = (self.requests.table, req_rows, seq_lens, keep_lens, self.tables[owner])
        calls.append((self._owner.truncate, args, self._freed(owner, pages)))
        calls.append(self._touched(req_rows, keep_lens))
        self._calls.give_back("truncate", None if on_lease else counts, calls)

    def release(
        self,
        rows: Sequence[Row],
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        pages: Demand,
        starts: torch.Tensor | None = None,
    ) -> None:
        """Empty rows and take them back: `rows` on the host, `req_rows` the same on the device.

        `pages` is the number of pages that come back in each sub-pool; with `starts`, those of the first `starts[b]`
        tokens stay bound (a shared prefix). Raises InvalidArgument, changing nothing, for a row that was released
        before, and CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError(
                "release takes rows back on the host, which a replay does not; capture truncate to 0 instead"
            )
        if pages is None:
            raise InvalidArgument("pages is None; rows are taken back on the host, so count the pages that come back")
        self.requests.need_open(rows)
        need_tensor("req_rows", req_rows, torch.int32, 1, self.device)
        need_length("req_rows", req_rows, len(rows), "rows")
        bs = req_rows.shape[0]
        kept = starts if starts is not None else self._no_tokens[:bs]
        counts, calls = self._back(pages, "row", req_rows, kept, seq_lens)
        owner = self.rows_of
        args = (self.requests.table, req_rows, seq_lens, self.tables[owner])
        shared = {} if starts is None else {"starts": starts}
        calls.append((self._owner.release[starts is not None], args, self._freed(owner, pages) | shared))
        calls.append(self._touched(req_rows, self._no_tokens[:bs]))
        self._calls.give_back("release", counts, calls)
        self.requests.close(rows)

    def evict_window(
        self,
        req_rows: torch.Tensor,
        begins: torch.Tensor,
        *,
        pages: int | None = None,
        name: str | None = None,
        starts: torch.Tensor | None = None,
    ) -> None:
        """Give back the pages of a borrower that hold only tokens before `begins[b]`; the ids live on in their rows.

        `pages` is the number that comes back (inside a capture, at most); None on an open lease moves no count. Pages
        of the first `starts[b]` tokens are kept (a shared prefix). `name` may be left out where one sub-pool borrows.
        """
        if name is None:
            if len(self._borrowers) != 1:
                raise InvalidArgument(
                    f"name is None; the sub-pools that borrow ids are {list(self._borrowers)}: name one"
                )
            (name,) = self._borrowers
        self._need_owner(self.rows_of, (name,))
        on_lease = self._calls.on_lease(pages)
        kept = starts if starts is not None else self._no_tokens[: req_rows.shape[0]]
        counts, calls = self._back(
            {name: pages} if pages is not None else None, "head", req_rows, kept, begins, (name,)
        )
        self._calls.give_back("evict_window", None if on_lease else counts, calls)

    def _back(
        self,
        pages: Demand | None,
        part: Part,
        req_rows: torch.Tensor,
        starts: torch.Tensor,
        lens: torch.Tensor,
        names: Sequence[str] | None = None,
    ) -> tuple[list[int], list[Call]]:
        # The counts that come back, and the evictions in the borrowers, which go before their ids do.
        counts = self.ledger.spread(0 if pages is None else pages)
        if any(counts) and req_rows.shape[0] == 0:
            raise InvalidArgument(f"pages={pages} are to come back from an empty batch")
        # Pages of rows that have none in a borrower are passed over there: more are looked at than come back. With a
        # tail or a row, those are what the owner frees; behind a window, all that the rows may have.
        most = counts[self.ledger.index(self.rows_of)]
        if part == "head" or pages is None:
            most = req_rows.shape[0] * self.new_pages(0, self.requests.max_context)
        freed = self._pages[: min(most, self.num_virtual(self.rows_of))]
        calls: list[Call] = []
        for name in self._borrowers if names is None else names:
            args = (self.requests.table, req_rows, starts, lens, self.tables[name])
            told = self._freed(name, pages) | {"freed": freed, "first": self._first[name]}
            calls.append((self._borrowers[name].evict[part], args, told))
        return counts, calls

    def _freed(self, name: str, pages: Demand | None) -> dict[str, Any]:
        # Where the released pages of a call go, and its count unless it is on a lease.
        if pages is None:
            return {"freed": self._pages[: self.ledger.places[self.ledger.index(name)].num_physical]}
        count = self.ledger.spread(pages)[self.ledger.index(name)]
        told = {} if capturing(self.device) else {"pages": count}
        return {"freed": self._pages[:count], **told}
