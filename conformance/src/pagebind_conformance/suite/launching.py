"""A planned call only launches: the host does not wait, nothing is allocated, the caller's stream is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from pagebind import Operation
from pagebind.ops import OPERATIONS

from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import call, compare
from pagebind_conformance.trial.sample import same, sample

GROUP = "launching"
CUDA: Any = torch.cuda  # parts of it have no types
STALL = 400_000_000  # cycles, some 0.2 s: far above what a launch takes

every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))


def warmed(subject: Subject, operation: Operation[Any, Any], what: str) -> Any:
    """Return a warm plan of the backend's own, on a GPU; one call on spare tensors loads what it launches."""
    subject.need_mode("gpu", what=what)
    subject.need(operation)
    spec, arguments = sample(operation, subject.device)
    planned = subject.plan(operation, spec)
    planned.warmup()
    call(planned, operation, arguments)
    torch.cuda.synchronize(subject.device)
    return planned


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Make torch raise where the host would wait."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_operation
def test_a_call_returns_while_its_stream_is_stalled(subject: Subject, operation: Operation[Any, Any]) -> None:
    planned = warmed(subject, operation, "a stalled stream")
    _, eager = sample(operation, subject.device)
    call(planned, operation, eager)
    _, stalled = sample(operation, subject.device)
    torch.cuda.synchronize(subject.device)
    stream = torch.cuda.current_stream(subject.device)
    with refusing_waits():
        CUDA._sleep(STALL)
        call(planned, operation, stalled)
    still_busy = not stream.query()
    torch.cuda.synchronize(subject.device)
    assert still_busy, "the stream was idle when the call returned: the host waited for the device"
    assert same(stalled, eager) is None


@every_operation
def test_a_call_allocates_no_device_memory(subject: Subject, operation: Operation[Any, Any]) -> None:
    planned = warmed(subject, operation, "counting allocations")
    calls = [sample(operation, subject.device, bs)[1] for bs in (1, 5, 6, 3)]
    torch.cuda.synchronize(subject.device)
    before = torch.cuda.memory_stats(subject.device)
    for arguments in calls:
        call(planned, operation, arguments)
    after = torch.cuda.memory_stats(subject.device)
    for counter in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[counter] == before[counter], counter


@every_operation
def test_a_call_runs_on_the_callers_stream(subject: Subject, operation: Operation[Any, Any]) -> None:
    planned = warmed(subject, operation, "a second stream")
    _, eager = sample(operation, subject.device)
    call(planned, operation, eager)
    _, aside = sample(operation, subject.device)
    torch.cuda.synchronize(subject.device)
    stream = CUDA.Stream(subject.device)
    with torch.cuda.stream(stream):
        CUDA._sleep(STALL)
        call(planned, operation, aside)
    compare(aside)  # read on the default stream, which waits for no other: nothing has run yet
    stalled = not stream.query()
    stream.synchronize()
    assert stalled, "the side stream was idle before its call could be told from one on the default stream"
    assert same(aside, eager) is None
