"""Launches that are repeated: with the addresses of their call, on the stream and device that are current then."""

import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from pagebind.errors import CaptureError
from pagebind_triton import guards
from pagebind_triton.launch import PlannedLaunch, Variant, is_dependent, recorded


class Gpu:
    """Stands in for torch and a compiled kernel on the second of two GPUs."""

    def __init__(self):
        self.device, self.stream, self.capability = 1, 70, (9, 0)
        self.launched = []

    @contextmanager
    def entered(self, device):
        before, self.device = self.device, device.index
        yield
        self.device = before

    def run(self, *given):
        assert self.device == 1
        self.launched.append(given)


@pytest.fixture
def machine(monkeypatch):
    machine = Gpu()
    monkeypatch.setattr(torch.cuda, "device", machine.entered)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: machine.capability)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: machine.device, raising=False)
    return machine


def variant_on(machine):
    kernel = SimpleNamespace(arg_names=["a", "b", "n", "BLOCK", "DEPENDENT"], __name__="kernel")
    variant = Variant(kernel, [torch.int32, torch.int32], {"BLOCK": 64}, torch.device("cuda", 1))
    variant._run, variant._function, variant._metadata = machine.run, "function", "metadata"
    variant._stream = lambda index: 100 * index + machine.stream
    return variant


def launch_of(n, programs, tensors, stream=170):
    return (programs, 1, 1, stream, "function", "metadata", None, None, None, *tensors, n, 64, 1)


@pytest.mark.parametrize(("capability", "dependent"), [((8, 9), 0), ((9, 0), 1), ((12, 0), 1)])
def test_launches_are_dependent_ones_where_the_gpu_knows_them(machine, capability, dependent):
    machine.capability = capability
    variant = variant_on(machine)
    assert variant.constants == {"BLOCK": 64, "DEPENDENT": dependent}
    assert variant.options == {"num_warps": 2, "launch_pdl": bool(dependent)}


def test_launches_are_in_turn_where_triton_knows_no_others_and_in_the_interpreter(machine, monkeypatch):
    assert not is_dependent(torch.device("cpu"))
    assert is_dependent(torch.device("cuda", 1))
    monkeypatch.setattr(guards, "wait_for_previous", None)
    assert not is_dependent(torch.device("cuda", 1))


def test_a_repetition_is_the_same_launches_on_the_stream_and_device_that_are_current_then(machine):
    variant = variant_on(machine)

    def run(a, b, *, n):
        variant(3, a, b, n)
        variant(1, b, a, 7)

    planned = PlannedLaunch(run, [variant], torch.device("cuda", 1))
    planned.warmup()
    a, b = torch.zeros(2, 4, dtype=torch.int32)
    there, back = (a.data_ptr(), b.data_ptr()), (b.data_ptr(), a.data_ptr())
    gone = weakref.ref(a)
    first, second = planned.repeatable(a, b, n=5), planned.repeatable(b, a, n=6)
    assert not recorded
    del a
    assert gone() is None
    machine.stream, machine.device, machine.launched = 71, 0, []
    second()
    first()
    assert machine.device == 0
    assert machine.launched == [
        launch_of(6, 3, back, 171),
        launch_of(7, 1, there, 171),
        launch_of(5, 3, there, 171),
        launch_of(7, 1, back, 171),
    ]


def test_a_call_that_fails_leaves_nothing_recorded_and_the_interpreter_offers_no_repetition(machine):
    variant = variant_on(machine)

    def run(a, fail):
        variant(3, a, a, 0)
        if fail:
            raise CaptureError("no")

    planned = PlannedLaunch(run, [variant], torch.device("cuda", 1))
    planned.warmup()
    a = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(CaptureError):
        planned.repeatable(a, True)
    assert not recorded
    machine.launched.clear()
    planned.repeatable(a, False)()
    assert machine.launched == [launch_of(0, 3, (a.data_ptr(),) * 2)] * 2
    calls = []
    assert PlannedLaunch(lambda: calls.append(1), [], torch.device("cpu")).repeatable() is None
    assert calls == [1]
