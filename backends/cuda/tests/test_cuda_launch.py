"""Launches that are repeated: what the driver is given, in which context and stream, and that results agree."""

import ctypes
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from pagebind import LaunchOptions, plan
from pagebind.errors import BackendUnavailable, PagebindError
from pagebind.ops import ALLOC, FREE, OPERATIONS, READ_TABLE, TRUNCATE
from pagebind.words import HOLE, HOLE_TOP, VIRTUAL_TOP, PageTables, new_state, new_tables
from pagebind_cuda import driver, gpu, host
from pagebind_cuda.driver import MOST_STREAMS
from pagebind_cuda.launch import PLANNED, KernelLaunch, Variant, loaded, recorded

DEVICE = 1
FUNCTION = 0xF00
VARIANT = Variant("fake", False, False, (1,) * len(PLANNED))


class DriverError(Exception):
    """Stands in for CuPy's error of the driver."""


class Gpu:
    """Stands in for torch's and CuPy's sides of a machine with two GPUs."""

    def __init__(self) -> None:
        self.device = 0
        self.stream = 70
        self.contexts: set[tuple[int, int]] = set()  # host thread, device
        self.launched: list[tuple[object, ...]] = []
        self.attributes: list[list[tuple[int, int]]] = []  # of each launch
        self.capability = (9, 0)
        self.status = 0

    def set_device(self, device: int) -> None:
        self.contexts.add((threading.get_ident(), device))

    @contextmanager
    def entered(self, device):
        before, self.device = self.device, device
        yield
        self.device = before

    def launch(self, given, function, address, extra) -> int:
        assert (function.value, extra) == (FUNCTION, None)
        assert self.device == DEVICE
        assert (threading.get_ident(), DEVICE) in self.contexts, "a launch without a context"
        config = given._obj
        assert (config.grid_y, config.grid_z, config.block_y, config.block_z, config.shared) == (1, 1, 1, 1, 0)
        self.attributes.append([(config.attributes[i].id, config.attributes[i].value) for i in range(config.count)])
        cells = (ctypes.POINTER(ctypes.c_longlong) * 3).from_address(address.value)
        self.launched.append((config.grid_x, config.block_x, config.stream, *(cell[0] for cell in cells)))
        return self.status


@pytest.fixture
def machine(monkeypatch):
    machine = Gpu()
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(setDevice=machine.set_device), driver=SimpleNamespace(CUDADriverError=DriverError)
    )
    monkeypatch.setattr(gpu, "launcher", lambda: machine.launch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: machine.capability)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(loaded, (DEVICE, VARIANT), SimpleNamespace(kernel=SimpleNamespace(ptr=FUNCTION)))
    monkeypatch.setattr(gpu, "_contexts", defaultdict(gpu._Context))
    monkeypatch.setattr(torch.cuda, "device", machine.entered)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: machine.device, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: 100 * device + machine.stream, raising=False
    )
    return machine


@pytest.fixture
def kernel(machine):
    return gpu.GpuKernel(VARIANT, torch.device("cuda", DEVICE))


def test_a_repetition_keeps_its_own_arguments_and_asks_for_the_stream_each_time(machine, kernel):
    launch = KernelLaunch(lambda a, *, b: kernel(2, 64, a, b, 2**63 - 1), kernel)
    first, second = launch.repeatable(-5, b=6), launch.repeatable(7, b=8)
    launch(9, b=10)
    machine.stream = 71
    first()
    second()
    first()
    rest = 2**63 - 1
    assert machine.launched == [
        (2, 64, 170, -5, 6, rest),
        (2, 64, 170, 7, 8, rest),
        (2, 64, 170, 9, 10, rest),
        (2, 64, 171, -5, 6, rest),
        (2, 64, 171, 7, 8, rest),
        (2, 64, 171, -5, 6, rest),
    ]
    assert not recorded


@pytest.mark.parametrize(
    ("capability", "attributes"), [((8, 6), []), ((8, 9), []), ((9, 0), [(6, 1)]), ((10, 0), [(6, 1)])]
)
def test_launches_are_dependent_ones_where_the_gpu_knows_them(machine, kernel, capability, attributes):
    machine.capability = capability
    again = KernelLaunch(lambda: kernel(1, 32, 1, 2, 3), kernel).repeatable()
    again()
    kernel(1, 32, 1, 2, 3)
    assert machine.attributes == [attributes] * 3


def test_what_the_driver_refuses_is_an_error_once_and_again(machine, kernel):
    again = KernelLaunch(lambda: kernel(1, 32, 1, 2, 3), kernel).repeatable()
    machine.status = 700
    for work in (again, lambda: kernel(1, 32, 1, 2, 3)):
        with pytest.raises(DriverError, match="700"):
            work()


def test_sizes_and_streams_that_never_come_again_are_not_kept(machine, kernel):
    again = KernelLaunch(lambda: kernel(1, 32, 1, 2, 3), kernel).repeatable()
    for stream in range(3 * MOST_STREAMS):
        machine.stream = stream
        again()
    for blocks in range(1, 3 * gpu.MOST_SIZES):
        kernel(blocks, 32, 1, 2, 3)
    assert [given[2] for given in machine.launched[1:]] == [
        *range(100, 100 + 3 * MOST_STREAMS),
        *[100 + 3 * MOST_STREAMS - 1] * (3 * gpu.MOST_SIZES - 1),
    ]
    assert len(kernel._grids) <= gpu.MOST_SIZES
    assert all(len(grid) <= MOST_STREAMS for grid in kernel._grids.values())


def test_an_attribute_and_a_configuration_are_laid_out_as_the_driver_reads_them():
    assert (ctypes.sizeof(driver._Attribute), driver._Attribute.value.offset) == (72, 8)
    names = ("shared", "stream", "attributes", "count")
    assert [getattr(driver._Config, name).offset for name in names] == [24, 32, 40, 48]


def test_several_launches_of_one_call_are_repeated_in_turn_each_with_its_own_arguments(machine, kernel):
    def run(n: int) -> None:
        kernel(1, 32, n, 0, 1)
        kernel(n, 64, n, 0, 2)
        kernel(3, 96, n, 0, 4)

    again = KernelLaunch(run, kernel).repeatable(5)
    once, machine.launched = machine.launched, []
    again()
    assert once == machine.launched == [(1, 32, 170, 5, 0, 1), (5, 64, 170, 5, 0, 2), (3, 96, 170, 5, 0, 4)]


def test_a_call_that_fails_half_way_records_nothing_for_the_next_one(machine, kernel):
    def run(fail: bool) -> None:
        kernel(1, 32, 1, 2, 3)
        if fail:
            raise PagebindError("no")
        kernel(1, 32, 4, 5, 6)

    launch = KernelLaunch(run, kernel)
    with pytest.raises(PagebindError, match="no"):
        launch.repeatable(True)
    assert not recorded
    again, machine.launched = launch.repeatable(False), []
    again()
    assert [given[3:] for given in machine.launched] == [(1, 2, 3), (4, 5, 6)]


@pytest.mark.parametrize("current", [0, DEVICE])
def test_every_host_thread_gets_the_context_and_the_current_device_is_left_alone(machine, kernel, current):
    machine.device = current
    again = KernelLaunch(lambda: kernel(1, 32, 1, 2, 3), kernel).repeatable()
    for work in (again, lambda: kernel(1, 32, 1, 2, 3)):
        machine.contexts = {(threading.get_ident(), DEVICE)}
        for _ in range(3):  # a later thread may have the number of one that is gone
            machine.contexts -= {(ident, DEVICE) for ident, _ in machine.contexts if ident != threading.get_ident()}
            thread = threading.Thread(target=lambda work=work: (work(), work()))
            thread.start()
            thread.join()
    assert len(machine.launched) == 1 + 2 * 3 * 2, "a launch without a context"
    assert machine.device == current


def test_launches_of_other_host_threads_are_not_recorded(machine, kernel):
    def elsewhere() -> None:
        kernel(9, 32, 9, 9, 9)

    def run() -> None:
        kernel(1, 32, 1, 2, 3)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    again = KernelLaunch(run, kernel).repeatable()
    assert len(machine.launched) == 2
    again()
    assert [given[0] for given in machine.launched] == [1, 9, 1]


FEW = LaunchOptions(threads=32, programs=2)


def planned(operation, spec, backend):
    return plan(operation, spec, backend=backend, device="cpu", options=FEW if backend == "cuda" else None)


def cells(*shape: int) -> torch.Tensor:
    return torch.full(shape, -7, dtype=torch.int32)


class Step:
    """Alloc, table, truncate and free of a small sub-pool, over the same tensors in every turn."""

    def __init__(self, backend: str) -> None:
        rows = {"max_bs": 3, "page_size": 2, "form": "page"}
        self.table = planned(READ_TABLE, OPERATIONS["read_table"].spec(max_width=40, num_physical=100, **rows), backend)
        self.alloc = planned(ALLOC, OPERATIONS["alloc"].spec(max_items=40), backend)
        self.free = planned(FREE, OPERATIONS["free"].spec(max_items=40), backend)
        self.truncate = planned(TRUNCATE, OPERATIONS["truncate"].spec(max_pages=60, **rows), backend)
        self.tables: PageTables = new_tables(90, 100, "cpu")
        self.request_table = torch.full((4, 40), HOLE, dtype=torch.int32)
        self.rows, self.lens = (torch.tensor(values, dtype=torch.int32) for values in ([2, 0, 3], [0, 0, 0]))
        self.keep = torch.zeros(3, dtype=torch.int32)
        self.ids, self.pages, self.freed, self.out = cells(40), cells(40), cells(60), cells(3, 40)
        self.state = new_state("cpu")

    def turn(self, number: int) -> list[torch.Tensor]:
        self.alloc(self.tables, ids=self.ids, pages=self.pages)
        self.request_table[2, :20] = self.ids[:20]
        self.lens.copy_(torch.tensor([37 - number, 3, 0]))
        self.keep.copy_(torch.tensor([11 + number, 1, 0]))
        self.table(self.request_table, self.rows, self.lens, self.tables.v2p, out=self.out, state=self.state)
        self.truncate(self.request_table, self.rows, self.lens, self.keep, self.tables, freed=self.freed)
        self.free(self.ids, self.tables, freed=self.pages)
        v2p, p2v, ids, holes, state = self.tables[:5]
        kept = (self.request_table, self.out, self.freed, self.pages, self.ids, self.state, v2p, p2v, state)
        return [tensor.clone() for tensor in (*kept, ids[: state[VIRTUAL_TOP]], holes[: state[HOLE_TOP]])]


def test_turns_over_the_same_tensors_agree_with_the_cpu_backend_once_they_are_repetitions(monkeypatch):
    try:
        host.compiler()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    run_in_full: list[object] = []
    monkeypatch.setattr(
        KernelLaunch,
        "__call__",
        lambda self, *args, **kwargs: (run_in_full.append(self), self._run(*args, **kwargs)),
    )
    mine, theirs = Step("cuda"), Step("cpu")
    for number in range(6):
        run_in_full.clear()
        for got, right in zip(mine.turn(number), theirs.turn(number), strict=True):
            assert torch.equal(got, right)
    assert run_in_full == []
