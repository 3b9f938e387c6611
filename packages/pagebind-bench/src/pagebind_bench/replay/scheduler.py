"""Continuous batching: who runs in the next step, with how many tokens. Every decision is made from host ints.

    waiting -> admitted -> prefill, in chunks -> decode, a token a step -> finished
       ^                        |                   |
       +------ preempted: the youngest, when pages run out; its tokens are computed again later

A step serves the running requests oldest first, then admits waiting ones while the whole prompt fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pagebind_bench.replay.prefix import Block, Kept, PrefixCache
from pagebind_bench.replay.traces import Request


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way through. `length` and `target` are tokens; `shared` is pages."""

    number: int
    request: Request
    target: int
    """Tokens its row must hold before it decodes: the prompt, and after a preemption what it had generated."""
    length: int = 0
    """Tokens its row holds."""
    generated: int = 0
    shared: int = 0
    """Pages at the head of its row that belong to the prefix cache."""
    blocks: list[Block] = field(default_factory=list)
    preemptions: int = 0
    row: Any = None
    """The pool's row while it runs; the scheduler never looks."""
    first_token_ms: float | None = None
    seen: list[int] | None = None
    """Physical pages of its row when they were last checked."""


@dataclass(slots=True)
class Leaving:
    """A job whose row is released, with what the row held: `length` tokens, the first `shared` pages not its own."""

    job: Job
    length: int
    shared: int
    pages: int


@dataclass(slots=True)
class Step:
    """What one step does, in this order: evict, release the preempted, admit, extend the lanes."""

    evicted: list[Block] = field(default_factory=list)
    preempted: list[Leaving] = field(default_factory=list)
    admitted: list[Job] = field(default_factory=list)
    lanes: list[tuple[Job, int]] = field(default_factory=list)
    """Each job of the batch with its new tokens."""
    pages: int = 0
    """New pages of all lanes."""
    prefill: int = 0
    """Tokens of all lanes that prefill."""


@dataclass(slots=True)
class Outcome:
    """What ended with a step."""

    first: list[Job] = field(default_factory=list)
    """Jobs that generated their first token."""
    kept: list[tuple[Job, Kept]] = field(default_factory=list)
    finished: list[Leaving] = field(default_factory=list)


class Scheduler:
    """The policy. `free` is its ledger of the pool's free pages: `free + cached + own pages of running == pages`."""

    def __init__(
        self, requests: Sequence[Request], *, pages: int, page_size: int, max_batch: int, chunk: int, block_tokens: int
    ) -> None:
        self.page_size = page_size
        self.max_batch = max_batch
        self.chunk = chunk
        self.pages = self.free = pages
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
                outcome.finished.append(self._leave(job))
        return outcome

    def drain(self) -> list[Block]:
        """Empty the prefix cache once nothing runs, and return its blocks."""
        evicted = self.cache.evict(self.cache.cached + 1)
        self.free += sum(block.pages for block in evicted)
        return evicted

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _extend(self, job: Job, tokens: int, step: Step) -> None:
        pages = self.held(job.length + tokens) - self.held(job.length)
        self.free -= pages
        step.pages += pages
        step.prefill += tokens if job.length < job.target else 0
        step.lanes.append((job, tokens))
        job.length += tokens

    def _make_room(self, job: Job, tokens: int, step: Step) -> bool:
        """Free pages for a running job: evict, then preempt the youngest. False where that is the job itself."""
        need = self.held(job.length + tokens) - self.held(job.length)
        self._evict(need - self.free, step)
        while need > self.free:
            youngest = self.running.pop()
            youngest.preemptions += 1
            step.preempted.append(self._leave(youngest))
            youngest.target = youngest.request.input_tokens + youngest.generated
            self.waiting.appendleft(youngest)
            if youngest is job:
                return False
            self._evict(need - self.free, step)
        return True

    def _evict(self, pages: int, step: Step) -> None:
        if pages > 0:
            evicted = self.cache.evict(pages)
            self.free += sum(block.pages for block in evicted)
            step.evicted += evicted

    def _admit(self, budget: int, step: Step) -> None:
        # Prompts that are still being computed have a claim on pages they have not taken yet.
        claimed = sum(self.held(job.target) - self.held(job.length) for job in self.running if job.length < job.target)
        while self.waiting and len(self.running) < self.max_batch and budget > 0:
            job = self.waiting[0]
            blocks, shared = self.cache.match(job.request.hash_ids, job.request.input_tokens, job.target - 1)
            own = self.held(job.target) - shared
            # A page of headroom for every running request, so that the newcomer is not preempted at once.
            spare = self.free + self.cache.evictable - self.cache.idle_pages(blocks) - claimed - len(self.running)
            if self.running and own > spare:
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
            self._evict(self.held(job.length + tokens) - self.held(job.length) - self.free, step)
            self._extend(job, tokens, step)
            claimed += self.held(job.target) - self.held(job.length)

    def _keep(self, job: Job) -> Kept:
        kept = self.cache.keep(job.blocks, job.shared, job.request.hash_ids, job.request.input_tokens)
        self.free += kept.swapped - kept.before
        job.blocks, job.shared = kept.blocks, kept.end
        return kept

    def _leave(self, job: Job) -> Leaving:
        leaving = Leaving(job, job.length, job.shared, self.held(job.length) - job.shared)
        self.free += leaving.pages
        self.cache.drop(job.blocks)
        job.blocks, job.shared, job.length = [], 0, 0
        return leaving
