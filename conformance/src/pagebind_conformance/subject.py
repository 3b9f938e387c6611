"""The backend under test, as tests see it: they ask it for capabilities and plans, never for its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from pagebind import Backend, LaunchOptions, Operation, Planned
from pagebind.backend import Mode
from pagebind.config import resolve
from pagebind.ops import OPERATIONS
from pagebind.plan import plan_with
from pagebind.registry import settle

NOT_SUPPORTED = "not supported: "
"""How the reason of a skip begins where the backend does not declare what a case asks for."""

EXAMPLES: Mapping[Mode, int] = {"cpu": 20, "gpu": 40, "interpreter": 4, "host": 12}
"""Generated cases for each spec, by mode: an interpreted program takes milliseconds."""

COMPOSED_SHARE = 0.25
"""Of the generated cases, what composed forms get: they are the core's own, the same for every backend."""

SMALL = LaunchOptions(threads=32, programs=4)
"""Blocks so small and few that every loop takes a second trip, in the modes where a program is slow."""

INTERPRETED: Mapping[str, LaunchOptions] = {"refresh_table": replace(SMALL, programs=2)}
"""What operations get in the interpreter instead, whose programs take a tenth of a second before they do any work.

Cases that name their launch sizes have 1 and 3 of them as well.
"""


def core_only(backend: Backend) -> Backend:
    """Return the record with its core planners alone: the other operations are then composed."""
    core = {name: p for name, p in backend.planners.items() if name in OPERATIONS and OPERATIONS[name].level == "core"}
    return replace(backend, planners=core)


@dataclass(frozen=True)
class Subject:
    """One backend on one device. `composed` tells that its extended operations are the composed ones."""

    backend: Backend
    device: torch.device
    asked: str = ""
    """How the backend was asked for: its name, `module:attribute` or `auto`."""
    composed: bool = False
    examples: int | None = None
    plans: dict[Any, Planned] = field(default_factory=dict, compare=False, repr=False)
    used: set[str] = field(default_factory=set, compare=False, repr=False)
    """Features of the specs asked for since it was last cleared: the report tells those of each case."""

    @property
    def mode(self) -> Mode:
        """How the backend runs on the device."""
        return self.backend.modes[self.device.type]

    @property
    def slow(self) -> bool:
        """Whether GPU code runs without a GPU, so that sizes have to stay small."""
        return self.mode in ("interpreter", "host")

    @property
    def options(self) -> LaunchOptions:
        """What plans of most operations are made with unless a test says otherwise."""
        return SMALL if self.slow else LaunchOptions()

    def options_for(self, operation: str) -> LaunchOptions:
        """Return what plans of an operation are made with unless a test says otherwise."""
        return INTERPRETED.get(operation, self.options) if self.mode == "interpreter" else self.options

    def plan(
        self,
        operation: Operation[Any, Any],
        spec: Any,
        checks: str = "count",
        options: LaunchOptions | None = None,
    ) -> Planned:
        """Return the plan for a spec, one for all that ask alike; skips where the backend lacks a feature."""
        self.need(operation, spec)
        key = (operation.name, spec, checks, options)
        if key not in self.plans:
            options = options or self.options_for(operation.name)
            self.plans[key] = plan_with(self.backend, operation, spec, self.device, checks, options)
        return self.plans[key]

    def need(self, operation: Operation[Any, Any], spec: Any | None = None) -> None:
        """Skip where the backend has no planner of its own for `operation`, or does not declare what `spec` asks."""
        asked = operation.features(spec) if spec is not None else frozenset()
        self.used.update(asked)
        if operation.name not in self.backend.planners:
            if not self.composed:
                pytest.skip(f"{NOT_SUPPORTED}no planner for {operation.name}; its composed form is tested in its place")
            return
        missing = asked - self.backend.features
        if missing:
            pytest.skip(f"{NOT_SUPPORTED}{', '.join(sorted(missing))} of {operation.name}")

    def need_mode(self, *modes: str, what: str) -> None:
        """Skip unless the backend runs in one of `modes`, which `what` needs."""
        if self.mode not in modes:
            pytest.skip(f"{what} needs mode {' or '.join(modes)}; this is mode {self.mode}")

    def generated(self, share: float = 1.0) -> settings:
        """Return the Hypothesis settings of generated cases: the same in every run, as many as the mode affords."""
        examples = self.examples if self.examples is not None else EXAMPLES[self.mode]
        share *= COMPOSED_SHARE if self.composed else 1
        return settings(
            max_examples=max(1, round(examples * share)),
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )


def choose(name: str | None, device: str | None, examples: int | None) -> tuple[Subject, Subject]:
    """Return the subject the options or the configuration name, and the same with its core alone."""
    config = resolve(backend=name, device=device)
    backend, where = settle(config.backend, config.device)
    own = Subject(backend, where, config.backend.value, examples=examples)
    return own, replace(own, backend=core_only(backend), composed=True, plans={})
