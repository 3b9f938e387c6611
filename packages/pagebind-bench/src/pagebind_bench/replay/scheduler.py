"""Continuous batching: who runs in the next step, with how many tokens. Every decision is made from host ints.

    waiting -> admitted -> prefill, in chunks -> decode, a token a step -> finished
       ^                        |                   |
       +------ preempted: the youngest, when pages run out; its tokens are computed again later

A step serves the running requests oldest first, then admits waiting ones while the whole prompt fits. Whether pages fit
is the room's answer. A model with a window takes a window page beside every page, and gives back those that only hold
tokens before the window as its rows advance; one with a state takes a page for it at admission.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pagebind_bench.replay.job import Job, Leaving, Outcome, Passing, Step
from pagebind_bench.replay.kinds import Need
from pagebind_bench.replay.prefix import Block, Kept, PrefixCache
from pagebind_bench.replay.room import Room
from pagebind_bench.replay.traces import Request


class Scheduler:
    """The policy. `window` is in tokens, the newest counted; `states` says whether a request needs a state.

    Prefixes are shared without either: a cached prefix would need its last window and the state at its end, which
    nobody keeps.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        *,
        room: Room,
        page_size: int,
        max_batch: int,
        chunk: int,
        block_tokens: int,
        window: int | None = None,
        states: bool = False,
    ) -> None:
        self.page_size = page_size
        self.max_batch = max_batch
        self.chunk = chunk
        self.room = room
        self.window = window
        self.state_pages = int(states)
        self.cache = PrefixCache(page_size, block_tokens)
        self.coming = deque(Job(n, request, request.input_tokens) for n, request in enumerate(requests, 1))
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # oldest first
        self.prompt_tokens = 0
        self.hit_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting or self.running)

    def arrive(self, now: float) -> None:
        """Let the requests in that have arrived by `now`, in milliseconds."""
        while self.coming and self.coming[0].request.arrival_ms <= now:
            self.waiting.append(self.coming.popleft())

    def held(self, tokens: int) -> int:
        """Return the pages that `tokens` tokens take."""
        return -(-tokens // self.page_size)

    def plan(self) -> Step:
        """Decide the next step, and account for all of its pages but those that end with it."""
        step = Step()
        self.room.begin()
        budget = self.chunk
        place = 0
        while place < len(self.running):
            job = self.running[place]
            missing = job.target - job.length
            tokens = min(missing, budget) if missing > 0 else 1
            place += 1
            if tokens > 0 and self._make_room(job, tokens, step):
                self._extend(job, tokens, step)
                budget -= tokens if missing > 0 else 0
        if not step.preempted:
            self._admit(budget, step)
        return step

    def finish(self, step: Step) -> Outcome:
        """Account for the tokens that a step has generated: prompts to keep, requests that are done."""
        outcome = Outcome()
        for job, _ in step.lanes:
            if job.length < job.target:
                continue
            if job.generated == 0:
                outcome.first.append(job)
            job.generated += 1
            if job.length == job.target and self.cache.block_tokens:
                outcome.kept.append((job, self._keep(job)))
            if job.generated >= job.request.output_tokens:
                self.running.remove(job)
                leaving = self._leave(job)
                self.room.give(leaving.pages)
                outcome.finished.append(leaving)
        if self.window is not None:
            outcome.passing = [passing for job, _ in step.lanes for passing in self._pass(job)]
        return outcome

    def drain(self) -> list[Block]:
        """Empty the prefix cache once nothing runs, and return its blocks."""
        evicted = self.cache.evict(self.cache.cached + 1)
        self.room.evict(evicted)
        return evicted

    def live(self) -> Need:
        """Return the pages that are bound once the last step's calls are made, by the ledger alone."""
        running = self.running
        held = [self.held(job.length) for job in running]
        window = sum(pages - job.first for pages, job in zip(held, running, strict=True))
        return Need(
            self.cache.cached + sum(pages - job.shared for pages, job in zip(held, running, strict=True)),
            window if self.window is not None else 0,
            len(running) * self.state_pages,
        )

    def most(self, request: Request) -> Need:
        """Return pages that are enough to serve a request alone."""
        return Need(self.held(request.tokens), self._most_window(request.tokens), self.state_pages)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _need(self, job: Job, tokens: int) -> Need:
        pages = self.held(job.length + tokens) - self.held(job.length)
        return Need(pages, pages if self.window is not None else 0)

    def _extend(self, job: Job, tokens: int, step: Step, states: int = 0) -> None:
        need = self._need(job, tokens) + Need(states=states)
        self.room.take(need)
        step.pages += need.full
        step.prefill += tokens if job.length < job.target else 0
        step.lanes.append((job, tokens))
        job.length += tokens

    def _make_room(self, job: Job, tokens: int, step: Step) -> bool:
        """Free pages for a running job: evict, then preempt the youngest. False where that is the job itself."""
        need = self._need(job, tokens)
        self._evict(self.room.short(need), step)
        while self.room.short(need) > 0:
            youngest = self.running.pop()
            youngest.preemptions += 1
            leaving = self._leave(youngest)
            self.room.release(leaving)
            step.preempted.append(leaving)
            youngest.target = youngest.request.input_tokens + youngest.generated
            self.waiting.appendleft(youngest)
            if youngest is job:
                return False
            self._evict(self.room.short(need), step)
        return True

    def _evict(self, pages: int, step: Step) -> None:
        if pages > 0:
            evicted = self.cache.evict(pages)
            self.room.evict(evicted)
            step.evicted += evicted

    def _admit(self, budget: int, step: Step) -> None:
        # Prompts that are still being computed have a claim on pages they have not taken yet.
        claimed = sum((self._claim(job) for job in self.running if job.length < job.target), Need())
        while self.waiting and len(self.running) < self.max_batch and budget > 0:
            job = self.waiting[0]
            blocks, shared = self.cache.match(job.request.hash_ids, job.request.input_tokens, job.target - 1)
            own = Need(self.held(job.target) - shared, self._most_window(job.target), self.state_pages)
            # A page of headroom for every running request, so that the newcomer is not preempted at once.
            headroom = Need(len(self.running), len(self.running) if self.window is not None else 0)
            spare = self.cache.evictable - self.cache.idle_pages(blocks)
            if self.running and self.room.short(own + claimed + headroom) > spare:
                return
            self.waiting.popleft()
            self.cache.hold(blocks)
            job.blocks, job.shared, job.length = blocks, shared, shared * self.page_size
            self.prompt_tokens += job.target
            self.hit_tokens += job.length
            self.running.append(job)
            step.admitted.append(job)
            tokens = min(job.target - job.length, budget)
            budget -= tokens
            self._evict(self.room.short(self._need(job, tokens)), step)
            self._extend(job, tokens, step, self.state_pages)
            claimed += self._claim(job)

    def _claim(self, job: Job) -> Need:
        """Return the pages that a job takes until its prompt is computed."""
        held = self.held(job.length)
        return Need(self.held(job.target) - held, max(self._most_window(job.target) - (held - job.first), 0))

    def _most_window(self, tokens: int) -> int:
        """Return window pages that are enough while a row grows to `tokens` in chunks: a window, a chunk, two parts."""
        return 0 if self.window is None else min(self.held(tokens), self.held(self.window + self.chunk) + 1)

    def _pass(self, job: Job) -> list[Passing]:
        """Return what the next step's first token no longer attends to, once it holds whole pages."""
        assert self.window is not None
        begin = max(job.length + 1 - self.window, 0)
        pages = begin // self.page_size - job.first
        if pages <= 0:
            return []
        job.first += pages
        return [Passing(job, begin, pages)]

    def _keep(self, job: Job) -> Kept:
        kept = self.cache.keep(job.blocks, job.shared, job.request.hash_ids, job.request.input_tokens)
        self.room.give(kept.swapped - kept.before)
        job.blocks, job.shared = kept.blocks, kept.end
        return kept

    def _leave(self, job: Job) -> Leaving:
        held = self.held(job.length)
        leaving = Leaving(
            job, job.length, job.shared, held - job.shared, held - job.first if self.window is not None else 0
        )
        self.cache.drop(job.blocks)
        job.blocks, job.shared, job.length, job.first = [], 0, 0, 0
        return leaving
