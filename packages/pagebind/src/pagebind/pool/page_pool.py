"""A pool of one kind of page: device tables, host counts, a request table, and the operations planned over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from pagebind.backend import Backend
from pagebind.config import resolve
from pagebind.errors import CaptureError, InvalidArgument
from pagebind.operation import INT32_MAX, Checks, need_count, need_length, need_tensor
from pagebind.ops.read_table import ReadTable
from pagebind.plan import capturing, check
from pagebind.pool.audit import audit_tables, digest_tables
from pagebind.pool.counts import Counts, Lease
from pagebind.pool.plans import Geometry, PoolPlans
from pagebind.pool.polling import Poll
from pagebind.pool.readers import Event, Readers
from pagebind.pool.rows import RequestTable, Row
from pagebind.registry import settle
from pagebind.words import HOLE_TOP, WATERMARK, Fill, Form, new_tables


@dataclass(frozen=True)
class PoolStats:
    """A snapshot of a pool's host counts, in pages but for `rows`; exact until a fault is dropped."""

    capacity: int
    live: int
    holes: int
    span: int
    free: int
    leased: int
    rows: int


class PagePool:
    """Pages of one kind under one request table; virtual ids stay, physical pages are what kernels read.

    `num_pages` pages of `page_size` tokens (the sink comes on top), rows of up to `max_context` tokens for
    `max_requests` requests, batches of up to `max_bs` lanes and `max_tokens` new tokens a call. `form` is the unit of
    the request table's ids. With `page_bytes` above 0 the pool has a byte buffer, page p at `p * page_bytes`; without,
    it keeps tables only. `backend`, `device`, `checks` and `index_dtype` left None come from the configuration.

    One host thread and one stream at a time. Calls inside a CUDA graph capture move no host counts: `reserve` a lease
    before the replays and `settle` it after.

    >>> pool = PagePool(1024, 16, max_requests=8, max_context=4096, max_bs=8, max_tokens=4096, device="cpu")
    >>> ids = pool.alloc(3)
    >>> pool.free(ids)
    >>> pool.stats().holes
    3
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        max_requests: int,
        max_context: int,
        max_bs: int,
        max_tokens: int,
        form: Form = "page",
        multiplier: int = 1,
        page_bytes: int = 0,
        backend: str | Backend | None = None,
        device: str | torch.device | None = None,
        checks: Checks | None = None,
        index_dtype: torch.dtype | None = None,
    ) -> None:
        need_count("num_pages", num_pages, 0, INT32_MAX - 1)
        need_count("max_requests", max_requests, 0, INT32_MAX)
        need_count("max_context", max_context, 0, INT32_MAX)
        config = resolve(
            backend=None if isinstance(backend, Backend) else backend,
            device=None if device is None else str(device),
            checks=checks,
            index_dtype=None if index_dtype is None else str(index_dtype).removeprefix("torch."),
        )
        self.backend, self.device = settle(backend if isinstance(backend, Backend) else config.backend, config.device)
        self.page_size, self.form, self.multiplier = page_size, form, multiplier
        self.num_pages = num_pages
        self.max_bs = max_bs
        self._dtype = torch.int32 if config.index_dtype.value == "int32" else torch.int64
        self._plans = PoolPlans(
            Geometry(num_pages, page_size, form, multiplier, page_bytes, max_bs, max_tokens, self._dtype),
            self.backend,
            self.device,
            config.checks.value,
        )
        num = num_pages + 1
        self.tables = new_tables(num, num, self.device, self._dtype)
        """Device tables, stacks and state block."""
        self.requests = RequestTable(max_requests, max_context, page_size, form, self.device)
        self._counts = Counts(num_pages)
        self._pages, self._targets = (torch.empty(num_pages, dtype=torch.int32, device=self.device) for _ in range(2))
        self._readers = Readers(self.device)
        self._poll = Poll(self.tables.state)
        self.page_bytes = page_bytes
        self.buffer = torch.zeros(num * page_bytes, dtype=torch.uint8, device=self.device) if page_bytes else None
        """Bytes of the pages, uint8 `[(num_pages + 1) * page_bytes]`, or None."""

    def plan_read_table(
        self,
        max_width: int,
        *,
        granularity: Form = "page",
        fill: Fill = "prefix",
        windowed: bool = False,
        out_dtype: torch.dtype = torch.int32,
    ) -> ReadTable:
        """Plan a read table over this pool, of up to `max_width` columns (cells of `granularity`).

        Call it with `pool.requests.table`, `pool.tables.v2p` and `state=pool.tables.state`.
        """
        return self._plans.read_table(
            max_width, granularity=granularity, fill=fill, windowed=windowed, out_dtype=out_dtype
        )

    def warmup(self) -> None:
        """Compile everything that calls of this pool can need; its read tables have a warmup of their own."""
        self._plans.warmup()

    # ---- counts: host ints, nothing waits ----------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages a call can take now."""
        return self._counts.free

    def can_reserve(self, pages: int) -> bool:
        """Return whether `pages` can be taken or leased now."""
        need_count("pages", pages, 0)
        return pages <= self._counts.free

    def reserve(self, pages: int) -> Lease:
        """Set pages aside for captured calls; raises OutOfPages, changing nothing, where they are not free."""
        return self._counts.open_lease(pages)

    def stats(self) -> PoolStats:
        """Return the host counts."""
        c = self._counts
        return PoolStats(c.capacity, c.live, c.holes, c.span, c.free, c.leased, self.requests.open_rows)

    # ---- pages by id -------------------------------------------------------------------------------------------------

    def alloc(self, count: int, *, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Take `count` pages and return their virtual ids, int32 `[count]` (written to `ids` where it is given).

        Raises OutOfPages, changing nothing, where they are not free.
        """
        need_count("count", count, 0)
        captured = capturing(self.device)
        if not captured:
            self._counts.need(count)
        if ids is None:
            ids = torch.empty(count, dtype=torch.int32, device=self.device)
        if not captured:
            self._readers.before_take()
        self._plans.alloc(self.tables, ids=ids, pages=self._pages[:count])
        if not captured:
            self._counts.take(count)
        return ids

    def free(self, ids: torch.Tensor) -> None:
        """Free virtual page ids, int32 `[n]`, each bound. A fault is dropped and counted, and then counts are off."""
        need_tensor("ids", ids, torch.int32, 1, self.device)
        if not capturing(self.device):
            self._counts.need_live(ids.shape[0])
        self._plans.free(ids, self.tables, freed=self._pages[: ids.shape[0]])
        if not capturing(self.device):
            self._give(ids.shape[0])

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
        slots: torch.Tensor,
        pages: int,
    ) -> None:
        """Give rows pages for new tokens and emit their write slots; see `pagebind.ops.extend`.

        `pages` is the number of new pages (`new_pages` summed over the lanes). Raises OutOfPages, changing nothing,
        where they are not free. Inside a capture `pages` is not compared: the lease bounds it.
        """
        need_count("pages", pages, 0)
        if capturing(self.device):
            self._plans.extend(self.requests.table, req_rows, prefix_lens, indptr, self.tables, slots=slots)
            return
        self._counts.need(pages)
        self._readers.before_take()
        self._plans.extend(self.requests.table, req_rows, prefix_lens, indptr, self.tables, slots=slots, pages=pages)
        self._counts.take(pages)

    def truncate(self, req_rows: torch.Tensor, seq_lens: torch.Tensor, keep_lens: torch.Tensor, *, pages: int) -> None:
        """Cut rows to `keep_lens` tokens; `pages` is the count that comes back (inside a capture, at most)."""
        need_count("pages", pages, 0)
        freed = self._pages[:pages]
        if capturing(self.device):
            self._plans.truncate(self.requests.table, req_rows, seq_lens, keep_lens, self.tables, freed=freed)
            return
        self._need_given_back(pages, req_rows)
        self._plans.truncate(self.requests.table, req_rows, seq_lens, keep_lens, self.tables, freed=freed, pages=pages)
        self._give(pages)

    def assign(self, req_rows: torch.Tensor, ids: torch.Tensor, indptr: torch.Tensor) -> None:
        """Copy ids in the request table's form to the head of rows; see `pagebind.ops.assign`."""
        self._plans.assign(self.requests.table, req_rows, ids, indptr, state=self.tables.state)

    def release(
        self,
        rows: Sequence[Row],
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        pages: int,
        starts: torch.Tensor | None = None,
    ) -> None:
        """Empty rows and take them back: `rows` on the host, `req_rows` the same on the device.

        `pages` is the number of pages that come back; with `starts`, those of the first `starts[b]` tokens stay bound
        (a shared prefix). Raises InvalidArgument, changing nothing, for a row that was released before, and
        CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError(
                "release takes rows back on the host, which a replay does not; capture truncate to 0 instead"
            )
        self.requests.need_open(rows)
        need_tensor("req_rows", req_rows, torch.int32, 1, self.device)
        need_length("req_rows", req_rows, len(rows), "rows")
        self._need_given_back(pages, req_rows)
        self._plans.release[starts is not None](
            self.requests.table,
            req_rows,
            seq_lens,
            self.tables,
            freed=self._pages[:pages],
            pages=pages,
            **({} if starts is None else {"starts": starts}),
        )
        self._give(pages)
        self.requests.close(rows)

    # ---- moving pages ------------------------------------------------------------------------------------------------

    def compact(self, max_pages: int | None = None) -> int:
        """Close holes: retreat the span by up to `max_pages` holes, all of them by default; return the pages retreated.

        Moves are picked, copied and rebound on the device; the current stream waits for registered readers first, the
        host for nothing. 0 while the move gate is closed. Raises InvalidArgument while a lease is open, CaptureError
        inside a capture.
        """
        if capturing(self.device):
            raise CaptureError("compact decides on the host how far to retreat; call it outside the capture")
        if max_pages is not None:
            need_count("max_pages", max_pages, 0)
        holes = self._counts.holes
        retreat = 0 if self._readers.held else min(holes, holes if max_pages is None else max_pages)
        if not retreat:
            return 0
        span = self._counts.span
        self._counts.retreat(retreat)
        try:
            self._readers.join()
            self._plans.compact(
                self.tables, retreat=retreat, sources=self._pages, targets=self._targets, buffer=self.buffer
            )
        except Exception:
            self._counts.span = span
            raise
        self._readers.moved()
        self._readers.vacate()
        return retreat

    def hold_moves(self) -> AbstractContextManager[None]:
        """Close the move gate for a `with` block, in which a transfer reads pages; `compact` then moves nothing.

        The current stream is ordered behind the moves that were enqueued before.
        """
        return self._readers.hold()

    def reading(self, event: Event) -> None:
        """Register a reader whose reads end at `event`: moves, and takes of pages vacated meanwhile, wait for it.

        The stream waits, never the host. Inside a capture nothing waits: call `join_readers` before the replay.
        """
        self._readers.reading(event)

    def join_readers(self) -> None:
        """Make the current stream wait for every registered reader now."""
        self._readers.join()

    def _need_given_back(self, pages: int, of: torch.Tensor) -> None:
        need_count("pages", pages, 0)
        if pages and of.shape[0] == 0:
            raise InvalidArgument(f"{pages} pages are to come back from an empty batch")
        self._counts.need_live(pages)

    def _give(self, pages: int) -> None:
        self._counts.give(pages)
        self._readers.vacate()

    # ---- looking -----------------------------------------------------------------------------------------------------

    def poll(self) -> dict[str, int]:
        """Enqueue a copy of the fault counters and return the newest that has arrived. Waits for nothing.

        Raises CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError("poll asks which copies have arrived; call it outside the capture")
        return self._poll()

    # ---- looking: these wait for the device --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise FaultError with every counter above 0."""
        check(self.tables.state)

    def reconcile(self) -> PoolStats:
        """Set the host counts from the state block, after a fault was dropped; closes no lease."""
        words = self.tables.state.tolist()
        self._counts.span = words[WATERMARK]
        self._counts.live = words[WATERMARK] - words[HOLE_TOP]
        return self.stats()

    def audit(self) -> list[str]:
        """Recompute everything from the tables and return each term that disagrees; see `pagebind.pool.audit`."""
        return audit_tables(self.tables, self._counts.live, self._counts.span)

    def digest(self) -> str:
        """Return the SHA-256 of all tables, stacks and positions: equal on ranks that made the same calls."""
        return digest_tables(self.tables, self.requests.table)
