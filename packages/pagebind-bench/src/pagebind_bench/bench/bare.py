"""Bare launches: an empty kernel with as many arguments as a planned table call has, by each library's own launcher.

They say what a launch takes the host at least: arguments are made once, the stream is known, nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

POINTERS, SIZES = 7, 11
"""Arguments of a planned `read_table`: tensors (with starts and the state block), and shapes, strides and options."""
SOURCE = 'extern "C" __global__ void bare({}) {{}}'


def launches(device: torch.device) -> dict[str, Callable[[], None]]:
    """Return the bare launches on a GPU, compiled, by the name of the backend that uses the same library."""
    made = {"cuda": ("cupy", _cupy), "triton": ("triton", _triton)}
    return {name: make(device) for name, (library, make) in made.items() if find_spec(library) is not None}


def source() -> str:
    """Return the CUDA source of the empty kernel."""
    return SOURCE.format(", ".join(_parameters()))


def _parameters() -> Iterator[str]:
    yield from (f"const int* p{i}" for i in range(POINTERS))
    yield from (f"long long s{i}" for i in range(SIZES))


def _cupy(device: torch.device) -> Callable[[], None]:
    """Return the launch of a RawKernel under a stream object that is kept."""
    cupy = import_module("cupy")
    stream = torch.cuda.current_stream(device)
    cupy.cuda.runtime.setDevice(stream.device_index)
    kernel = cupy.RawKernel(source(), "bare", backend="nvrtc")
    kernel.compile()
    kept = cupy.cuda.ExternalStream(stream.cuda_stream, stream.device_index)
    arguments = (*(tensor.data_ptr() for tensor in _tensors(device)), *range(SIZES))

    def call() -> None:
        with kept:
            kernel((1,), (32,), arguments)

    return call


def _triton(device: torch.device) -> Callable[[], None]:
    """Return the launch of a compiled kernel, past the look-ups of `kernel[grid](...)`."""
    kernel = import_module("pagebind_bench.bench.published").bare_kernel
    arguments = (*_tensors(device), *range(2, 2 + SIZES))
    compiled: Any = kernel[(1,)](*arguments, num_warps=1)
    launch = compiled[(1, 1, 1)]

    def call() -> None:
        launch(*arguments)

    return call


def _tensors(device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros(4, dtype=torch.int32, device=device) for _ in range(POINTERS)]
