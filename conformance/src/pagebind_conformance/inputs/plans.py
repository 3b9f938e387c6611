"""Which plans a check makes: a cycle over all operations, the axes of each spec drawn by the plan's own seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from pagebind import LaunchOptions, Operation
from pagebind.errors import InvalidArgument
from pagebind.ops import OPERATIONS, Beside

from pagebind_conformance.inputs.drawn import Plan
from pagebind_conformance.subject import SMALL

AXES: dict[str, tuple[Any, ...]] = {
    "page_size": (1, 2, 3, 4, 16, 64),
    "form": ("token", "page"),
    "granularity": ("token", "page"),
    "fill": ("prefix", "sink"),
    "multiplier": (1, 1, 3, 7, 10**6),
    "part": ("head", "tail", "row"),
    "page_bytes": (0, 16, 48, 256),
    "ranks": (1, 1, 2, 3),
}
"""What a field of a spec is drawn from; a dtype is int32 or int64, and a bool field True or False."""

LARGE = {"lanes": 2200, "cells": 6000, "items": 40_000, "pages": 9000}
LITTLE = {"lanes": 16, "cells": 600, "items": 600, "pages": 300}
"""The largest sizes planned for: of calls with lanes over several blocks, and of small ones."""

SIZES = {
    "max_bs": "lanes",
    "max_width": "cells",
    "max_items": "items",
    "max_tokens": "items",
    "max_pages": "items",
    "num_virtual": "pages",
    "num_physical": "pages",
}
"""Field of a spec -> which of the largest sizes it is."""

MORE = ("read_table", "refresh_table", "advance", "compact")
"""Operations with so many ways through them that they come twice in a cycle."""

MOST_TRIES = 300


def operation_of(number: int) -> Operation[Any, Any]:
    """Return the operation of a plan, which is the same for any seed."""
    cycle = [*OPERATIONS, *MORE]
    return OPERATIONS[cycle[number % len(cycle)]]


def plan_of(seed: int, number: int, operation: Operation[Any, Any], features: frozenset[str], *, small: bool) -> Plan:
    """Return a plan by its number: the same for any number of plans. It asks for `features` at most."""
    rng = np.random.default_rng([seed, number])
    checks = "off" if rng.random() < 0.1 else "count"
    options = SMALL if small or rng.random() < 0.25 else None
    spec = draw_spec(operation, rng, features, LITTLE if small else LARGE)
    return Plan(number, seed, operation, spec, checks, options, small)


def draw_spec(
    operation: Operation[Any, Any], rng: np.random.Generator, features: frozenset[str], largest: dict[str, int]
) -> Any:
    """Return a spec of an operation, drawn again until it is one and asks for no other features."""

    def one(choices: Iterable[Any]) -> Any:
        choices = tuple(choices)
        return choices[int(rng.integers(len(choices)))]

    for _ in range(MOST_TRIES):
        drawn: dict[str, Any] = {}
        for field in fields(operation.spec):
            name = field.name
            if name in SIZES:
                drawn[name] = largest[SIZES[name]]
            elif name in AXES:
                drawn[name] = one(AXES[name])
            elif name.endswith("_dtype"):
                drawn[name] = one((torch.int32, torch.int64))
            elif name == "rank":
                drawn[name] = int(rng.integers(drawn["ranks"]))
            elif name == "beside":
                # Two of five read tables have a second one; a refresh has none.
                second = Beside(largest["pages"], multiplier=one((1, 5)), windowed=bool(rng.random() < 0.5))
                drawn[name] = second if operation.name == "read_table" and rng.random() < 0.4 else None
            elif isinstance(field.default, bool):
                drawn[name] = bool(rng.random() < 0.5)
            else:
                raise LookupError(
                    f"field {name!r} of the spec of {operation.name} has no axis; name what it is drawn from in AXES"
                )
        try:
            spec = operation.spec(**drawn)
        except InvalidArgument:  # as where an entry does not fit int32
            continue
        if operation.features(spec) <= features:
            return spec
    raise LookupError(
        f"no spec of {operation.name} asks for features that all backends declare ({', '.join(sorted(features))}); "
        "leave out the backend that declares too little"
    )


def spelled(spec: Any) -> dict[str, Any]:
    """Return a spec as a record keeps it: its fields, those that are no numbers as text."""
    plain = (bool, int, str)
    return {
        field.name: value if isinstance(value := getattr(spec, field.name), plain) else str(value)
        for field in fields(spec)
    }


def told_options(options: LaunchOptions | None) -> str:
    """Return launch options as a record keeps them."""
    return "as the mode has them" if options is None else f"threads {options.threads}, programs {options.programs}"
