"""A request on its way through the scheduler, and what a step does with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pagebind_bench.replay.prefix import Block, Kept
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
    """Pages of its row when they were last checked."""
    first: int = 0
    """The first page of its row that still has a window page."""
    state: Any = None
    """The page of its state while it runs; the scheduler never looks."""


@dataclass(slots=True)
class Leaving:
    """A job whose row is released, with what the row held: `length` tokens, the first `shared` pages not its own."""

    job: Job
    length: int
    shared: int
    pages: int
    window: int = 0
    """Window pages it held."""


class Passing(NamedTuple):
    """A running job whose window has passed pages: those before token `begin`, `pages` of them since the last time."""

    job: Job
    begin: int
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
    passing: list[Passing] = field(default_factory=list)
    finished: list[Leaving] = field(default_factory=list)
