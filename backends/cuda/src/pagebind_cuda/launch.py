"""Kernels as planners use them: variants, built at their first launch or by warmup, and the shapes of launches.

One operation has one `.cu` file with one kernel. A variant of it is fixed by two dtypes and by the values of PLANNED.
All arguments of a kernel are pointers or int64, eight bytes each, so that packing them is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol

import torch
from pagebind import words
from pagebind.errors import InvalidArgument
from pagebind.operation import MAX_LENGTH, LaunchOptions
from pagebind.ops import span
from pagebind.words import PageTables

SOURCES = Path(__file__).parent
WARP = 32
MAX_THREADS = 1024

PLANNED = (
    "page_size",
    "form_token",
    "granularity_token",
    "fill_sink",
    "ranks",
    "row_wide",
    "length_wide",
    "indptr_wide",
    "id_wide",
    "borrowed",
    "emits",
    "part",
    "windowed",
    "appends",
    "table_wide",
    "beside",
)
"""What plans fix besides dtypes, as `plan` in base.cuh orders it. Constants on the GPU, arguments in the host build."""

_WORDS = (
    *("SINK", "TOMBSTONE", "HOLE", "STATE_WORDS", "VIRTUAL_TOP", "HOLE_TOP", "WATERMARK", "EPOCH", "SEAT", "REACH"),
    *("CLIPPED", "BAD_ROW", "BAD_ID", "DOUBLE_FREE", "BAD_FREE", "BAD_BIND", "STARVED", "COUNT_MISMATCH"),
    *("TICKET", "SCRATCH", "GROWTH", "BASE", "PAGE_BYTES", "UP", "DOWN", "FLOAT"),
)
_BOUNDS = ("MOST_PAGES", "MOST_PAGE_BYTES", "MOST_BASE")


class Kernel(Protocol):
    """One variant of an operation's kernel on one device."""

    def __call__(self, blocks: int, threads: int, *arguments: int) -> None:
        """Launch on torch's current stream; on the CPU, run to the end.

        A host thread that has a list in `recorded` finds there, afterwards, what makes the same launch again.
        """

    def warmup(self) -> None:
        """Build and load the variant; nothing where it is loaded."""


@dataclass(frozen=True)
class Variant:
    """What one build of a `.cu` file is made from."""

    operation: str
    index_wide: bool
    out_wide: bool
    planned: tuple[int, ...]  # in the order of PLANNED

    @property
    def definitions(self) -> dict[str, int]:
        """Macros that every build gets: dtypes and the constants of pagebind.words and pagebind.ops.span."""
        known = {f"PAGEBIND_{name}": int(getattr(words, name)) for name in _WORDS}
        known |= {f"PAGEBIND_{name}": int(getattr(span, name)) for name in _BOUNDS}
        known["PAGEBIND_MAX_LENGTH"] = MAX_LENGTH
        return known | {"PAGEBIND_INDEX_WIDE": int(self.index_wide), "PAGEBIND_OUT_WIDE": int(self.out_wide)}

    @property
    def planned_definitions(self) -> dict[str, int]:
        """Macros of a GPU build: what the plan fixes."""
        return {f"PAGEBIND_{name.upper()}": value for name, value in zip(PLANNED, self.planned, strict=True)}


recorded: dict[int, list[Callable[[], None]]] = {}
"""The launches of calls that are to be repeated, by the host thread that makes the call."""

loaded: dict[tuple[object, ...], Any] = {}
"""Every variant built or loaded by this process, by what it was built from; plans that agree share one."""


def compile_count() -> int:
    """Return the number of variants that this process has built or loaded."""
    return len(loaded)


def wide(dtype: torch.dtype) -> bool:
    """Return whether an index dtype is int64."""
    return dtype is torch.int64


def plan_kernel(
    operation: str,
    device: torch.device,
    *,
    index_dtype: torch.dtype = torch.int32,
    out_dtype: torch.dtype = torch.int32,
    **planned: int,
) -> Kernel:
    """Return the kernel of an operation for a device, not built yet. `planned` are values of PLANNED, by name."""
    values = dict.fromkeys(PLANNED, 0) | {"page_size": 1, "ranks": 1} | planned
    variant = Variant(operation, wide(index_dtype), wide(out_dtype), tuple(int(values[name]) for name in PLANNED))
    if device.type == "cuda":
        from pagebind_cuda.gpu import GpuKernel

        return GpuKernel(variant, device)
    from pagebind_cuda.host import HostKernel

    return _Recording(HostKernel(variant))


class _Recording:
    """A kernel that takes its arguments anew with every launch, also when it is launched again."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __call__(self, blocks: int, threads: int, *arguments: int) -> None:
        self._kernel(blocks, threads, *arguments)
        if recorded and (made := recorded.get(get_ident())) is not None:
            made.append(partial(self._kernel, blocks, threads, *arguments))

    def warmup(self) -> None:
        self._kernel.warmup()


class KernelLaunch:
    """What planners return: a function that launches, and the kernels it launches.

    The function makes nothing but these launches, and only its arguments decide about them: to repeat a call its
    launches are repeated, and the function is not run.
    """

    __slots__ = ("_kernels", "_run")

    def __init__(self, run: Callable[..., None], *kernels: Kernel) -> None:
        self._run = run
        self._kernels = kernels

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch."""
        self._run(*args, **kwargs)

    def repeatable(self, *args: Any, **kwargs: Any) -> Callable[[], None]:
        """Launch, and return what launches the same again: every launch has its arguments packed for good."""
        thread = get_ident()
        made = recorded[thread] = []
        try:
            self._run(*args, **kwargs)
        finally:
            del recorded[thread]
        if len(made) == 1:
            return made[0]
        launches = tuple(made)

        def again() -> None:
            for launch in launches:
                launch()

        return again

    def warmup(self) -> None:
        """Build the variants of this plan."""
        for kernel in self._kernels:
            kernel.warmup()


@dataclass(frozen=True)
class Limits:
    """The most threads of a block, a multiple of a warp, and the most blocks of a launch."""

    threads: int
    programs: int

    def spread(self, items: int) -> tuple[int, int]:
        """Return blocks and threads for a loop over `items`, at least one block."""
        threads = min(self.threads, _round_up(items))
        return min(max(-(-items // threads), 1), self.programs), threads

    def together(self, items: int) -> tuple[int, int]:
        """Return blocks and threads where blocks meet at the end: one block as long as it holds all items."""
        if items <= self.threads:
            return 1, _round_up(items)
        threads = min(self.threads, 8 * WARP)
        return min(-(-items // threads), self.programs), threads

    def block(self, items: int) -> int:
        """Return the threads of a launch of one block over `items`."""
        return min(self.threads, _round_up(items))

    def parts(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Return blocks, threads and parts a row for rectangles of planned width `columns`."""
        threads = min(self.threads, _round_up(columns))
        parts = max(min(self.programs // max(rows, 1), -(-columns // threads)), 1)
        return min(rows * parts, self.programs), threads, parts


def limits(device: torch.device, options: LaunchOptions, *, threads: int, programs: int) -> Limits:
    """Return the limits of a plan: its options where they are set, else `threads` and `programs` on a GPU.

    In the host build few, so that small tests take a second trip through every loop, and two warps and several blocks
    are there to disagree. Raises InvalidArgument for more threads than a block can have.
    """
    if device.type != "cuda":
        threads, programs = 2 * WARP, 4
    if options.threads is not None:
        if options.threads > MAX_THREADS:
            raise InvalidArgument(f"options.threads is {options.threads}; a block has at most {MAX_THREADS}")
        threads = _round_up(options.threads)
    if options.programs is not None:
        programs = options.programs
    return Limits(threads, programs)


def pointer(tensor: torch.Tensor | None) -> int:
    """Return the address of a tensor, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def chain_of(tables: PageTables) -> tuple[int, int, int]:
    """Return what kernels get of a chain: the address of its blocks, their number and the sub-pool's place in it."""
    chain = tables.chain
    return (0, 0, 0) if chain is None else (chain.data_ptr(), chain.shape[0], tables.place)


def _round_up(threads: int) -> int:
    return max(-(-threads // WARP) * WARP, WARP)
