"""The driver's `cuLaunchKernelEx`: a launch with attributes, which CuPy has no call for.

Launches are programmatic dependent ones where the GPU knows them (compute capability 9.0 and later): a kernel's blocks
come onto the GPU while the grid before it in the stream still ends, and wait there (`wait_for_previous` in base.cuh)
until what it wrote can be seen. Nothing is asked of that grid, and a kernel behind ours, of whoever, starts when ours
has ended, as ever. Captured, this becomes an edge of the graph.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

DEPENDENT_LAUNCH = (9, 0)
"""The first compute capability with programmatic dependent launches."""

MOST_STREAMS = 64
"""Streams whose launch a grid keeps; engines use a few, and a handle of one that is gone may come again."""

_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_ATTRIBUTE = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)


class Grid(dict[int, Any]):
    """Launch configurations of one number of blocks and threads, by the stream's handle, as the driver takes them.

    They are made when they are asked for and then only read, so that host threads may share them.
    """

    __slots__ = ("_size",)

    def __init__(self, blocks: int, threads: int, dependent: bool) -> None:
        super().__init__()
        self._size = blocks, threads, dependent

    def __missing__(self, stream: int) -> Any:
        blocks, threads, dependent = self._size
        config = _Config(blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.pointer(_ATTRIBUTE), int(dependent))
        if len(self) >= MOST_STREAMS:
            self.clear()
        made = self[stream] = ctypes.byref(config)  # keeps the configuration
        return made


@cache
def launcher() -> Callable[[Any, ctypes.c_void_p, ctypes.c_void_p, None], int]:
    """Return the launch: a configuration of Grid, a function, the addresses of its arguments, None. 0 is success.

    It gives way to other host threads while it is in the driver.
    """
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuLaunchKernelEx


def fail(status: int) -> NoReturn:
    """Raise CuPy's CUDADriverError, which has the driver's name and text of a status."""
    raise import_module("cupy").cuda.driver.CUDADriverError(status)
