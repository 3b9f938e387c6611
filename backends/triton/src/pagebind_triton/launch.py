"""Fixes a kernel's types and constants when planned, compiles it once a process, and launches it on the current stream.

Nothing here imports Triton before a kernel is planned. On a GPU the compiled kernel is launched by its own handle:
Triton's `kernel[grid](...)` would derive types and cache keys from every argument again. On the CPU the interpreter
runs the kernel's source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from pagebind.errors import CaptureError
from pagebind.operation import LaunchOptions
from pagebind.words import new_state

from pagebind_triton.interpreted import patched_once

POINTERS = {torch.int32: "*i32", torch.int64: "*i64"}

# A GPU's launch: 512 cells and 8 warps a program, about 1,024 programs where rows are shared out (H100 and H200).
GPU_BLOCK, GPU_SPLIT, GPU_MOST = 512, 1024, 16384
# An interpreted program takes milliseconds whatever its size: few, and small enough that loops take a second trip.
CPU_BLOCK, CPU_PROGRAMS = 16, 4
WARP = 32
MOST_WARPS = 8

DEPENDENT_LAUNCH = (9, 0)
"""The first compute capability with programmatic dependent launches."""

NO_COUNT = -1
"""Stands for the host's page count where it has none."""

recorded: dict[int, list[Callable[[], None]]] = {}
"""The launches of calls that are to be repeated, by the host thread that makes the call."""

_NO_HOOKS = (None, None, None)  # launch metadata, and hooks before and after: they are a profiler's
_address = torch.Tensor.data_ptr

_compiled: dict[tuple[object, ...], Any] = {}


def compile_count() -> int:
    """Return how many kernel variants were compiled, or loaded from Triton's disk cache, in this process."""
    return len(_compiled)


@dataclass(frozen=True)
class Grid:
    """How large launches are: `block` cells a program; rows are shared out until there are `split` programs."""

    block: int
    split: int
    most: int
    """Programs of one launch at most; they stride over what is left."""

    def lanes(self, cells: int) -> int:
        """Return the programs for `cells` independent cells; at least one."""
        return max(1, min(-(-cells // self.block), self.most))

    def rows(self, rows: int, width: int) -> tuple[int, int]:
        """Return the programs for `rows` rows of up to `width` cells, and how many of them share a row."""
        shared = max(1, min(-(-width // self.block), -(-self.split // rows), self.most))
        return shared * max(1, min(rows, self.most // shared)), shared


def plan_grid(
    device: torch.device,
    options: LaunchOptions,
    gpu_block: int = GPU_BLOCK,
    gpu_split: int = GPU_SPLIT,
    gpu_most: int = GPU_MOST,
) -> Grid:
    """Return the launch sizes for a device, with those that the options fix; a kernel may want its own on a GPU."""
    if device.type == "cpu":
        block, split, most = options.threads or CPU_BLOCK, CPU_PROGRAMS, CPU_PROGRAMS
    else:
        # A block below one warp would have several threads hold the same cell.
        block, split, most = max(options.threads or gpu_block, WARP), gpu_split, gpu_most
    if options.programs is not None:
        split = most = min(options.programs, GPU_MOST)
    return Grid(1 << (block.bit_length() - 1), split, most)


def is_dependent(device: torch.device) -> bool:
    """Return whether kernels are launched while the grid ahead of them in the stream still ends.

    They begin with `wait_for_previous`, and read and write nothing before it. Of that grid nothing is asked, and a
    kernel behind ours starts when ours has ended, as ever. Triton calls it programmatic dependent launch.
    """
    if device.type != "cuda":
        return False
    from pagebind_triton.guards import wait_for_previous

    return wait_for_previous is not None and torch.cuda.get_device_capability(device) >= DEPENDENT_LAUNCH


class Variant:
    """A kernel whose pointer types and constants are fixed. Parameters: pointers, then int64 scalars, then constants.

    `pointers` are the dtypes of the pointer parameters in order, `constants` the values of the `tl.constexpr` ones but
    the last, DEPENDENT, which is the device's.
    """

    __slots__ = (
        "_constants",
        "_device",
        "_function",
        "_kernel",
        "_key",
        "_metadata",
        "_num_pointers",
        "_run",
        "_stream",
        "constants",
        "signature",
        "warps",
    )

    def __init__(
        self, kernel: Any, pointers: Sequence[torch.dtype], constants: Mapping[str, int], device: torch.device
    ) -> None:
        names: list[str] = list(kernel.arg_names)
        constants = {**constants, "DEPENDENT": int(is_dependent(device))}
        scalars = names[len(pointers) : len(names) - len(constants)]
        if names[len(names) - len(constants) :] != list(constants):
            raise TypeError(f"{kernel.__name__} takes the constants {names}, not {list(constants)}")
        self._kernel = kernel
        self.constants = dict(constants)
        self._constants = tuple(constants.values())
        self._device = device
        self._num_pointers = len(pointers)
        self.signature = dict(zip(names, map(POINTERS.__getitem__, pointers), strict=False))
        self.signature |= dict.fromkeys(scalars, "i64") | dict.fromkeys(constants, "constexpr")
        self.warps = max(1, min(constants["BLOCK"] // WARP, MOST_WARPS))
        self._key = (kernel.__name__, tuple(self.signature.values()), tuple(constants.items()), device.index)
        self._run: Any = None
        self._function: Any = None
        self._metadata: Any = None
        self._stream: Callable[[int], int] | None = None

    @property
    def options(self) -> dict[str, int | bool]:
        """Return how Triton compiles the kernel and launches it."""
        return {"num_warps": self.warps, "launch_pdl": bool(self.constants["DEPENDENT"])}

    @property
    def ready(self) -> bool:
        """Whether a launch compiles nothing."""
        return self._run is not None or self._key in _compiled

    def source(self) -> Any:
        """Return what Triton compiles. Nothing is specialised on a scalar's value or a pointer's alignment."""
        from triton.compiler import ASTSource

        return ASTSource(fn=self._kernel, signature=dict(self.signature), constexprs=dict(self.constants))

    def compile(self) -> None:
        """Compile the kernel and load it on its device, if nobody has yet."""
        if self._run is not None:
            return
        if self._device.type == "cpu":
            self._run = self._kernel
            return
        import triton
        from triton.runtime import driver

        compiled = _compiled.get(self._key)
        if compiled is None:
            with torch.cuda.device(self._device):
                target = driver.active.get_current_target()
                compiled = triton.compile(self.source(), target=target, options=self.options)
                compiled.run  # noqa: B018  # loads the binary, which a capture would not survive
            _compiled[self._key] = compiled
        self._stream = torch._C._cuda_getCurrentRawStream
        self._function, self._metadata = compiled.function, compiled.packed_metadata
        self._run = compiled.run

    def __call__(self, programs: int, *arguments: Any) -> None:
        """Launch `programs` programs on the current stream: tensors for the pointers, then ints for the scalars.

        A host thread that has a list in `recorded` finds there, afterwards, what makes the same launch again; not in
        the interpreter, which needs the tensors.
        """
        stream_of = self._stream
        if stream_of is None:
            with patched_once():
                self._run[(programs,)](*arguments, **self.constants)
            return
        split = self._num_pointers
        given = (
            self._function,
            self._metadata,
            *_NO_HOOKS,
            *map(_address, arguments[:split]),
            *arguments[split:],
            *self._constants,
        )
        self._run(programs, 1, 1, stream_of(self._device.index), *given)
        if recorded and (made := recorded.get(get_ident())) is not None:
            made.append(self._repetition(programs, stream_of, given))

    def _repetition(self, programs: int, stream_of: Callable[[int], int], given: tuple[Any, ...]) -> Callable[[], None]:
        """Return what makes this launch again. `given` is what the compiled kernel takes after the stream."""
        run, device, index = self._run, self._device, self._device.index
        current_device = torch._C._cuda_getDevice

        def again() -> None:
            if current_device() == index:
                run(programs, 1, 1, stream_of(index), *given)
            else:
                with torch.cuda.device(device):
                    run(programs, 1, 1, stream_of(index), *given)

        return again


class PlannedLaunch:
    """What a planner returns: `run`, which launches `variants` only, and their warm-up.

    `run` makes nothing but these launches, and only its arguments decide about them: to repeat a call its launches are
    repeated, and `run` is not.
    """

    __slots__ = ("_device", "_index", "_ready", "_run", "variants")

    def __init__(self, run: Callable[..., None], variants: Sequence[Variant], device: torch.device) -> None:
        self._run = run
        self._device = device
        self._index = device.index if device.type == "cuda" else None
        self._ready = False
        self.variants = tuple(variants)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch; raises CaptureError before anything is launched where it would compile inside a capture."""
        if not self._ready:
            self._compile()
        if self._index is None or torch._C._cuda_getDevice() == self._index:
            self._run(*args, **kwargs)
        else:
            with torch.cuda.device(self._device):
                self._run(*args, **kwargs)

    def repeatable(self, *args: Any, **kwargs: Any) -> Callable[[], None] | None:
        """Launch, and return what launches the same again; None in the interpreter."""
        if self._index is None:
            self(*args, **kwargs)
            return None
        thread = get_ident()
        made = recorded[thread] = []
        try:
            self(*args, **kwargs)
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
        """Compile every variant a later call can need; touches no tensor."""
        for variant in self.variants:
            variant.compile()
        self._ready = True

    def _compile(self) -> None:
        if self._device.type == "cuda":
            missing = [variant for variant in self.variants if not variant.ready]
            with torch.cuda.device(self._device):
                capturing = torch.cuda.is_current_stream_capturing()
            if capturing and missing:
                raise CaptureError(
                    f"{len(missing)} kernel(s) of this plan are not compiled, and cannot be while a CUDA graph is "
                    "being captured; nothing was launched: call warmup() on the plan before the capture"
                )
        self.warmup()


def nowhere(device: torch.device) -> torch.Tensor:
    """Return a state block for calls that are given none: what they count is lost."""
    return new_state(device)
