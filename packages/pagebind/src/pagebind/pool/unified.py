"""A pool of several kinds of page in one buffer, under one request table."""

from __future__ import annotations

from typing import Any

import torch

from pagebind.errors import InvalidArgument
from pagebind.ops.read_table import ReadTable as ReadTableCall
from pagebind.ops.read_table import need_width_within, table_tokens
from pagebind.ops.translate import TRANSLATE, Translate
from pagebind.pool.audit import digest_tables
from pagebind.pool.read_table import ReadTable
from pagebind.pool.row_returns import RowReturns
from pagebind.pool.row_takes import RowTakes
from pagebind.words import Fill, Form


class UnifiedPool(RowTakes, RowReturns):
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
        self._need_cells_of_group(granularity)
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

    def digest(self) -> str:
        """Return the SHA-256 of all tables, stacks and positions: equal on ranks that made the same calls."""
        return digest_tables(self.tables, self.requests.table, self._first)
