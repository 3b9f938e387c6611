"""A planned call only launches: the host does not wait, nothing is allocated, the caller's stream is used.

How often it launches is counted in a CUDA graph: one node a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from pagebind import Operation
from pagebind.ops import EVICT, TRUNCATE

from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import call, compare, parts_of
from pagebind_conformance.trial.sample import CALL_IDS, CALL_PARAMS, CALLS, same, sample

GROUP = "launching"
CUDA: Any = torch.cuda  # parts of it have no types
STALL = 400_000_000  # cycles, some 0.2 s: far above what a launch takes

LATE = """
template <typename T> T late(T address, T value) {
    asm volatile("griddepcontrol.launch_dependents;");
    for (long long begin = clock64(); clock64() - begin < 100000;) {}
    *reinterpret_cast<volatile int*>(address) = static_cast<int>(value);
    return value;
}
"""
"""Writes a word some 0.05 ms after it has let kernels behind it begin, which dependent launches then do."""

MOST_LAUNCHES = {"read_stream": 1, "advance": 1, "alloc": 1, "free": 1, "compact": 2, "refresh_table": 1, "touch": 1}
"""Launches of a call that every variant of an operation has to do with."""

every_call = pytest.mark.parametrize(("operation", "variant"), CALL_PARAMS)


def warmed(subject: Subject, operation: Operation[Any, Any], variant: str, what: str) -> Any:
    """Return a warm plan of the backend's own, on a GPU; one call on spare tensors loads what it launches."""
    subject.need_mode("gpu", what=what)
    subject.need(operation)
    spec, arguments = sample(operation, subject.device, variant=variant)
    planned = subject.plan(operation, spec)
    planned.warmup()
    call(planned, operation, arguments)
    torch.cuda.synchronize(subject.device)
    return planned


def launches(subject: Subject, operation: Operation[Any, Any], variant: str, bs: int) -> int:
    """Return how many nodes a call is in a CUDA graph."""
    planned = warmed(subject, operation, variant, "counting launches")
    _, arguments = sample(operation, subject.device, bs, variant)
    torch.cuda.synchronize(subject.device)
    graph = CUDA.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        call(planned, operation, arguments)
    nodes = ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    failed = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(nodes))
    assert failed == 0, f"cuGraphGetNodes returned {failed}"
    return nodes.value


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Make torch raise where the host would wait."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_call
def test_a_call_returns_while_its_stream_is_stalled(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    planned = warmed(subject, operation, variant, "a stalled stream")
    _, eager = sample(operation, subject.device, variant=variant)
    call(planned, operation, eager)
    _, stalled = sample(operation, subject.device, variant=variant)
    torch.cuda.synchronize(subject.device)
    stream = torch.cuda.current_stream(subject.device)
    with refusing_waits():
        CUDA._sleep(STALL)
        call(planned, operation, stalled)
    still_busy = not stream.query()
    torch.cuda.synchronize(subject.device)
    assert still_busy, "the stream was idle when the call returned: the host waited for the device"
    assert same(stalled, eager) is None


@every_call
def test_a_call_allocates_no_device_memory(subject: Subject, operation: Operation[Any, Any], variant: str) -> None:
    planned = warmed(subject, operation, variant, "counting allocations")
    calls = [sample(operation, subject.device, bs, variant)[1] for bs in (1, 5, 6, 3)]
    torch.cuda.synchronize(subject.device)
    before = torch.cuda.memory_stats(subject.device)
    for arguments in calls:
        call(planned, operation, arguments)
    after = torch.cuda.memory_stats(subject.device)
    for counter in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[counter] == before[counter], counter


@every_call
def test_a_call_runs_on_the_callers_stream(subject: Subject, operation: Operation[Any, Any], variant: str) -> None:
    planned = warmed(subject, operation, variant, "a second stream")
    _, eager = sample(operation, subject.device, variant=variant)
    call(planned, operation, eager)
    _, aside = sample(operation, subject.device, variant=variant)
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


@every_call
def test_a_call_made_again_runs_on_the_stream_it_is_made_on_then(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    planned = warmed(subject, operation, variant, "a second stream")
    _, again = sample(operation, subject.device, variant=variant)
    for _ in range(3):  # of calls that come again a backend may keep all but the launch
        call(planned, operation, again)
    torch.cuda.synchronize(subject.device)
    for tensor in parts_of(again).values():
        tensor.buffer.copy_(tensor.before)
    torch.cuda.synchronize(subject.device)
    stream = CUDA.Stream(subject.device)
    with torch.cuda.stream(stream):
        CUDA._sleep(STALL)
        call(planned, operation, again)
    compare(again)  # read on the default stream: nothing has run yet
    stalled = not stream.query()
    stream.synchronize()
    assert stalled, "the side stream was idle before its call could be told from one on the default stream"
    _, once = sample(operation, subject.device, variant=variant)
    call(planned, operation, once)
    torch.cuda.synchronize(subject.device)
    assert same(again, once) is None


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@every_call
def test_a_call_waits_for_a_kernel_that_lets_others_begin_before_it_writes(
    subject: Subject, operation: Operation[Any, Any], variant: str, captured: bool
) -> None:
    planned = warmed(subject, operation, variant, "a kernel ahead that writes late")
    if torch.cuda.get_device_capability(subject.device) < (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0: others launch nothing before what is ahead has ended")
    _, alone = sample(operation, subject.device, variant=variant)
    call(planned, operation, alone)
    _, behind = sample(operation, subject.device, variant=variant)
    words = [tensor.buffer.view(-1).view(torch.int32) for tensor in parts_of(behind).values()]
    address = torch.cat([w.data_ptr() + 4 * torch.arange(w.numel(), device=w.device) for w in words])
    value = torch.cat([w.long() for w in words])
    late = CUDA.jiterator._create_jit_fn(LATE)
    late(address, value)  # compiled now, and not in a capture
    calls: tuple[Any, ...] = (lambda: late(address, value), lambda: call(planned, operation, behind))
    if captured:
        graph = CUDA.CUDAGraph()
        with torch.cuda.graph(graph):
            for one in calls:
                one()
        calls = (graph.replay,)
    for _ in range(3):
        for w in words:
            w.zero_()
        torch.cuda.synchronize(subject.device)
        for one in calls:
            one()
        torch.cuda.synchronize(subject.device)
        assert same(behind, alone) is None


@pytest.mark.parametrize("bs", [1, 6], ids="bs{}".format)
@pytest.mark.parametrize(
    ("operation", "variant"),
    [one for one in CALLS if one[0].name in MOST_LAUNCHES],
    ids=[name for name in CALL_IDS if name.partition("-")[0] in MOST_LAUNCHES],
)
def test_a_call_launches_no_more_than_its_operation_needs(
    subject: Subject, operation: Operation[Any, Any], variant: str, bs: int
) -> None:
    assert 1 <= launches(subject, operation, variant, bs) <= MOST_LAUNCHES[operation.name]


@pytest.mark.parametrize("variant", ["", "tail", "row"], ids=["head", "tail", "row"])
@pytest.mark.extended
def test_an_eviction_launches_no_more_than_a_truncation(subject: Subject, variant: str) -> None:
    for bs in (1, 6):
        assert 1 <= launches(subject, EVICT, variant, bs) <= launches(subject, TRUNCATE, "", bs)
