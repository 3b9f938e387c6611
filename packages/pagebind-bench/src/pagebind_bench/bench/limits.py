"""What no call can be faster than, measured in the run itself: an empty kernel, a bare launch, a plain copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch

from pagebind_bench.bench.kinds import GIB, L2, MIB
from pagebind_bench.bench.timing import CUDA, Call, CpuTimer, GpuTimer, Times

EMPTY_PROGRAMS = (1, 1_024)
COPIED = {"cuda": GIB, "cpu": 256 * MIB}
"""Bytes of a plain copy: many times what caches hold."""


@dataclass(frozen=True)
class Limit:
    """One limit: an `empty` kernel of some programs, a bare launch, or a `copy` of some bytes."""

    op: str
    """`floor` or `ceiling`."""
    contender: str
    l2: L2
    times: Times | None
    host: Times | None = None
    bytes: int = 0
    """Read and written together."""


@dataclass(frozen=True)
class Limits:
    """What calls of a run are held against."""

    floor_us: Mapping[L2, float]
    """An empty kernel of one program; nothing on the CPU."""
    bytes_per_s: float
    """Of the fastest copy, read and written together."""


def measured(
    timer: GpuTimer | CpuTimer, device: torch.device, bare: Mapping[str, Call], *, triton: bool
) -> Iterator[Limit]:
    """Measure every limit of a device. With `triton` the empty kernel is one of Triton's, else a wait of no cycle."""
    if isinstance(timer, GpuTimer):
        for name, empty in _empties(triton=triton):
            empty()
            yield Limit("floor", name, "warm", timer.measure(empty), timer.host([empty])[0])
            yield Limit("floor", name, "cold", timer.measure(empty, cold=True))
        for name, host in zip(bare, timer.host(list(bare.values())), strict=True):
            yield Limit("floor", f"bare-{name}", "warm", None, host)
    size = COPIED[device.type]
    source = torch.randint(2**62, (size // 8,), dtype=torch.int64, device=device)
    target = torch.empty_like(source)

    def plain() -> None:
        target.copy_(source)

    def kernel() -> None:
        torch.add(source, 0, out=target)

    for name, copy in (("copy", plain), ("kernel", kernel)):
        copy()
        yield Limit("ceiling", name, "warm", timer.measure(copy), bytes=2 * size)


def judged(limits: Iterable[Limit]) -> Limits:
    """Return what limits come to."""
    floors: dict[L2, float] = {}
    rates = []
    for limit in limits:
        if limit.times is None:
            continue
        if limit.op == "floor":
            floors.setdefault(limit.l2, limit.times.p50)
        else:
            rates.append(limit.bytes / limit.times.p50 * 1e6)
    return Limits(floors, max(rates))


def _empties(*, triton: bool) -> Iterator[tuple[str, Call]]:
    if not triton:
        yield "empty", lambda: CUDA._sleep(0)
        return
    empty = import_module("pagebind_bench.bench.published").empty
    for programs in EMPTY_PROGRAMS:
        yield "empty" if programs == 1 else f"empty-{programs}", partial(empty, programs)
