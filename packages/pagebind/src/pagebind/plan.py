"""plan: decide all that can be decided, and return a call that only checks its arguments and launches.

A call like an earlier one is not even checked: `pagebind.repeat` says what that is, and how it is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch

from pagebind.backend import Backend
from pagebind.config import resolve
from pagebind.errors import CaptureError, FaultError, InvalidArgument, NotPicklable, Unsupported
from pagebind.operation import Checks, Launch, LaunchOptions, Operation
from pagebind.registry import settle
from pagebind.repeat import Calls, Memory, nothing
from pagebind.words import read_counters

SpecT = TypeVar("SpecT")
CallT = TypeVar("CallT")


class Planned(partial[None]):
    """A planned call: checks what it is given, then launches. It looks nothing up by name.

    A call like an earlier one of this plan is launched without checking it again. Nothing of a refused call is kept.
    """

    # It is a `partial` of a function that `Memory` makes: Python calls that with what is given, as it is given. An
    # object with a `__call__` of its own would have the arguments packed and unpacked first.

    operation: Operation[Any, Any]
    spec: Any
    backend: Backend
    device: torch.device
    composed: bool
    """True where the backend has no kernel for this operation and it is composed from core ones and torch."""
    ready: Callable[..., Callable[[], None]]
    """`ready(...)` refuses what a call with these arguments would refuse, and returns what launches, unchecked.

    That is for once, and soon: it is for the tensors as they are. For an empty batch it launches nothing.
    """
    _launch: Launch

    def __new__(
        cls, operation: Operation[Any, Any], spec: Any, backend: Backend, device: torch.device, launch: Launch
    ) -> Planned:
        """Make the call of a launch; an empty batch launches nothing."""
        call, ready = cls._calls(operation, spec, device, launch)
        self = super().__new__(cls, call)
        self.operation, self.spec, self.backend, self.device = operation, spec, backend, device
        self.composed = operation.name not in backend.planners
        self._launch, self.ready = launch, ready
        return self

    @staticmethod
    def _calls(operation: Operation[Any, Any], spec: Any, device: torch.device, launch: Launch) -> Calls:
        return Memory(operation, spec, device, launch).calls()

    def need_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Refuse arguments that a call would refuse, whatever faults they make; launch nothing."""
        self.operation.arguments(self.spec, self.device, *args, **kwargs)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Refuse what a call with these arguments would refuse; launch nothing."""
        self.ready(*args, **kwargs)

    def warmup(self) -> None:
        """Compile every variant a later call can need, so that none compiles while serving or inside a capture."""
        self._launch.warmup()

    def __copy__(self) -> Planned:
        return self  # nothing in a plan changes what it does, so that a copy of what holds it may share it

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        return self

    def __reduce__(self) -> NoReturn:
        raise NotPicklable(
            f"{self!r} cannot be pickled: a plan holds kernels and addresses of its process; "
            f"pickle its spec, and plan({self.operation.name.upper()}, spec) where it is loaded"
        )

    def __repr__(self) -> str:
        how = "composed for" if self.composed else "by"
        return f"<{self.operation.name} {how} {self.backend.name} on {self.device}>"


class FullyChecked(Planned):
    """A planned call under `checks=full`: looks for faults first, waits, and raises before anything is written.

    It raises FaultError, naming ids, where a call would count a fault.
    """

    @staticmethod
    def _calls(operation: Operation[Any, Any], spec: Any, device: torch.device, launch: Launch) -> Calls:
        def ready(*args: Any, **kwargs: Any) -> Callable[[], None]:
            if not operation.arguments(spec, device, *args, **kwargs):
                return nothing
            _need_no_faults(operation, spec, device, args, kwargs)
            return partial(launch, *args, **kwargs)

        return lambda *args, **kwargs: ready(*args, **kwargs)(), ready


def _need_no_faults(
    operation: Operation[Any, Any], spec: Any, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if capturing(device):
        raise CaptureError(
            f"{operation.name} was planned with checks=full, which waits and cannot be captured; "
            "plan with checks=count for graphs"
        )
    faults = {k: list(v) for k, v in operation.faults(spec, *args, **kwargs).items() if len(v)}
    if faults:
        raise refused(operation.name, faults)


def refused(what: str, faults: Mapping[str, Sequence[int]], where: str = "") -> FaultError:
    """Return the error of a call, named `what`, that was refused for the ids of `faults`; `where` they were found."""
    told = "; ".join(f"{name}: {_some(ids)}" for name, ids in faults.items())
    counters = {name: len(ids) for name, ids in faults.items()}
    return FaultError(f"{what} was refused, nothing was written: {told}{where}", counters, faults)


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
    if not isinstance(operation, Operation):
        raise InvalidArgument(
            f"operation is {operation!r}; it must be one of pagebind.ops, as READ_TABLE, which a ReadTableSpec plans"
        )
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
        plan_with(record, operation, spec, where, config.checks.value, LaunchOptions() if options is None else options)
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
    if not isinstance(options, LaunchOptions):
        raise InvalidArgument(f"options is a {type(options).__name__}; it must be a LaunchOptions, or None")
    if checks == "full" and device.type == "meta":
        raise InvalidArgument(
            f"checks is 'full' for {operation.name} on meta; it looks at values, and tensors there have none: "
            "plan with checks=count"
        )
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
