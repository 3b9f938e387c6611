"""Drive a pool by a seed, or again through a list of steps; what fails is told with the lines that repeat it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import torch
from pagebind import Backend, LaunchOptions

from pagebind_conformance import pool_decode_steps, pool_lease_steps, pool_row_steps
from pagebind_conformance.pool_setups import SETUPS
from pagebind_conformance.pool_steps import STEPS, WEIGHTS, run
from pagebind_conformance.pool_world import World
from pagebind_conformance.subject import Subject, choose

REGISTERED = (pool_row_steps, pool_lease_steps, pool_decode_steps)
"""Modules whose import adds to STEPS."""

MOST_TOLD = 12
"""Steps before the failing one that a message tells."""


def new_world(subject: Subject, setup: str, backend: Backend | None = None) -> World:
    """Return an empty world of one of SETUPS, on the backend under test or a record made of it."""
    return World(SETUPS[setup], _affordable(backend or subject.backend, subject), subject.device)


def plan_steps(seed: int, count: int, without: Collection[str] = ()) -> list[tuple[str, int]]:
    """Return `count` steps, each with a seed of its own, that follow from `seed` alone."""
    rng = Random(seed)
    weights = {name: weight for name, weight in WEIGHTS.items() if name not in without}
    names = rng.choices(list(weights), list(weights.values()), k=count)
    return [(name, rng.randrange(2**32)) for name in names]


def drive(world: World, steps: Sequence[tuple[str, int]], how: str, first: int = 0) -> None:
    """Take steps, numbered from `first`; `how` tells the lines that repeat them."""
    with one_thread():
        for i, (name, seed) in enumerate(steps):
            try:
                run(world, name, seed)
            except Exception as error:
                last = list(enumerate(steps[: i + 1], first))[-MOST_TOLD:]
                told = "\n".join(f"  {number}: {one} {given}" for number, (one, given) in last)
                raise AssertionError(
                    f"step {first + i}, {name} with seed {seed}: {type(error).__name__}: {error}\n"
                    f"the last steps:\n{told}\nreproduce: {how}"
                ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: on tensors of a few cells, more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def replay(backend: str, device: str, setup: str, steps: Sequence[tuple[str, int]], *, composed: bool = False) -> World:
    """Take the given steps on an installed backend, by its name, and return the world.

    >>> replay("cpu", "cpu", "up", [("alloc", 7), ("free", 1)]).stats().rows
    0
    """
    subject = choose(backend, device, None)[composed]
    world = new_world(subject, setup)
    drive(world, steps, command(subject, setup, repr(list(steps))))
    return world


def command(subject: Subject, setup: str, steps: str) -> str:
    """Return the Python lines that take steps again; `steps` is an expression."""
    return (
        "from pagebind_conformance.pool_driver import *; "
        f"replay({subject.asked!r}, {str(subject.device)!r}, {setup!r}, {steps}, composed={subject.composed})"
    )


def _affordable(backend: Backend, subject: Subject) -> Backend:
    """Return the record with small blocks where programs are slow: a pool makes its plans by itself."""
    if not subject.slow:
        return backend

    def small(name: str, planner: Any) -> Any:
        def plan(spec: Any, device: torch.device, options: LaunchOptions) -> Any:
            return planner(spec, device, replace(subject.options_for(name), count=options.count))

        return plan

    return replace(backend, planners={name: small(name, planner) for name, planner in backend.planners.items()})


__all__ = ["STEPS", "command", "drive", "new_world", "one_thread", "plan_steps", "replay"]
