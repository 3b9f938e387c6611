"""plan: decide all that can be decided, and return a call that only checks its arguments and launches.

A call like an earlier one is not even checked: `pagebind.repeat` says what that is, and how it is recognised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch

from pagebind.backend import Backend
from pagebind.config import resolve
from pagebind.errors import CaptureError, FaultError, InvalidArgument, Unsupported
from pagebind.operation import Checks, Launch, LaunchOptions, Operation
from pagebind.registry import settle
from pagebind.repeat import Memory, Seen, with_arguments
from pagebind.words import read_counters

SpecT = TypeVar("SpecT")
CallT = TypeVar("CallT")


class Planned:
    """A planned call: checks what it is given, then launches. It looks nothing up by name.

    A call like an earlier one of this plan is launched without checking it again. Nothing of a refused call is kept.
    """

    __slots__ = (
        "_arguments",
        "_launch",
        "_memory",
        "_repeatable",
        "backend",
        "composed",
        "device",
        "operation",
        "spec",
    )

    def __init__(
        self, operation: Operation[Any, Any], spec: Any, backend: Backend, device: torch.device, launch: Launch
    ) -> None:
        self.operation = operation
        self.spec = spec
        self.backend = backend
        self.device = device
        self.composed = operation.name not in backend.planners
        """True where the backend has no kernel for this operation and it is composed from core ones and torch."""
        self._launch = launch
        self._repeatable = getattr(launch, "repeatable", None)
        self._arguments = operation.arguments
        self._memory = Memory()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Check the arguments and launch; an empty batch launches nothing."""
        memory = self._memory
        found = memory.find(args, kwargs)
        if found is None or isinstance(found, Seen):
            if self._arguments(self.spec, self.device, *args, **kwargs):
                self._launch_new(memory, found, args, kwargs)
        elif found is with_arguments:
            self._launch(*args, **kwargs)
        else:
            found()

    def _launch_new(self, memory: Memory, call: Seen | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if call is None:
            self._launch(*args, **kwargs)
            if not memory.rests():
                self._memory = memory.of_form(args, kwargs)
        elif not memory.note(call):  # making a repetition ready takes longer than a launch, so it has to come twice
            self._launch(*args, **kwargs)
        elif self._repeatable is None:
            self._launch(*args, **kwargs)
            memory.remember(call, with_arguments)
        else:
            memory.remember(call, self._repeatable(*args, **kwargs) or with_arguments)

    def need_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Refuse arguments that a call would refuse; launch nothing."""
        self._arguments(self.spec, self.device, *args, **kwargs)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Refuse what a call with these arguments would refuse; launch nothing."""
        self.need_arguments(*args, **kwargs)

    def warmup(self) -> None:
        """Compile every variant a later call can need, so that none compiles while serving or inside a capture."""
        self._launch.warmup()

    def __repr__(self) -> str:
        how = "composed for" if self.composed else "by"
        return f"<{self.operation.name} {how} {self.backend.name} on {self.device}>"


class FullyChecked(Planned):
    """A planned call under `checks=full`: looks for faults first, waits, and raises before anything is written."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Raise FaultError, naming ids, where the call would count a fault; else launch."""
        if self._sound(*args, **kwargs):
            self._launch(*args, **kwargs)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Refuse what a call with these arguments would refuse, faults too; launch nothing but the check."""
        self._sound(*args, **kwargs)

    def _sound(self, *args: Any, **kwargs: Any) -> bool:
        if not self._arguments(self.spec, self.device, *args, **kwargs):
            return False
        if capturing(self.device):
            raise CaptureError(
                f"{self.operation.name} was planned with checks=full, which waits and cannot be captured; "
                "plan with checks=count for graphs"
            )
        faults = {k: list(v) for k, v in self.operation.faults(self.spec, *args, **kwargs).items() if len(v)}
        if faults:
            told = "; ".join(f"{name}: {_some(ids)}" for name, ids in faults.items())
            raise FaultError(
                f"{self.operation.name} was refused, nothing was written: {told}",
                {name: len(ids) for name, ids in faults.items()},
                faults,
            )
        return True


def plan(
    operation: Operation[SpecT, CallT],
    spec: SpecT,
    *,
    backend: str | Backend | None = None,
    device: str | torch.device | None = None,
    checks: Checks | None = None,
    options: LaunchOptions | None = None,
) -> CallT:
    """Plan an operation and return its call.

    `backend`, `device` and `checks` left None come from the configuration (see `pagebind.config`). Raises ConfigError,
    BackendNotFound, BackendUnavailable, Unsupported or InvalidArgument; never allocates after it has returned.

    >>> table = plan(READ_TABLE, ReadTableSpec(max_bs=64, max_width=512, page_size=16, num_physical=4096))
    >>> table.warmup()
    >>> table(request_table, req_rows, seq_lens, v2p, out=out, state=state)
    """
    if not isinstance(spec, operation.spec):
        raise InvalidArgument(
            f"spec is a {type(spec).__name__}; {operation.name} is planned by a {operation.spec.__name__}"
        )
    config = resolve(
        backend=None if isinstance(backend, Backend) else backend,
        device=None if device is None else str(device),
        checks=checks,
    )
    record, where = settle(backend if isinstance(backend, Backend) else config.backend, config.device)
    return operation.call_type(
        plan_with(record, operation, spec, where, config.checks.value, options or LaunchOptions())
    )


def plan_with(
    backend: Backend,
    operation: Operation[Any, Any],
    spec: Any,
    device: torch.device,
    checks: str,
    options: LaunchOptions,
) -> Planned:
    """Plan an operation on a given backend and device, without asking the configuration."""
    if checks == "off":
        options = replace(options, count=False)
    planner = backend.planners.get(operation.name)
    if planner is not None:
        missing = operation.features(spec) - backend.features
        if missing:
            raise Unsupported(
                f"backend {backend.name!r} does not declare {', '.join(sorted(missing))} for {operation.name}; "
                f"declared: {', '.join(sorted(backend.features)) or 'nothing'}: choose another backend or spec"
            )
        launch = planner(spec, device, options)
        if not callable(getattr(launch, "warmup", None)):
            raise InvalidArgument(
                f"the planner of backend {backend.name!r} for {operation.name} returned a {type(launch).__name__} "
                "without warmup(); wrap a plain function as pagebind.operation.NoWarmup(function)"
            )
    else:
        if operation.compose is None:
            raise Unsupported(f"backend {backend.name!r} has no planner for the core operation {operation.name}")
        launch = operation.compose(spec, device, backend.planners, options)
    kind = FullyChecked if checks == "full" else Planned
    return kind(operation, spec, backend, device, launch)


def check(state: torch.Tensor) -> None:
    """Raise FaultError with the counters of a state block, int64 `[32]`, if any is above 0. Waits for the device."""
    counters = {name: count for name, count in read_counters(state).items() if count}
    if counters:
        told = ", ".join(f"{name} {count}" for name, count in counters.items())
        raise FaultError(
            f"faults were dropped and counted since the state block was new: {told}; "
            "plan with checks=full to have the next one named before it is written",
            counters,
        )


def capturing(device: torch.device) -> bool:
    """Return whether the current stream of `device` is capturing a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _some(ids: Any) -> str:
    shown = ", ".join(str(i) for i in list(ids)[:8])
    return shown + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
