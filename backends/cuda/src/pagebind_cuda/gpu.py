"""Kernels on a GPU: compiled by NVRTC through CuPy, launched by the driver over torch's pointers and current stream.

A launch packs its arguments into a buffer that the plan owns, and asks torch for the raw handle of its stream: no
object is made on the way. One that is to be repeated packs them into a buffer of its own, once.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from pagebind.errors import CaptureError

from pagebind_cuda.driver import DEPENDENT_LAUNCH, Grid, fail, launcher
from pagebind_cuda.launch import SOURCES, Variant, loaded, recorded


def source_of(operation: str) -> str:
    """Return an operation's `.cu` file with its headers in place: what NVRTC compiles, and caches by its text."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        seen.add(name)
        lines = []
        for number, line in enumerate((SOURCES / name).read_text(encoding="utf-8").splitlines(), start=1):
            head, _, rest = line.partition('#include "')
            header = rest.rstrip('"')
            if head or not rest or header == "host.cuh":
                lines.append(line)
            elif header not in seen:
                lines += [f'#line 1 "{header}"', expand(header), f'#line {number + 1} "{name}"']
        return "\n".join(lines)

    return f'#line 1 "{operation}.cu"\n' + expand(f"{operation}.cu") + "\n"


def options_of(variant: Variant) -> tuple[str, ...]:
    """Return the options that NVRTC gets for a variant; CuPy adds the architecture."""
    macros = variant.definitions | variant.planned_definitions
    # A suffix, because the largest of them do not fit an int.
    return ("--std=c++17", *(f"-D{name}={value}LL" for name, value in macros.items()))


MOST_SIZES = 64
"""Sizes of launches that a kernel keeps; most have one for each size of batch."""


class _Context(threading.local):
    """Whether a device's context is known to be current in the host thread at hand while torch is on the device."""

    known = False


_contexts: defaultdict[int, _Context] = defaultdict(_Context)


class _Packed:
    """Arguments as the driver takes them: an array of addresses, one of eight bytes each."""

    __slots__ = ("_cells", "_pointers", "address", "pack")

    def __init__(self, count: int) -> None:
        self._cells = ctypes.create_string_buffer(8 * count)
        first = ctypes.addressof(self._cells)
        self._pointers = (ctypes.c_void_p * count)(*(first + 8 * i for i in range(count)))
        self.address = ctypes.c_void_p(ctypes.addressof(self._pointers))
        self.pack = partial(struct.Struct(f"{count}q").pack_into, self._cells, 0)


class GpuKernel:
    """One variant on one GPU."""

    def __init__(self, variant: Variant, device: torch.device) -> None:
        self._variant = variant
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._context = _contexts[self._device]
        self._function = ctypes.c_void_p()
        self._grids: dict[tuple[int, int], Grid] = {}
        self._lock = threading.Lock()  # of the argument buffer
        self._launch: Any = None
        self._packed: _Packed | None = None

    def __call__(self, blocks: int, threads: int, *arguments: int) -> None:
        """Launch on torch's current stream of the device."""
        if recorded and (made := recorded.get(threading.get_ident())) is not None:
            again = self._repetition(blocks, threads, arguments)
            again()
            made.append(again)
            return
        packed = self._packed
        if packed is None:
            self.warmup()
            packed = self._packed = _Packed(len(arguments))
        if self._context.known and torch._C._cuda_getDevice() == self._device:
            self._enqueue(packed, blocks, threads, arguments)
        else:
            self._elsewhere(partial(self._enqueue, packed, blocks, threads, arguments))

    def _enqueue(self, packed: _Packed, blocks: int, threads: int, arguments: tuple[int, ...]) -> None:
        config = self._grid(blocks, threads)[torch._C._cuda_getCurrentRawStream(self._device)]
        with self._lock:
            packed.pack(*arguments)
            status = self._launch(config, self._function, packed.address, None)
        if status:
            fail(status)

    def _grid(self, blocks: int, threads: int) -> Grid:
        """Return the configurations of a size, made at its first launch."""
        grid = self._grids.get((blocks, threads))
        if grid is None:
            if len(self._grids) >= MOST_SIZES:
                self._grids.clear()
            dependent = torch.cuda.get_device_capability(self._device) >= DEPENDENT_LAUNCH
            grid = self._grids[blocks, threads] = Grid(blocks, threads, dependent)
        return grid

    def _repetition(self, blocks: int, threads: int, arguments: tuple[int, ...]) -> Callable[[], None]:
        """Return what makes this launch; its arguments are packed here, and only read later, by any thread."""
        self.warmup()
        packed = _Packed(len(arguments))
        packed.pack(*arguments)
        launch, function, device, address = self._launch, self._function, self._device, packed.address
        context, grid = self._context, self._grid(blocks, threads)
        current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

        def again(_kept: _Packed = packed) -> None:
            if context.known and current_device() == device:
                if status := launch(grid[current_stream(device)], function, address, None):
                    fail(status)
            else:
                self._elsewhere(again)

        return again

    def _elsewhere(self, launch: Callable[[], None]) -> None:
        """Launch where torch is on another device, or the host thread may have no context."""
        with torch.cuda.device(self._device):
            # torch leaves a new host thread without a context as long as it asks for the first device.
            import_module("cupy").cuda.runtime.setDevice(self._device)
            self._context.known = True
            launch()

    def warmup(self) -> None:
        """Compile and load the variant, once in a process and device. Raises CaptureError inside a capture."""
        if self._function:
            return
        key = (self._device, self._variant)
        if key not in loaded:
            with torch.cuda.device(self._device):
                if torch.cuda.is_current_stream_capturing():
                    raise CaptureError(
                        f"{self._variant.operation} is not compiled yet and a CUDA graph is being captured; nothing "
                        "was launched: call warmup() of the plan before the capture"
                    )
                loaded[key] = self._load()
        self._function = ctypes.c_void_p(loaded[key].kernel.ptr)
        self._launch = launcher()

    def _load(self) -> Any:
        cupy = import_module("cupy")
        with cupy.cuda.Device(self._device):
            cupy.cuda.runtime.setDevice(self._device)  # makes its context current: the module is loaded into it
            module = cupy.RawModule(
                code=source_of(self._variant.operation), options=options_of(self._variant), backend="nvrtc"
            )
            function = module.get_function(f"{self._variant.operation}_kernel")
            function.compile()
            return function
