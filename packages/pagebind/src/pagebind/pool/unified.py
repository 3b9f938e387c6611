"""A pool of several kinds of page in one buffer, under one request table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pagebind.errors import CaptureError, InvalidArgument, Unsupported
from pagebind.operation import INT32_MAX, need_count, need_length, need_tensor
from pagebind.ops.evict import Part
from pagebind.ops.read_table import ReadTable as ReadTableCall
from pagebind.ops.read_table import need_width_within, table_tokens
from pagebind.ops.translate import TRANSLATE, Translate
from pagebind.plan import Planned, capturing
from pagebind.pool.allocator import Call, MultiEndedAllocator
from pagebind.pool.audit import digest_tables
from pagebind.pool.chain import SubPool
from pagebind.pool.ledger import Demand
from pagebind.pool.read_table import ReadTable
from pagebind.pool.row_plans import BorrowerPlans, OwnerPlans, Sizes
from pagebind.pool.rows import RequestTable, Row
from pagebind.words import Fill, Form


class UnifiedPool(MultiEndedAllocator):
    """Sub-pools of `total_bytes` bytes under one request table; virtual ids stay, physical pages are what kernels read.

    `sub_pools` stand by rising address: one that grows up, one that floats, one that grows down, or fewer. One of them
    owns the ids that the request table holds (`rows_of`, the first owner unless given); those that borrow them bind a
    page of their own to the same id, as a sliding window does. Others hand out ids by `alloc`, as for state slots.

    Rows have room for `max_context` tokens, for `max_requests` requests; batches have up to `max_bs` lanes and
    `max_tokens` new tokens. `form` is the unit of the request table's ids. In a context-parallel group of `ranks`, each
    virtual page of a row has `page_size * ranks` tokens, of which this `rank` stores every `ranks`-th: lengths stay
    those of whole rows, and slots of tokens that others store are 0. With `buffer` False the pool keeps tables only.
    `backend`, `device`, `checks` and `index_dtype` left None come from the configuration.

    A demand that does not fit is met by relief where that helps: neighbours retreat by their holes, a float moves. It
    happens in the call that needs it, on the device, and the host waits for nothing. One host thread and one stream at
    a time. Calls inside a CUDA graph capture move no host counts: `reserve` a lease before the replays and `settle` it
    after. Outside of one, a call with `pages=None` is on the open lease in the same way.

    >>> full = SubPool(name="full", page_size=16, page_bytes=4096, grows="up")
    >>> window = SubPool(name="window", page_size=16, page_bytes=2048, grows="down", ids_of="full")
    >>> sizes = {"max_requests": 8, "max_context": 4096, "max_bs": 8, "max_tokens": 512}
    >>> pool = UnifiedPool(2**20, [full, window], **sizes, device="cpu")
    >>> ids = pool.alloc(3, also=["window"])
    >>> pool.free(ids, also={"window": 3})
    >>> pool.stats().sub_pools["window"].holes
    3
    """

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

    def plan_read_table(
        self,
        max_width: int,
        *,
        name: str | None = None,
        granularity: Form = "page",
        fill: Fill = "prefix",
        windowed: bool = False,
        out_dtype: torch.dtype = torch.int32,
        beside: str | None = None,
        beside_windowed: bool = False,
    ) -> ReadTableCall:
        """Plan a read table over sub-pool `name`, of up to `max_width` columns (cells of `granularity`).

        Call it with `pool.requests.table`, `pool.tables[name].v2p` and `state=pool.tables[name].state`. With the name
        of a second sub-pool, as a window's, `beside` plans for the tables of both in one call: pass it
        `beside=SecondTable(pool.tables[beside].v2p, out, starts, pool.tables[beside].state)`. In a context-parallel
        group tables hold pages: raises InvalidArgument for tokens; Unsupported where the backend does not declare it.
        """
        asked = self._table(max_width, granularity) | {"fill": fill, "windowed": windowed, "out_dtype": out_dtype}
        if beside is not None:
            asked["beside"] = self._ids[self._name(beside)].beside(windowed=beside_windowed)
        elif beside_windowed:
            raise InvalidArgument("beside_windowed is True without beside: name the second sub-pool")
        return self._ids[self._name(name)].read_table(**asked)

    def read_table(
        self,
        width: int,
        *,
        name: str | None = None,
        granularity: Form = "page",
        fill: Fill = "prefix",
        windowed: bool = False,
        out_dtype: torch.dtype = torch.int32,
    ) -> ReadTable:
        """Make a read table over sub-pool `name`, of `max_bs` rows and `width` columns (cells of `granularity`).

        It is kept: each `refresh` writes what changed since the last one. Calls of this pool are seen by themselves;
        writes to `pool.requests.table` by others are declared by `pool.touch`. Raises InvalidArgument as
        plan_read_table, and for columns past a row.
        """
        name = self._name(name)
        tokens = table_tokens(self.form, self.page_size, self.requests.table)
        need_width_within(width, granularity, self.page_size, tokens)
        asked = self._table(width, granularity) | {"fill": fill, "windowed": windowed, "out_dtype": out_dtype}
        launch = self._ids[name].refresh_table(**asked, borrowed=name in self._borrowers)
        cells = torch.zeros((self.max_bs, width), dtype=out_dtype, device=self.device)
        return ReadTable(launch, cells, self.requests, self.tables[name], self._first.get(name))

    def _table(self, max_width: int, granularity: Form) -> dict[str, Any]:
        if self.ranks > 1 and granularity == "token":
            raise InvalidArgument(
                f"granularity is 'token' in a group of {self.ranks} ranks, each of which stores some tokens of a page; "
                "plan granularity='page'"
            )
        return {
            "max_bs": self.max_bs,
            "max_width": max_width,
            "page_size": self.page_size,
            "form": self.form,
            "granularity": granularity,
        }

    def plan_translate(
        self,
        max_items: int,
        *,
        name: str | None = None,
        id_dtype: torch.dtype = torch.int32,
        out_dtype: torch.dtype = torch.int32,
    ) -> Translate:
        """Plan a translation of token ids to entries of sub-pool `name`; those of tokens of other ranks are 0."""
        plans = self._ids[self._name(name)]
        return TRANSLATE.call_type(
            plans.plan_translate(max_items, id_dtype, out_dtype, ranks=self.ranks, rank=self.rank)
        )

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

    # ---- pages by row ------------------------------------------------------------------------------------------------

    def open_row(self) -> Row:
        """Hand out a row of the request table; raises InvalidArgument where none is left."""
        return self.requests.open()

    def new_pages(self, prefix: int, tokens: int) -> int:
        """Return the pages a row of `prefix` tokens needs for `tokens` more."""
        return -(-(prefix + tokens) // self.page_size) - -(-prefix // self.page_size)

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
            self._table(0, granularity)
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
        on_lease = self._on_lease(pages)
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
        for launch, cleared in zip(self._make_room(counts, calls), clears, strict=True):
            launch()
            if cleared is not None:
                self._clear(*cleared)
        if not on_lease:
            self.ledger.take(counts)

    def truncate(
        self, req_rows: torch.Tensor, seq_lens: torch.Tensor, keep_lens: torch.Tensor, *, pages: Demand | None = None
    ) -> None:
        """Cut rows to `keep_lens` tokens; `pages` is what comes back in each sub-pool, 0 in those left out.

        An int is a count of the sub-pool whose ids the rows hold. Inside a capture it is the most that comes back; on
        an open lease it may be None, and no count moves.
        """
        on_lease = self._on_lease(pages)
        counts, calls = self._back(pages, "tail", req_rows, keep_lens, seq_lens)
        owner = self.rows_of
        args = (self.requests.table, req_rows, seq_lens, keep_lens, self.tables[owner])
        calls.append((self._owner.truncate, args, self._freed(owner, pages)))
        calls.append(self._touched(req_rows, keep_lens))
        self._give_back("truncate", None if on_lease else counts, calls)

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
        self._give_back("release", counts, calls)
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
        on_lease = self._on_lease(pages)
        kept = starts if starts is not None else self._no_tokens[: req_rows.shape[0]]
        counts, calls = self._back(
            {name: pages} if pages is not None else None, "head", req_rows, kept, begins, (name,)
        )
        self._give_back("evict_window", None if on_lease else counts, calls)

    def digest(self) -> str:
        """Return the SHA-256 of all tables, stacks and positions: equal on ranks that made the same calls."""
        return digest_tables(self.tables, self.requests.table, self._first)

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
