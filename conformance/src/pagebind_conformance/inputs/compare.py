"""One plan's inputs through every backend: calls, the comparison after them, and what is told of a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from pagebind_conformance import difference
from pagebind_conformance.difference import Difference
from pagebind_conformance.guarded import MOST_TOLD, POISON, WORDS
from pagebind_conformance.inputs import of_ids, of_rows, of_tables, oracle
from pagebind_conformance.inputs.arena import Arena, Placed
from pagebind_conformance.inputs.draw import Draw
from pagebind_conformance.inputs.drawn import Input, Ints, Plan
from pagebind_conformance.inputs.plans import spelled, told_options
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import call

MODULES = (of_tables, of_ids, of_rows)

BACKENDS, ORACLE = "between backends", "from the oracle"
"""Where a difference is."""


@dataclass(frozen=True)
class Found:
    """A difference, and the input of the plan that shows it."""

    index: int
    error: Difference
    where: str
    last: int | None = None
    """Of several inputs of which one has it, the last; `index` is the first."""


def draw_input(plan: Plan, index: int) -> Input:
    """Return an input of a plan by its number: the same whatever was drawn before."""
    draw = Draw((plan.seed, plan.number, index), small=plan.small)
    drawn: Input = _drawer(plan.operation.name)(draw, plan.spec)
    return drawn


@cache
def _drawer(operation: str) -> Any:
    for module in MODULES:
        if hasattr(module, operation):
            return getattr(module, operation)
    raise LookupError(f"operation {operation!r} has no inputs; write a function of its name that draws one")


def between(subjects: Sequence[Subject], plan: Plan, drawn: Mapping[int, Input]) -> Found | None:
    """Call every backend with the inputs, by their numbers, and return the first difference of their buffers."""
    arena = Arena(plan, list(drawn.values()))
    numbers = list(drawn)
    images: list[Ints] = []
    for subject in subjects:
        whole = arena.on(subject.device)
        buffers = {dtype: whole.view(dtype) for dtype in POISON}
        try:
            planned = subject.plan(plan.operation, plan.spec, plan.checks, plan.options)
        except Exception as error:
            told = f"{subject.asked} raised {type(error).__name__} when it planned: {error}"
            return Found(numbers[0], _of(Difference(told), plan, arena, 0), BACKENDS)
        for i in range(len(numbers)):
            try:
                call(planned, plan.operation, arena.arguments(i, buffers))
            except Exception as error:
                told = f"{subject.asked} raised {type(error).__name__}: {error}"
                return Found(numbers[i], _of(Difference(told), plan, arena, i), BACKENDS)
        try:
            images.append(arena.without_leftovers(whole.cpu().numpy()))
        except RuntimeError as error:  # what a launch did wrong is told when its device is waited for
            told = f"{subject.asked} raised {type(error).__name__} after inputs {numbers[0]} to {numbers[-1]}: {error}"
            return Found(numbers[0], Difference(told), BACKENDS, numbers[-1])
    first = images[0]
    for subject, image in zip(subjects[1:], images[1:], strict=True):
        if not np.array_equal(first, image):
            byte = int(np.flatnonzero(first != image)[0])
            i = arena.at(byte).of
            names = (subjects[0].asked, subject.asked)
            return Found(numbers[i], _of(_told(arena, i, names, first, image), plan, arena, i), BACKENDS)
    wild = (first != arena.image) & (arena.allowed() == 0)
    if wild.any():
        at = arena.at(int(np.flatnonzero(wild)[0]))
        told = f"{', '.join(s.asked for s in subjects)} write {at.name}, or around it, where nothing may be written"
        return Found(numbers[at.of], _of(Difference(told), plan, arena, at.of), BACKENDS)
    return None


def against_oracle(subject: Subject, plan: Plan, index: int, drawn: Input) -> Found | None:
    """Hold one backend's call against the oracle."""
    try:
        oracle.hold(subject, plan, drawn)
    except Exception as error:
        found = difference.found_in(error) or Difference(f"{type(error).__name__}: {error}")
        named = Difference(f"{subject.asked}: {found.complaint}", found.tensors, found.call)
        if named.call is None:
            named = _of(named, plan, Arena(plan, [drawn]), 0)
        return Found(index, named, ORACLE)
    return None


def _told(arena: Arena, i: int, names: tuple[str, str], first: Ints, image: Ints) -> Difference:
    """Return how the tensors of one input differ in two buffers; what the first backend left stands as expected."""
    found = []
    for name, at in arena.placed[i].items():
        ours, theirs = at.within(first), at.within(image)
        wrong = np.argwhere(ours != theirs)
        around = slice(at.begin, at.end)
        outside = int((first[around] != image[around]).any()) if not len(wrong) else 0
        if not len(wrong) and not outside:
            continue
        cells = [tuple(map(int, where)) for where in wrong[:MOST_TOLD]]
        told = [_cell(name, at, w, (int(theirs[w]), int(ours[w])), names[::-1]) for w in cells]
        told += [f"and {len(wrong) - MOST_TOLD} more"] if len(wrong) > MOST_TOLD else []
        told += [f"around its cells one of {' and '.join(names)} wrote"] if outside else []
        grid = difference.differing(name, _torch(theirs), _torch(ours), POISON[at.dtype], outside, _words(name, at))
        found.append(Difference(f"{name} {list(at.shape)}: {'; '.join(told)}", [grid]))
    return difference.joined(found)


def _cell(name: str, at: Placed, where: tuple[int, ...], values: tuple[int, int], names: Sequence[str]) -> str:
    words = _words(name, at)
    place = f"[{', '.join(map(str, where))}]"
    if words is not None:
        place = words[where[-1]] if len(where) == 1 else f"{words[where[-1]]} of block {where[0]}"
    shown = ["not written" if value == POISON[at.dtype] else str(value) for value in values]
    return f"{place} is {shown[0]} by {names[0]}, {shown[1]} by {names[1]}"


def _torch(array: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _words(name: str, at: Placed) -> list[str] | None:
    return WORDS if name.rpartition(".")[2] in ("state", "chain") and at.dtype is torch.int64 else None


def _of(error: Difference, plan: Plan, arena: Arena, i: int) -> Difference:
    """Return the difference with the call that it is of."""
    some = list(arena.placed[i].items())[: difference.MOST_INPUTS]
    inputs = [
        difference.before(name, _torch(at.within(arena.image)), POISON[at.dtype], _words(name, at)) for name, at in some
    ]
    drawn = arena.inputs[i]
    told = {"operation": plan.operation.name, "spec": {k: str(v) for k, v in spelled(plan.spec).items()}}
    told |= {"arguments": {name: str(value) for name, value in drawn.plain.items()}}
    return Difference(error.complaint, error.tensors, {**told, "inputs": inputs})


def described(plan: Plan) -> dict[str, Any]:
    """Return a plan as a record keeps it."""
    return {
        "plan": plan.number,
        "seed": [plan.seed, plan.number],
        "operation": plan.operation.name,
        "level": plan.operation.level,
        "spec": spelled(plan.spec),
        "checks": plan.checks,
        "options": told_options(plan.options),
    }
