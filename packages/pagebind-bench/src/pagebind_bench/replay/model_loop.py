"""The loop for a model: each step takes pages of every kind the model has, out of one budget of bytes.

plan        the scheduler asks the pool whether the joint demand fits, and preempts until it does
relief      where it fits only once neighbours retreat or a float moves, they do: timed and counted by itself
admit       rows, shared prefixes, a page for each state
extend      pages for the new tokens in every paged kind, and their write slots
read tables one for each paged kind
finish      window pages that rows have passed, rows and states of finished requests
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from pagebind.errors import FaultError, InvalidArgument

from pagebind_bench.replay.calls import Calls
from pagebind_bench.replay.cards import Card
from pagebind_bench.replay.digest import Digest
from pagebind_bench.replay.drive import drive, due, live_cells
from pagebind_bench.replay.job import Step
from pagebind_bench.replay.kinds import Need
from pagebind_bench.replay.model_pool import new_pool, refuse_too_long
from pagebind_bench.replay.model_record import new_record, span_columns
from pagebind_bench.replay.model_verify import KindLane, ModelVerifier
from pagebind_bench.replay.room import PoolRoom
from pagebind_bench.replay.scheduler import Scheduler
from pagebind_bench.replay.settings import ModelSettings
from pagebind_bench.replay.split import lay_out_regions
from pagebind_bench.replay.traces import Request
from pagebind_bench.replay.verify import Mismatch

MIB = 2**20


class ModelLoop:
    """One replay of a model. Build it, `run` it, read `record`, `digest`, `verifier` and `refused`."""

    def __init__(
        self,
        requests: Sequence[Request],
        settings: ModelSettings,
        card: Card,
        *,
        backend: str | None = None,
        device: str | None = None,
    ) -> None:
        self.settings, self.card, self.kinds, self.backend = settings, card, card.kinds, backend
        self.pool = new_pool(settings, card, backend, device)
        width = -(-settings.max_context // settings.page_size)
        self.read_tables = {name: self.pool.plan_read_table(width, name=name) for name in self.kinds.paged}
        self.outs = {
            name: torch.zeros((settings.max_batch, width), dtype=torch.int32, device=self.pool.device)
            for name in self.kinds.paged
        }
        self.slots = {
            name: torch.zeros(self.pool.max_tokens, dtype=torch.int32, device=self.pool.device)
            for name in self.kinds.paged
        }
        self.record = new_record(self.kinds)
        self.calls = Calls(self.pool, self.kinds, self.record.calls)
        plain = self.kinds.names == (self.kinds.owner,)
        self.scheduler = Scheduler(
            requests,
            room=PoolRoom(self.pool, self.kinds, self.calls.release, self.calls.free_blocks),
            page_size=settings.page_size,
            max_batch=settings.max_batch,
            chunk=settings.chunk,
            block_tokens=settings.block_tokens if plain else 0,
            window=card.window.tokens if card.window else None,
            states=card.state is not None,
        )
        self.refused = refuse_too_long(self.scheduler, self.pool, self.kinds)
        if not self.scheduler.coming:
            raise InvalidArgument(
                f"none of {len(requests)} requests fits a {settings.pool} pool of {settings.budget:,} bytes for "
                f"{card.name}: pass a larger --budget"
            )
        self.digest = Digest()
        self.verifier = ModelVerifier(self.pool, self.kinds)
        self.preempted = self.served = 0
        self.now = self.wall_s = 0.0

    @property
    def backend_name(self) -> str:
        """What names the backend: `module:attribute` where it was asked for so, else its name."""
        return self.backend if self.backend is not None and ":" in self.backend else self.pool.backend.name

    def run(self, progress: Callable[[int, int], None] = lambda served, steps: None) -> None:
        """Serve every request that fits, then empty the cache and see that everything came back.

        `progress(served, steps)` is called after each step. Raises Mismatch where a table, a slot or a count is wrong.
        """
        drive(self, progress)

    def begin(self) -> None:
        """Compile what the steps need, and set regions apart where the split is static."""
        self.pool.warmup()
        for read_table in self.read_tables.values():
            read_table.warmup()
        if self.settings.pool == "static":
            lay_out_regions(self.pool, self.kinds, list(self.pool.sub_pools.values()))

    def step(self) -> None:
        """Run one step."""
        number, plan, pool = len(self.record) + 1, self.scheduler, self.pool
        step = plan.plan()
        self.preempted += len(step.preempted)
        moved = self._relieve(Need(step.pages, step.pages, len(step.admitted)))
        self.calls.admit(step.admitted)
        self.verifier.write_states(step.admitted)

        lengths = [job.length for job, _ in step.lanes]
        prefixes = [job.length - tokens for job, tokens in step.lanes]
        indptr = np.cumsum([0, *(tokens for _, tokens in step.lanes)])
        rows = [job.row.index for job, _ in step.lanes]
        d_rows, d_lengths, d_prefixes, d_indptr = self.calls.upload(rows, lengths, prefixes, indptr)
        slots = {name: given[: int(indptr[-1])] for name, given in self.slots.items()}
        self.calls.timed("extend", pool.extend, d_rows, d_prefixes, d_indptr, slots=slots, pages=step.pages)
        self.verifier.write(slots, step.lanes)
        for name in self.kinds.paged:
            tables, build = pool.tables[name], self.read_tables[name]
            told = {"out": self.outs[name], "state": tables.state}
            self.calls.timed("read_table", build, pool.requests.table, d_rows, d_lengths, tables.v2p, **told)
        self._look(number, step, rows, d_rows, lengths, prefixes, indptr)
        self._finish(step, lengths, moved)
        self._need_balanced(f"step {number}")

    def end(self) -> None:
        """Empty the cache, and see that everything came back."""
        self.scheduler.drain()
        self._need_balanced("the end")
        stats = self.pool.stats()
        held = {name: own.live for name, own in stats.sub_pools.items() if own.live}
        if held or stats.rows:
            raise Mismatch(f"the end: pages {held} and {stats.rows} rows are held; expected none")
        wrong = self.pool.audit()
        if wrong:
            raise Mismatch(f"the end: the audit of the tables finds {len(wrong)} fault(s): {'; '.join(wrong[:5])}")
        if bool((self.pool.requests.table >= 0).any()):
            raise Mismatch("the end: the request table still holds page ids; expected every row to be empty")
        try:
            self.pool.check()
        except FaultError as error:
            raise Mismatch(f"the end: {error}") from error

    # ---- a step's parts ----------------------------------------------------------------------------------------------

    def _relieve(self, need: Need) -> dict[str, int]:
        """Make room for the joint demand where something must move first; return the pages that moved, by kind."""
        demand = self.kinds.demand(need)
        with self.pool.hold_moves():
            if self.pool.can_reserve(demand):
                return {}
        before = {name: tables.v2p.clone() for name, tables in self.pool.tables.items()}
        self.calls.timed("relief", lambda: self.pool.reserve(demand).settle(0))
        moved = {}
        for name, old in before.items():
            new = self.pool.tables[name].v2p
            moved[name] = int(((old > 0) & (new > 0) & (old != new)).sum())
        return moved

    def _finish(self, step: Step, lengths: Sequence[int], moved: Mapping[str, int]) -> None:
        plan, settings, stats = self.scheduler, self.settings, self.pool.stats()
        held = [plan.held(length) for length in lengths]
        window = [pages - job.first for pages, (job, _) in zip(held, step.lanes, strict=True)]
        entries = sum(held) + (sum(window) if self.kinds.window else 0)
        running, waiting = len(plan.running), len(plan.waiting)
        moved_bytes = sum(pages * stats.sub_pools[name].page_bytes for name, pages in moved.items())
        began = self.now
        self.now += (
            settings.cost_step_ms
            + (
                settings.cost_prefill_us * step.prefill
                + settings.cost_entry_us * entries
                + settings.cost_move_us * moved_bytes / MIB
            )
            / 1000
        )
        outcome = plan.finish(step)
        for job in outcome.first:
            self.record.first_token_ms.append(self.now - job.request.arrival_ms)
        for job, kept in outcome.kept:
            self.calls.keep(job, kept)
        self.calls.pass_window(outcome.passing)
        self.calls.release(outcome.finished)
        self.served += len(outcome.finished)
        for leaving in outcome.finished:
            self.record.latency_ms.append(self.now - leaving.job.request.arrival_ms)
        self.record.add(
            began_ms=began,
            time_ms=self.now,
            batch=len(lengths),
            running=running,
            waiting=waiting,
            prefill=step.prefill,
            entries=entries,
            preempted=len(step.preempted),
            moved_bytes=moved_bytes,
            relieved=bool(moved),
            **span_columns(stats, moved),
        )

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
        held = [self.scheduler.held(length) for length in lengths]
        states = self._state_pages(step)
        told: list[np.ndarray] = []
        entries: dict[str, list[np.ndarray]] = {}
        slots: dict[str, np.ndarray] = {}
        for name in self.kinds.paged:
            table = self.outs[name][: len(lengths), : max(held)].cpu().numpy()
            entries[name] = [line[:n] for line, n in zip(table, held, strict=True)]
            slots[name] = self.slots[name][: int(indptr[-1])].cpu().numpy()
            told += [np.concatenate(entries[name]), slots[name]]
        counts = [number, len(lengths), step.prefill, step.pages, len(step.preempted), len(step.admitted)]
        self.digest.add(counts, lengths, *told, states)
        if not due(self.settings, number):
            return
        ids = live_cells(self.pool, rows, d_rows, lengths if self.settings.form == "token" else held)
        lanes = {
            name: [
                KindLane(
                    job,
                    prefixes[b],
                    lengths[b],
                    ids[b],
                    entries[name][b],
                    slots[name][indptr[b] : indptr[b + 1]],
                    job.first if name == self.kinds.window else 0,
                )
                for b, (job, _) in enumerate(step.lanes)
            ]
            for name in self.kinds.paged
        }
        self.verifier.check(number, lanes, states)

    def _state_pages(self, step: Step) -> list[int]:
        """Return the physical page of each lane's state, none where the model has no state."""
        if self.kinds.state is None:
            return []
        ids = torch.cat([job.state for job, _ in step.lanes]).to(torch.int64)
        pages: list[int] = self.pool.tables[self.kinds.state].v2p[ids].tolist()
        return pages

    def _need_balanced(self, when: str) -> None:
        right = self.kinds.demand(self.scheduler.live())
        found = {name: own.live for name, own in self.pool.stats().sub_pools.items()}
        if found != right:
            raise Mismatch(f"{when}: the pool has {found} pages live; expected {right} by the scheduler's ledger")
