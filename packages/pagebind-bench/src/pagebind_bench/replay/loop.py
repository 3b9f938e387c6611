"""The loop: every step takes and binds pages, emits write slots, builds the read table and frees what ended.

The scheduler decides with host ints; here its decisions become calls on the pool. Page ids stay on the device: a cached
block's are a slice of a copy of the row they came from.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pagebind.errors import FaultError, InvalidArgument
from pagebind.pool import PagePool
from pagebind.words import Form

from pagebind_bench.replay.digest import Digest
from pagebind_bench.replay.prefix import Block, Kept
from pagebind_bench.replay.record import Record
from pagebind_bench.replay.scheduler import Job, Leaving, Scheduler, Step
from pagebind_bench.replay.traces import Request
from pagebind_bench.replay.verify import Lane, Mismatch, Verifier

Verify = Literal["every", "sample", "off"]
ALIGN = 32
"""Elements; every section of a step's input starts at a multiple of them, as in an engine's packed buffer."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a replay is run with. All of it stands in the report."""

    pages: int
    page_size: int
    max_batch: int
    max_context: int  # tokens a row of the request table has room for
    chunk: int  # prefill tokens a step, at most
    block_tokens: int  # tokens of a hashed block; 0 shares nothing
    form: Form
    verify: Verify
    sample_every: int
    cost_step_ms: float
    cost_prefill_us: float  # a token
    cost_entry_us: float  # a read-table cell
    threads: int = 1  # of torch for one operation on the CPU; more cost more than they give on tensors this small


class Loop:
    """One replay. Build it, `run` it, read `record`, `digest` and `verifier`."""

    def __init__(
        self, requests: Sequence[Request], settings: Settings, *, backend: str | None = None, device: str | None = None
    ) -> None:
        need_rows_fit(requests, settings.max_context)
        self.settings = settings
        self.backend = backend
        self.scheduler = Scheduler(
            requests,
            pages=settings.pages,
            page_size=settings.page_size,
            max_batch=settings.max_batch,
            chunk=settings.chunk,
            block_tokens=settings.block_tokens,
        )
        self.max_tokens = settings.chunk + settings.max_batch
        try:
            self.pool = PagePool(
                settings.pages,
                settings.page_size,
                max_requests=settings.max_batch,
                max_context=settings.max_context,
                max_bs=settings.max_batch,
                max_tokens=self.max_tokens,
                form=settings.form,
                backend=backend,
                device=device,
            )
            width = -(-settings.max_context // settings.page_size)
            device_ = self.pool.device
            self.table = torch.zeros((settings.max_batch, width), dtype=torch.int32, device=device_)
            self.slots = torch.zeros(self.max_tokens, dtype=torch.int32, device=device_)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryError) or "alloc" in str(error) or "out of memory" in str(error):
                raise InvalidArgument(
                    f"a pool of {settings.pages} pages with {settings.max_batch} rows of {settings.max_context} tokens "
                    f"does not fit the device's memory: {error}; lower --pages, --max-batch or --max-context"
                ) from error
            raise
        self.read_table = self.pool.plan_read_table(width)
        self.record = Record()
        self.digest = Digest()
        self.verifier = Verifier(settings.page_size, settings.pages, settings.form)
        self.preempted = 0
        self.served = 0
        self.now = 0.0
        self.wall_s = 0.0
        self._section = -(-(settings.max_batch + 1) // ALIGN) * ALIGN

    @property
    def backend_name(self) -> str:
        """What names the backend: `module:attribute` where it was asked for so, else its name."""
        return self.backend if self.backend is not None and ":" in self.backend else self.pool.backend.name

    def run(self, progress: Callable[[int, int], None] = lambda served, steps: None) -> None:
        """Serve every request, then empty the cache and see that everything came back.

        `progress(served, steps)` is called after each step. Raises Mismatch where a table, a slot or a count is wrong.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads)
        try:
            self._serve(progress)
        finally:
            torch.set_num_threads(threads)

    def _serve(self, progress: Callable[[int, int], None]) -> None:
        began = time.perf_counter()
        self.pool.warmup()
        self.read_table.warmup()
        plan = self.scheduler
        while plan.coming or plan.busy:
            plan.arrive(self.now)
            if not plan.busy:
                self.now = plan.coming[0].request.arrival_ms  # nothing to do until the next arrival
                continue
            self._step()
            progress(self.served, len(self.record))
        self._free_blocks(plan.drain())
        self._balance()
        self.wall_s = time.perf_counter() - began

    def _step(self) -> None:
        number = len(self.record) + 1
        plan = self.scheduler
        step = plan.plan()
        self.preempted += len(step.preempted)
        self._free_blocks(step.evicted)
        self._release(step.preempted)
        self._admit(step.admitted)

        lengths = [job.length for job, _ in step.lanes]
        prefixes = [job.length - tokens for job, tokens in step.lanes]
        indptr = np.cumsum([0, *(tokens for _, tokens in step.lanes)])
        rows = [job.row.index for job, _ in step.lanes]
        d_rows, d_lengths, d_prefixes, d_indptr = self._upload(rows, lengths, prefixes, indptr)
        pool = self.pool
        slots = self.slots[: int(indptr[-1])]
        self._timed("extend", pool.extend, d_rows, d_prefixes, d_indptr, slots=slots, pages=step.pages)
        self._timed(
            "read_table",
            self.read_table,
            pool.requests.table,
            d_rows,
            d_lengths,
            pool.tables.v2p,
            out=self.table,
            state=pool.tables.state,
        )
        self._look(number, step, rows, d_rows, lengths, prefixes, indptr)
        self._finish(step, lengths)
        self._need_balanced(f"step {number}")

    def _finish(self, step: Step, lengths: list[int]) -> None:
        plan, settings, pool = self.scheduler, self.settings, self.pool
        held = [plan.held(length) for length in lengths]
        live, running = pool.num_pages - pool.free_pages, len(plan.running)
        tokens = sum(job.length for job in plan.running)
        row_pages = sum(plan.held(job.length) for job in plan.running)
        began = self.now
        self.now += (
            settings.cost_step_ms
            + (settings.cost_prefill_us * step.prefill + settings.cost_entry_us * sum(held)) / 1000
        )
        outcome = plan.finish(step)
        for job in outcome.first:
            self.record.first_token_ms.append(self.now - job.request.arrival_ms)
        for job, kept in outcome.kept:
            self._keep(job, kept)
        self._release(outcome.finished)
        self.served += len(outcome.finished)
        for leaving in outcome.finished:
            self.record.latency_ms.append(self.now - leaving.job.request.arrival_ms)
        self.record.add(
            began_ms=began,
            time_ms=self.now,
            live=live,
            cached=plan.cache.cached,
            batch=len(lengths),
            running=running,
            waiting=len(plan.waiting),
            prefill=step.prefill,
            entries=sum(held),
            tokens=tokens,
            row_pages=row_pages,
            preempted=len(step.preempted),
        )

    # ---- rows and pages ----------------------------------------------------------------------------------------------

    def _admit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.row = self.pool.open_row()
            job.seen = None
        sharing = [job for job in jobs if job.shared]
        if sharing:
            self._assign(sharing, [job.blocks for job in sharing])

    def _assign(self, jobs: Sequence[Job], heads: Sequence[Sequence[Block]]) -> None:
        parts = [self._cells(_pages_of(blocks)) for blocks in heads]
        rows, indptr = self._upload([job.row.index for job in jobs], np.cumsum([0, *(part.shape[0] for part in parts)]))
        self._timed("assign", self.pool.assign, rows, torch.cat(parts), indptr)

    def _keep(self, job: Job, kept: Kept) -> None:
        if kept.swapped > kept.before:
            # Somebody else's pages hold the same tokens: give back this row's, and read theirs.
            self._free(self._row_pages(job, kept.before, kept.swapped))
            self._assign([job], [[block for block in kept.blocks if block.end <= kept.swapped]])
            job.seen = None
        if kept.end > kept.swapped:
            source = self._row_pages(job, kept.swapped, kept.end)
            for block in kept.new:
                block.handle = (source, block.first - kept.swapped)
                if job.seen is not None and len(job.seen) >= block.end:
                    block.seen = job.seen[block.first : block.end]

    def _row_pages(self, job: Job, first: int, end: int) -> torch.Tensor:
        """Return a copy of the virtual ids of pages `[first, end)` of a row, int32."""
        row, size = self.pool.requests.table[job.row.index], self.settings.page_size
        if self.settings.form == "token":
            return row[first * size : end * size : size] // size
        return row[first:end].clone()

    def _cells(self, pages: torch.Tensor) -> torch.Tensor:
        """Return page ids as cells of the request table, int32."""
        if self.settings.form == "page":
            return pages
        size = self.settings.page_size
        offsets = torch.arange(size, dtype=torch.int32, device=pages.device)
        return (pages[:, None] * size + offsets).flatten()

    def _free_blocks(self, blocks: Sequence[Block]) -> None:
        if any(block.pages for block in blocks):
            self._free(_pages_of(blocks))

    def _free(self, ids: torch.Tensor) -> None:
        self._timed("free", self.pool.free, ids)

    def _release(self, leaving: Sequence[Leaving]) -> None:
        size = self.settings.page_size
        for start in range(0, len(leaving), self.settings.max_batch):
            some = leaving[start : start + self.settings.max_batch]
            rows, lengths, starts = self._upload(
                [one.job.row.index for one in some],
                [one.length for one in some],
                [one.shared * size for one in some],
            )
            self._timed(
                "release",
                self.pool.release,
                [one.job.row for one in some],
                rows,
                lengths,
                starts=starts,
                pages=sum(one.pages for one in some),
            )

    def _upload(self, *parts: Any) -> list[torch.Tensor]:
        """Return device copies of int sequences, int32, sent in one transfer."""
        packed = np.zeros((len(parts), self._section), dtype=np.int32)
        for line, part in zip(packed, parts, strict=True):
            line[: len(part)] = part
        sent = torch.from_numpy(packed).to(self.pool.device)
        return [sent[place, : len(part)] for place, part in enumerate(parts)]

    def _timed(self, name: str, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter_ns()
        call(*args, **kwargs)
        self.record.calls.setdefault(name, array("q")).append(time.perf_counter_ns() - began)

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _look(
        self,
        number: int,
        step: Step,
        rows: Sequence[int],
        d_rows: torch.Tensor,
        lengths: Sequence[int],
        prefixes: Sequence[int],
        indptr: np.ndarray,
    ) -> None:
        size = self.settings.page_size
        held = [-(-length // size) for length in lengths]
        table = self.table[: len(lengths), : max(held)].cpu().numpy()
        entries = [line[:n] for line, n in zip(table, held, strict=True)]
        slots = self.slots[: int(indptr[-1])].cpu().numpy()
        counts = [number, len(lengths), step.prefill, step.pages, len(step.preempted), self.pool.free_pages]
        self.digest.add(counts, lengths, np.concatenate(entries), slots)
        if not self._due(number):
            return
        ids = self._live_cells(rows, d_rows, lengths if self.settings.form == "token" else held)
        lanes = [
            Lane(job, prefixes[b], lengths[b], ids[b], entries[b], slots[indptr[b] : indptr[b + 1]])
            for b, (job, _) in enumerate(step.lanes)
        ]
        self.verifier.check(number, self.pool.tables.v2p.tolist(), lanes)

    def _due(self, number: int) -> bool:
        verify = self.settings.verify
        return verify == "every" or (verify == "sample" and (number - 1) % self.settings.sample_every == 0)

    def _live_cells(self, rows: Sequence[int], d_rows: torch.Tensor, counts: Sequence[int]) -> list[np.ndarray]:
        table = self.pool.requests.table
        if table.device.type == "cpu":
            view = table.numpy()
            return [view[row, :count] for row, count in zip(rows, counts, strict=True)]
        picked = table[:, : max(counts)].index_select(0, d_rows).cpu().numpy()
        return [line[:count] for line, count in zip(picked, counts, strict=True)]

    def _need_balanced(self, when: str) -> None:
        if self.pool.free_pages != self.scheduler.free:
            raise Mismatch(
                f"{when}: the pool has {self.pool.free_pages} free pages; expected {self.scheduler.free} by the "
                "scheduler's ledger"
            )

    def _balance(self) -> None:
        self._need_balanced("the end")
        stats = self.pool.stats()
        if stats.live or stats.rows:
            raise Mismatch(f"the end: {stats.live} pages and {stats.rows} rows are held; expected none")
        wrong = self.pool.audit()
        if wrong:
            raise Mismatch(f"the end: the audit of the tables finds {len(wrong)} fault(s): {'; '.join(wrong[:5])}")
        if bool((self.pool.requests.table >= 0).any()):
            raise Mismatch("the end: the request table still holds page ids; expected every row to be empty")
        try:
            self.pool.check()
        except FaultError as error:
            raise Mismatch(f"the end: {error}") from error


def _pages_of(blocks: Iterable[Block]) -> torch.Tensor:
    """Return the page ids of blocks end to end, int32; neighbours cut from one copy are taken as one slice."""
    pieces: list[tuple[torch.Tensor, int, int]] = []
    for block in blocks:
        if not block.pages:
            continue
        source, start = block.handle
        if pieces and pieces[-1][0] is source and pieces[-1][2] == start:
            pieces[-1] = (source, pieces[-1][1], start + block.pages)
        else:
            pieces.append((source, start, start + block.pages))
    slices = [source[start:end] for source, start, end in pieces]
    return slices[0] if len(slices) == 1 else torch.cat(slices)


def need_rows_fit(requests: Sequence[Request], max_context: int) -> None:
    """Refuse a request that a row of the request table has no room for."""
    for number, request in enumerate(requests, 1):
        if request.tokens > max_context:
            raise InvalidArgument(
                f"request {number} ({request.input_tokens} tokens in, {request.output_tokens} out) needs a row of "
                f"{request.tokens} tokens, --max-context is {max_context}: pass --max-context {request.tokens} or more"
            )
