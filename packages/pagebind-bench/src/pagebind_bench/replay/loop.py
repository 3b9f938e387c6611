"""The loop: every step takes and binds pages, emits write slots, builds the read table and frees what ended.

The scheduler decides with host ints and `calls` carries its decisions to the pool; here are the clock, the order of a
step, and the look at what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from pagebind.errors import FaultError, InvalidArgument
from pagebind.pool import page_pool

from pagebind_bench.replay.calls import Calls
from pagebind_bench.replay.digest import Digest
from pagebind_bench.replay.drive import drive, due, live_cells
from pagebind_bench.replay.job import Step
from pagebind_bench.replay.kinds import Kinds
from pagebind_bench.replay.record import Record
from pagebind_bench.replay.room import Count
from pagebind_bench.replay.scheduler import Scheduler
from pagebind_bench.replay.settings import Settings, need_largest_fits
from pagebind_bench.replay.traces import Request
from pagebind_bench.replay.verify import Lane, Mismatch, Verifier


class Loop:
    """One replay. Build it, `run` it, read `record`, `digest` and `verifier`."""

    def __init__(
        self, requests: Sequence[Request], settings: Settings, *, backend: str | None = None, device: str | None = None
    ) -> None:
        need_largest_fits(requests, settings)
        self.settings = settings
        self.backend = backend
        self.room = Count(settings.pages)
        self.scheduler = Scheduler(
            requests,
            room=self.room,
            page_size=settings.page_size,
            max_batch=settings.max_batch,
            chunk=settings.chunk,
            block_tokens=settings.block_tokens,
        )
        self.max_tokens = settings.chunk + settings.max_batch
        try:
            self.pool = page_pool(
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
        self.tables = self.pool.tables["pages"]
        self.read_table = self.pool.plan_read_table(width)
        self.record = Record()
        self.calls = Calls(self.pool, Kinds("pages"), self.record.calls)
        self.digest = Digest()
        self.verifier = Verifier(settings.page_size, settings.pages, settings.form)
        self.preempted = 0
        self.served = 0
        self.now = 0.0
        self.wall_s = 0.0

    @property
    def backend_name(self) -> str:
        """What names the backend: `module:attribute` where it was asked for so, else its name."""
        return self.backend if self.backend is not None and ":" in self.backend else self.pool.backend.name

    def run(self, progress: Callable[[int, int], None] = lambda served, steps: None) -> None:
        """Serve every request, then empty the cache and see that everything came back.

        `progress(served, steps)` is called after each step. Raises Mismatch where a table, a slot or a count is wrong.
        """
        drive(self, progress)

    def begin(self) -> None:
        """Compile what the steps need."""
        self.pool.warmup()
        self.read_table.warmup()

    def end(self) -> None:
        """Empty the cache, and see that everything came back."""
        self.calls.free_blocks(self.scheduler.drain())
        self._balance()

    def step(self) -> None:
        """Run one step."""
        number = len(self.record) + 1
        plan = self.scheduler
        step = plan.plan()
        self.preempted += len(step.preempted)
        self.calls.free_blocks(step.evicted)
        self.calls.release(step.preempted)
        self.calls.admit(step.admitted)

        lengths = [job.length for job, _ in step.lanes]
        prefixes = [job.length - tokens for job, tokens in step.lanes]
        indptr = np.cumsum([0, *(tokens for _, tokens in step.lanes)])
        rows = [job.row.index for job, _ in step.lanes]
        d_rows, d_lengths, d_prefixes, d_indptr = self.calls.upload(rows, lengths, prefixes, indptr)
        pool = self.pool
        slots = self.slots[: int(indptr[-1])]
        self.calls.timed("extend", pool.extend, d_rows, d_prefixes, d_indptr, slots=slots, pages=step.pages)
        self.calls.timed(
            "read_table",
            self.read_table,
            pool.requests.table,
            d_rows,
            d_lengths,
            self.tables.v2p,
            out=self.table,
            state=self.tables.state,
        )
        self._look(number, step, rows, d_rows, lengths, prefixes, indptr)
        self._finish(step, lengths)
        self._need_balanced(f"step {number}")

    def _finish(self, step: Step, lengths: list[int]) -> None:
        plan, settings, pool = self.scheduler, self.settings, self.pool
        held = [plan.held(length) for length in lengths]
        cached, idle = plan.cache.cached, plan.cache.evictable
        live, running = settings.pages - pool.free_pages(), len(plan.running)
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
            self.calls.keep(job, kept)
        self.calls.release(outcome.finished)
        self.served += len(outcome.finished)
        for leaving in outcome.finished:
            self.record.latency_ms.append(self.now - leaving.job.request.arrival_ms)
        self.record.add(
            began_ms=began,
            time_ms=self.now,
            live=live,
            cached=cached,
            idle=idle,
            batch=len(lengths),
            running=running,
            waiting=len(plan.waiting),
            prefill=step.prefill,
            entries=sum(held),
            tokens=tokens,
            row_pages=row_pages,
            preempted=len(step.preempted),
        )

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
        counts = [number, len(lengths), step.prefill, step.pages, len(step.preempted), self.pool.free_pages()]
        self.digest.add(counts, lengths, np.concatenate(entries), slots)
        if not due(self.settings, number):
            return
        ids = live_cells(self.pool, rows, d_rows, lengths if self.settings.form == "token" else held)
        lanes = [
            Lane(job, prefixes[b], lengths[b], ids[b], entries[b], slots[indptr[b] : indptr[b + 1]])
            for b, (job, _) in enumerate(step.lanes)
        ]
        self.verifier.check(number, self.tables.v2p.tolist(), lanes)

    def _need_balanced(self, when: str) -> None:
        free = self.pool.free_pages()
        if free != self.room.free:
            raise Mismatch(
                f"{when}: the pool has {free} free pages; expected {self.room.free} by the scheduler's ledger"
            )

    def _balance(self) -> None:
        self._need_balanced("the end")
        stats = self.pool.stats()
        live = stats.sub_pools["pages"].live
        if live or stats.rows:
            raise Mismatch(f"the end: {live} pages and {stats.rows} rows are held; expected none")
        wrong = self.pool.audit()
        if wrong:
            raise Mismatch(f"the end: the audit of the tables finds {len(wrong)} fault(s): {'; '.join(wrong[:5])}")
        if bool((self.pool.requests.table >= 0).any()):
            raise Mismatch("the end: the request table still holds page ids; expected every row to be empty")
        try:
            self.pool.check()
        except FaultError as error:
            raise Mismatch(f"the end: {error}") from error
