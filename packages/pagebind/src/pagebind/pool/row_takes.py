"""Pages that rows take: for a prompt or a chunk of it, or for the next token of every row of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pagebind.errors import InvalidArgument, Unsupported
from pagebind.operation import need_count, need_length, need_tensor
from pagebind.plan import Planned, capturing
from pagebind.pool.joint_calls import Call
from pagebind.pool.row_pool import RowPool
from pagebind.words import Form


class RowTakes(RowPool):
    """Calls that give rows pages."""

    def extend(
        self,
        req_rows: torch.Tensor,
        prefix_lens: torch.Tensor,
        indptr: torch.Tensor,
        *,
        slots: torch.Tensor | Mapping[str, torch.Tensor],
        pages: int | None = None,
    ) -> None:
        """Give rows pages for new tokens and emit their write slots; see `pagebind.ops.extend`.

        `slots`, int32 `[capacity]`, are those of the sub-pool whose ids the rows hold; with a mapping, each borrower
        named in it gets a page for the same new ids, and its slots. `pages` is the number of new pages (`new_pages`
        summed over the lanes), in each of these sub-pools. Raises OutOfPages, changing nothing, where they are not
        free. Inside a capture, or with None on an open lease, no count moves: the lease bounds it.
        """
        self._give_tokens(self._owner.extend, (req_rows, prefix_lens, indptr), slots, pages, {})

    def advance(
        self,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        slots: torch.Tensor | Mapping[str, torch.Tensor],
        pages: int | None = None,
        table: torch.Tensor | None = None,
        granularity: Form = "page",
    ) -> None:
        """Take one decode step: every row gets its next token, and `seq_lens` goes up; see `pagebind.ops.advance`.

        `slots` as in extend, int32 `[bs]`; `pages` is the number of lanes whose token begins a page, in each of these
        sub-pools. With `table`, int32, a read table of the sub-pool whose ids the rows hold, of cells of `granularity`,
        the token's column is appended. Inside a capture, or with None on an open lease, no count moves: a captured step
        replays for as long as the lease has pages. Raises Unsupported for a sub-pool with zero_on_alloc.
        """
        for name in (self.rows_of, *(slots if isinstance(slots, Mapping) else ())):
            if name in self.sub_pools and self.sub_pools[name].zero_on_alloc:
                raise Unsupported(
                    f"sub-pool {name!r} has zero_on_alloc, and advance clears no pages: call extend, a token a lane"
                )
        if table is not None:
            self._need_cells_of_group(granularity)
        planned = self._owner.advance(None if table is None else granularity)
        self._give_tokens(planned, (req_rows, seq_lens), slots, pages, {} if table is None else {"table": table})

    def _give_tokens(
        self,
        planned: Planned,
        lanes: Sequence[torch.Tensor],
        slots: torch.Tensor | Mapping[str, torch.Tensor],
        pages: int | None,
        more: Mapping[str, Any],
    ) -> None:
        # A call of the owner that gives rows tokens, then each borrower's pages under the same ids.
        if pages is not None:
            need_count("pages", pages, 0)
        owner, req_rows = self.rows_of, lanes[0]
        wanted = dict(slots) if isinstance(slots, Mapping) else {owner: slots}
        if owner not in wanted:
            raise InvalidArgument(f"slots has no {owner!r}, whose ids the request table holds; it has {list(wanted)}")
        own = wanted.pop(owner)
        self._need_owner(owner, tuple(wanted))
        on_lease = self._calls.on_lease(pages)
        wide = own if self.ranks == 1 else self._wide_slots[: own.shape[0]]
        told: dict[str, Any] = {"slots": wide, "pages": None if capturing(self.device) else pages, **more}
        if self._emits:
            need_tensor("slots", own, torch.int32, 1, self.device)
            most = min(own.shape[0], req_rows.shape[0] + own.shape[0] // self.page_size, self._new_ids.shape[0])
            new = slice(0, most if pages is None else min(pages, self._new_ids.shape[0]))
            told |= {"new_ids": self._new_ids[new], "new_pages": self._new_pages[new]}
            told["token_ids"] = self._token_ids[: own.shape[0]]
        args = (self.requests.table, *lanes, self.tables[owner])
        calls: list[Call] = [(planned, args, told)]
        clears: list[tuple[str, torch.Tensor] | None] = [(owner, told["new_pages"]) if self._emits else None]
        if self.ranks > 1:
            calls.append((self._owner.slots, (told["token_ids"], self.tables[owner].v2p), {"out": own}))
            clears.append(None)
        for name in self.ledger.in_order(wanted):
            out = wanted[name]
            need_length(f"slots of {name!r}", out, own.shape[0], f"slots of {owner!r}")
            tables, taken = self.tables[name], self._borrowed[: told["new_ids"].shape[0]]
            borrow = (self._borrowers[name].borrow, (tables,), {"ids": told["new_ids"], "pages": taken})
            translate = (self._borrowers[name].slots, (told["token_ids"], tables.v2p), {"out": out})
            calls += [borrow, translate]
            clears += [(name, taken), None]
        counts = self.ledger.spread(dict.fromkeys((owner, *wanted), pages or 0))
        for launch, cleared in zip(self._calls.make_room(counts, calls), clears, strict=True):
            launch()
            if cleared is not None:
                self._clear(*cleared)
        if not on_lease:
            self.ledger.take(counts)
