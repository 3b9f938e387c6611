"""All plans of a check, one after another or in several processes, until they are done, differ, or time is up."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pagebind.config import resolve
from pagebind.ops import FEATURES
from pagebind.registry import find, resolve_device

from pagebind_conformance.inputs.compare import BACKENDS, Found, against_oracle, between, draw_input
from pagebind_conformance.inputs.drawn import Plan
from pagebind_conformance.inputs.plans import operation_of, plan_of
from pagebind_conformance.subject import Subject, choose

BLOCK, SMALL_BLOCK = 100, 10
"""Inputs that are compared at once, and between which a check can end."""


class LostProcess(Exception):
    """A process ended in the middle of a plan."""


@dataclass(frozen=True)
class Asked:
    """What a check is asked for."""

    backends: tuple[str, ...]
    device: str
    plans: int = 100
    inputs: int = 2000
    oracle: int = 20_000
    seed: int = 0
    small: bool = False
    processes: int = 1
    time_limit: float | None = None
    only: tuple[int, int, int] | None = None
    """A plan, and the first and the last of its inputs."""

    def numbers(self) -> list[int]:
        """Return the plans."""
        return [self.only[0]] if self.only else list(range(self.plans))

    def inputs_of(self, plan: int) -> range:
        """Return the inputs of a plan."""
        return range(self.only[1], self.only[2] + 1) if self.only and plan == self.only[0] else range(self.inputs)

    def oracle_of(self, plan: int) -> int:
        """Return how many inputs of a plan, the first ones, are held against the oracle."""
        if self.only:
            return self.only[2] + 1
        return self.oracle * (plan + 1) // self.plans - self.oracle * plan // self.plans


@dataclass
class Done:
    """What was done of a plan. Inputs that are `open` were held against the oracle by every backend."""

    plan: int
    inputs: int = 0
    oracle: int = 0
    open: int = 0
    seconds: float = 0.0
    found: Found | None = None
    verdicts: dict[str, str] = field(default_factory=dict)
    """What the oracle says of each backend's call on the input that differs."""


def subjects_of(asked: Asked) -> list[Subject]:
    """Return the backends on the device, those that do not run on it on the CPU. Raises with the reason against one."""
    found = []
    for name in asked.backends:
        config = resolve(backend=name, device=asked.device)
        modes = find(config.backend).modes
        elsewhere = resolve_device(config.device).type not in modes and "cpu" in modes
        own = choose(name, "cpu" if elsewhere else asked.device, None)[0]
        found.append(replace(own, composed=True))  # what it has no planner for, it takes part in as composed
    return found


def planned(asked: Asked, subjects: list[Subject], number: int) -> Plan:
    """Return a plan whose features all backends declare, of small inputs where one of them runs slowly."""
    small = asked.small or any(subject.slow for subject in subjects)
    operation = operation_of(number)
    own = [one.backend.features for one in subjects if operation.name in one.backend.planners]
    return plan_of(asked.seed, number, operation, FEATURES.intersection(*own), small=small)


def run_plan(
    asked: Asked, subjects: list[Subject], number: int, tell: Callable[[int], None], stopped: Callable[[], bool]
) -> Done:
    """Run a plan's inputs, telling after each block how many it had."""
    plan, begin = planned(asked, subjects, number), time.perf_counter()
    done, numbers = Done(number), asked.inputs_of(number)
    size = SMALL_BLOCK if plan.small else BLOCK
    for at in range(0, len(numbers), size):
        if stopped():
            break
        block = numbers[at : at + size]
        _run_block(asked, subjects, plan, block, done)
        tell(len(block))
        if done.found is not None:
            break
    done.seconds = round(time.perf_counter() - begin, 3)
    return done


def _run_block(asked: Asked, subjects: list[Subject], plan: Plan, block: range, done: Done) -> None:
    drawn = {index: draw_input(plan, index) for index in block}
    exact = {index: one for index, one in drawn.items() if not one.open}
    done.found = between(subjects, plan, exact) if exact else None
    if done.found is not None and done.found.where == BACKENDS and done.found.last is None:
        one = drawn[done.found.index]
        for subject in subjects:
            against = against_oracle(subject, plan, done.found.index, one)
            done.verdicts[subject.asked] = "as the oracle" if against is None else against.error.complaint
    for index, one in drawn.items() if done.found is None else ():
        if one.open or index < asked.oracle_of(plan.number):
            for subject in subjects if one.open else subjects[:1]:  # the others' bits are the same
                done.found = done.found or against_oracle(subject, plan, index, one)
            done.oracle += 1
            done.open += one.open
        if done.found is not None:
            return
    done.inputs += len(block)


def run(asked: Asked, tell: Callable[[int], None], wanted: Callable[[], bool]) -> Iterator[Done]:
    """Yield what was done of each plan; `tell` gets inputs as they are done, and nothing goes on once not `wanted`."""
    if asked.processes > 1 and len(asked.numbers()) > 1:
        yield from _run_in_processes(asked, tell, wanted)
        return
    subjects = subjects_of(asked)
    for number in asked.numbers():
        if not wanted():
            return
        done = run_plan(asked, subjects, number, tell, lambda: not wanted())
        yield done
        if done.found is not None:
            return


def _run_in_processes(asked: Asked, tell: Callable[[int], None], wanted: Callable[[], bool]) -> Iterator[Done]:
    context = multiprocessing.get_context("spawn")
    stop, told = context.Event(), context.SimpleQueue()
    with ProcessPoolExecutor(asked.processes, context, _begin, (asked, stop, told)) as pool:
        left: set[Future[Done]] = {pool.submit(_plan_here, number) for number in asked.numbers()}
        try:
            while left:
                ended, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
                while not told.empty():
                    tell(told.get())
                for future in ended:
                    done = future.result()
                    if done.found is not None:
                        stop.set()
                    if done.inputs or done.found is not None:
                        yield done
                if not wanted():
                    stop.set()
        except BrokenProcessPool as error:
            raise LostProcess(
                "a process was lost in the middle of a plan, as one is that touches memory not its own; "
                "run with --processes 1 to see which"
            ) from error
        finally:
            stop.set()


_here: dict[str, Any] = {}
"""What a process was begun with."""


def _begin(asked: Asked, stop: Any, told: Any) -> None:
    torch.set_num_threads(1)
    _here.update(asked=asked, stop=stop, told=told, subjects=subjects_of(asked))


def _plan_here(number: int) -> Done:
    return run_plan(_here["asked"], _here["subjects"], number, _here["told"].put, _here["stop"].is_set)
