"""A pool with a request table: its rows, the calls over them, planned once, and what is written to rows as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import INT32_MAX, need_count
from pagebind.pool.allocator import MultiEndedAllocator
from pagebind.pool.chain import SubPool
from pagebind.pool.joint_calls import Call
from pagebind.pool.row_plans import BorrowerPlans, OwnerPlans, Sizes
from pagebind.pool.rows import RequestTable, Row
from pagebind.words import Form


class RowPool(MultiEndedAllocator):
    """Sub-pools under one request table; what rows take and give back is in `RowTakes` and `RowReturns`."""

    def __init__(
        self,
        total_bytes: int,
        sub_pools: Sequence[SubPool],
        *,
        max_requests: int,
        max_context: int,
        max_bs: int,
        max_tokens: int,
        form: Form = "page",
        ranks: int = 1,
        rank: int = 0,
        **settings: Any,
    ) -> None:
        need_count("max_requests", max_requests, 0, INT32_MAX)
        need_count("max_context", max_context, 0, INT32_MAX)
        need_count("max_bs", max_bs, 0, INT32_MAX)
        need_count("max_tokens", max_tokens, 0, INT32_MAX)
        need_count("ranks", ranks, 1, INT32_MAX)
        need_count("rank", rank, 0, ranks - 1)
        super().__init__(total_bytes, sub_pools, **settings)
        self.max_bs, self.max_tokens, self.form = max_bs, max_tokens, form
        self.ranks, self.rank = ranks, rank
        owner = self.sub_pools[self.rows_of]
        self.page_size = owner.page_size * ranks
        """Tokens of a virtual page of the rows: those that all ranks of a group store in it together."""
        need_count("page_size * ranks", self.page_size, 1, INT32_MAX)
        self.requests = RequestTable(max_requests, max_context, self.page_size, form, self.device)
        num_virtual = self.num_virtual(owner.name)
        id_dtype = torch.int32 if num_virtual * self.page_size <= INT32_MAX else torch.int64
        sizes = Sizes(form, max_bs, max_tokens, id_dtype, ranks, rank)
        borrowers = [s for s in sub_pools if s.ids_of == owner.name]
        self._emits = bool(borrowers) or owner.zero_on_alloc or ranks > 1
        self._owner = OwnerPlans(self._ids[owner.name], sizes, emits=self._emits)
        self._borrowers = {s.name: BorrowerPlans(self._ids[s.name], sizes) for s in borrowers}

        def scratch(cells: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(cells, dtype=dtype, device=self.device)

        most_new = min(num_virtual, max_bs + max_tokens // self.page_size)
        self._new_ids, self._new_pages, self._borrowed = (scratch(most_new, id_dtype) for _ in range(3))
        most_slots = max(max_tokens, max_bs)
        self._token_ids = scratch(most_slots, id_dtype)
        self._wide_slots = scratch(most_slots if ranks > 1 else 0, torch.int64)
        self._no_tokens = torch.zeros(max_bs, dtype=torch.int32, device=self.device)
        self._first = {
            name: torch.zeros(max_requests, dtype=torch.int32, device=self.device) for name in self._borrowers
        }

    def warmup(self) -> None:
        """Compile everything that calls of this pool can need; its read tables have a warmup of their own."""
        super().warmup()
        self._owner.warmup()
        for plans in self._borrowers.values():
            plans.warmup()

    @property
    def open_rows(self) -> int:
        """Rows of the request table that have an owner."""
        return self.requests.open_rows

    def open_row(self) -> Row:
        """Hand out a row of the request table; raises InvalidArgument where none is left."""
        return self.requests.open()

    def new_pages(self, prefix: int, tokens: int) -> int:
        """Return the pages a row of `prefix` tokens needs for `tokens` more."""
        return -(-(prefix + tokens) // self.page_size) - -(-prefix // self.page_size)

    def assign(self, req_rows: torch.Tensor, ids: torch.Tensor, indptr: torch.Tensor) -> None:
        """Copy ids in the request table's form to the head of rows; see `pagebind.ops.assign`."""
        args, told = (self.requests.table, req_rows, ids, indptr), {"state": self.tables[self.rows_of].state}
        assign = self._owner.assign.ready(*args, **told)
        touch, words, _ = self._touched(req_rows, self._no_tokens[: req_rows.shape[0]])
        touched = touch.ready(*words)
        assign()
        touched()

    def touch(self, req_rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Tell read tables that others wrote to rows of the request table, from token `tokens[b]` on.

        Both are int32 `[bs]`; see `pagebind.ops.touch`. Calls of this pool tell by themselves.
        """
        self._owner.touch(self.requests.versions, req_rows, tokens, state=self.tables[self.rows_of].state)

    def _touched(self, req_rows: torch.Tensor, tokens: torch.Tensor) -> Call:
        # Bad rows were counted by the call that changed the others.
        return self._owner.touch, (self.requests.versions, req_rows, tokens), {}

    def _need_cells_of_group(self, granularity: Form) -> None:
        if self.ranks > 1 and granularity == "token":
            raise InvalidArgument(
                f"granularity is 'token' in a group of {self.ranks} ranks, each of which stores some tokens of a page; "
                "plan granularity='page'"
            )
