"""What makers need: where to run, whose kernels, and how a contender hands over its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from pagebind import Backend, LaunchOptions, Operation
from pagebind.errors import Unsupported
from pagebind.plan import Planned, plan_with
from pagebind.words import read_counters

from pagebind_bench.bench.sglang import Sglang
from pagebind_bench.bench.timing import Round


class Fault(Exception):
    """A contender did not do what it is timed for: it counted a fault, or its result is another one."""


@dataclass(frozen=True)
class Work:
    """A contender's call, ready to be timed: it allocates all it needs when made, and only launches when called."""

    call: Callable[[], None]
    bytes: int
    """The fewest bytes a call has to move."""
    result: Callable[[], torch.Tensor | None] = lambda: None
    """What a call wrote, for comparing contenders; None where there is nothing to compare."""
    restore: Callable[[], None] | None = None
    """Brings back what a call changes in place; it has to be there before the next one."""
    turns: Round | None = None
    """What is timed instead of `call`, where calls have to differ; what the host takes is that of `call`."""
    state: torch.Tensor | None = None
    """State block that a call counts its faults in, int64 `[32]`."""

    def need_sound(self) -> None:
        """Raise Fault if a call has counted faults. Waits."""
        counted = {} if self.state is None else {k: v for k, v in read_counters(self.state).items() if v}
        if counted:
            raise Fault(f"it counted faults on sound inputs: {counted}")


class Contender(NamedTuple):
    """One who does a case's work, and how to have it ready."""

    name: str
    make: Callable[[], Work]


@dataclass
class Lab:
    """One device, the backends and peers that are measured on it."""

    device: torch.device
    backends: tuple[Backend, ...]
    sglang: Sglang | None = None
    published: bool = False
    """Whether our own renderings of the two published grids take part; they need Triton and a GPU."""
    bare: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """A bare launch by a backend's library, by the backend's name; none on the CPU."""
    options: LaunchOptions = field(default_factory=LaunchOptions)
    """Of plans that are made from now on."""

    def plan(self, backend: Backend, operation: Operation[Any, Any], spec: Any) -> Planned:
        """Plan an operation, compiled.

        Raises Unsupported where the backend does not declare what the spec asks, or a GPU would have to wait for it.
        """
        planned = plan_with(backend, operation, spec, self.device, "count", self.options)
        if planned.composed and self.device.type == "cuda":
            raise Unsupported(f"backend {backend.name!r} composes {operation.name}, which waits: no graph can hold it")
        planned.warmup()
        return planned

    def own(self, make: Callable[[Backend], Work]) -> list[Contender]:
        """Return a contender for each backend."""
        return [Contender(backend.name, partial(make, backend)) for backend in self.backends]
