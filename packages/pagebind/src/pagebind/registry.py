"""Which backends are installed, which are usable here, and which one to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import torch

from pagebind.backend import ENTRY_POINT_GROUP, SERVING_MODES, Backend
from pagebind.config import Setting, resolve
from pagebind.errors import (
    BackendNotFound,
    BackendUnavailable,
    ConfigError,
    DuplicateBackend,
    did_you_mean,
)
from pagebind.ops import FEATURES, OPERATIONS

IN_TREE = ("cpu", "cuda", "triton")
"""Backends with a distribution `pagebind-<name>`; messages offer to install them."""


@dataclass(frozen=True)
class Candidate:
    """One installed backend as seen from a device type: `reason` it is not usable, or `chosen` where auto takes it."""

    name: str
    distribution: str
    backend: Backend | None
    reason: str | None
    chosen: bool = False
    note: str = ""
    """Why auto takes it or passes over it."""


def get_backend(name: str | None = None, *, device: str | torch.device | None = None) -> Backend:
    """Return the backend that the configuration ladder names (see `pagebind.config`), or the best usable one.

    `name` is an installed backend's name, `module:attribute`, `auto` or None (ask the next rung). An explicit choice
    never falls back. Raises BackendNotFound, BackendUnavailable or DuplicateBackend with the reason and the mend.

    >>> get_backend("cpu").name
    'cpu'
    """
    config = resolve(backend=name, device=None if device is None else str(device))
    return settle(config.backend, config.device)[0]


def settle(backend: Setting | Backend, device: Setting) -> tuple[Backend, torch.device]:
    """Return the backend and the device that two settings name; a record stands for itself.

    Where the backend is named or given and the device is `auto`, it is the best device that the backend runs on. Raises
    as get_backend does.
    """
    where = resolve_device(device)
    if isinstance(backend, Setting) and backend.value == "auto":
        return choose(backend, where.type), where
    record = backend if isinstance(backend, Backend) else find(backend)
    if device.value == "auto" and where.type not in record.modes and "cpu" in record.modes:
        where = torch.device("cpu")
    _need_usable(record, backend, where.type)
    return record, where


def resolve_device(setting: Setting) -> torch.device:
    """Return the device a setting names; `auto` is the current CUDA device where there is one, else the CPU."""
    if setting.value == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(setting.value)
    except RuntimeError as error:
        near = did_you_mean(setting.value, ("auto", "cpu", "cuda"))
        raise ConfigError(f"device {setting.value!r} (from {setting.origin}) is no device: {error}{near}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise ConfigError(
                f"device {setting.value!r} (from {setting.origin}) does not exist here; "
                f"there are {count} CUDA device(s) and the cpu: set device=cpu, or auto"
            )
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    # Tensors on the CPU say "cpu", never "cpu:0".
    return torch.device("cpu") if device.type == "cpu" else device


def choose(setting: Setting, device_type: str) -> Backend:
    """Return the backend a setting names, for a device type; `auto` takes the best usable one."""
    if setting.value == "auto":
        candidates = available_backends(device_type)
        for candidate in candidates:
            if candidate.chosen and candidate.backend is not None:
                return candidate.backend
        passed = "; ".join(f"{c.name}: {c.reason or c.note}" for c in candidates) or "none is installed"
        raise BackendUnavailable(
            f"no backend is usable on {device_type} (backend from {setting.origin}); {passed}; "
            "pip install pagebind-cpu, and set device=cpu"
        )
    backend = find(setting)
    _need_usable(backend, setting, device_type)
    return backend


def find(setting: Setting) -> Backend:
    """Return the record that a setting names, usable or not: an installed backend's, or that of `module:attribute`."""
    if ":" in setting.value:
        return _load_attribute(setting)
    found = _find(setting)
    if isinstance(found, str):
        raise BackendUnavailable(f"backend {setting.value!r} (from {setting.origin}) cannot be loaded: {found}")
    return found


def available_backends(device_type: str | None = None) -> list[Candidate]:
    """Return every installed backend as a Candidate, by name; one of them is `chosen` where any is usable.

    `device_type` is `cuda`, `cpu` or None for that of the configured device.
    """
    if device_type is None:
        device_type = resolve_device(resolve().device).type
    candidates = []
    for name, point in sorted(_entry_points().items()):
        loaded = _load(point)
        if isinstance(loaded, str):
            candidates.append(Candidate(name, _distribution(point), None, loaded))
        else:
            candidates.append(Candidate(name, loaded.distribution, loaded, loaded.reason_against(device_type)))
    usable = [
        c.backend for c in candidates if c.backend and not c.reason and c.backend.modes[device_type] in SERVING_MODES
    ]
    best = min(usable, key=lambda backend: (-backend.rank, backend.name), default=None)
    return [_judged(c, best, device_type) for c in candidates]


def _judged(c: Candidate, best: Backend | None, device_type: str) -> Candidate:
    if c.backend is None or c.reason is not None:
        return Candidate(c.name, c.distribution, c.backend, c.reason, note="not usable")
    if c.backend is best:
        return Candidate(c.name, c.distribution, c.backend, None, True, f"auto takes it: best usable on {device_type}")
    mode = c.backend.modes[device_type]
    if mode not in SERVING_MODES:
        return Candidate(c.name, c.distribution, c.backend, None, note=f"mode {mode} is for tests; auto passes it over")
    assert best is not None
    below = f"below {best.name} ({best.rank})" if c.backend.rank < best.rank else f"as {best.name}, first by name"
    return Candidate(c.name, c.distribution, c.backend, None, note=f"rank {c.backend.rank}, {below}")


def _entry_points() -> Mapping[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        other = points.setdefault(point.name, point)
        if _distribution(other) != _distribution(point) or other.value != point.value:
            raise DuplicateBackend(
                f"backend {point.name!r} is offered by {_distribution(other)} ({other.value}) and by "
                f"{_distribution(point)} ({point.value}): pip uninstall one of them"
            )
    return points


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


def _find(setting: Setting) -> Backend | str:
    points = _entry_points()
    if setting.value in points:
        return _load(points[setting.value])
    known = sorted({*points, *IN_TREE})
    install = f"; pip install pagebind-{setting.value}" if setting.value in IN_TREE else ""
    raise BackendNotFound(
        f"backend {setting.value!r} (from {setting.origin}) is not installed; installed: "
        f"{', '.join(sorted(points)) or 'none'}{install or did_you_mean(setting.value, known)}"
    )


def _load(point: EntryPoint) -> Backend | str:
    try:
        loaded = point.load()
    except Exception as error:  # a broken distribution must not take the others down: its reason is shown
        return f"{point.value} of {_distribution(point)} fails to load: {type(error).__name__}: {error}"
    if not isinstance(loaded, Backend):
        return f"{point.value} of {_distribution(point)} is a {type(loaded).__name__}, not a pagebind.Backend"
    if loaded.name != point.name:
        return (
            f"{point.value} of {_distribution(point)} is named {loaded.name!r}, its entry point {point.name!r}; "
            "give both one name"
        )
    return loaded


def _load_attribute(setting: Setting) -> Backend:
    module, _, attribute = setting.value.partition(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # somebody's module: whatever it raises is the reason
        raise BackendNotFound(
            f"backend {setting.value!r} (from {setting.origin}) cannot be imported: {type(error).__name__}: {error}; "
            "name it module:attribute, with the module on PYTHONPATH"
        ) from error
    if not isinstance(loaded, Backend):
        raise BackendNotFound(
            f"backend {setting.value!r} (from {setting.origin}) is a {type(loaded).__name__}, not a pagebind.Backend"
        )
    return loaded


def _need_usable(backend: Backend, asked: Setting | Backend, device_type: str) -> None:
    told = f"{asked.value!r} (from {asked.origin})" if isinstance(asked, Setting) else f"{backend.name!r} (a record)"
    reason = backend.reason_against(device_type)
    if reason is not None:
        raise BackendUnavailable(f"backend {told} is not usable on {device_type}: {reason}")
    missing = [op.name for op in OPERATIONS.values() if op.level == "core" and op.name not in backend.planners]
    unknown = sorted(backend.features - FEATURES)
    if unknown:
        raise BackendUnavailable(
            f"backend {told} declares {unknown[0]!r}, which no operation asks for; features: "
            f"{', '.join(sorted(FEATURES))}{did_you_mean(unknown[0], FEATURES)}"
        )
    if missing:
        raise BackendUnavailable(
            f"backend {told} has no planner for {', '.join(missing)}; core needs them: add them to its planners"
        )
