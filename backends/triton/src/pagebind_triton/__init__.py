"""pagebind's Triton backend. Loading it imports no Triton; probing and planning do."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from pagebind.backend import Backend
from pagebind.operation import Launch, LaunchOptions, Planner

from pagebind_triton.launch import compile_count

OPERATIONS = (
    "read_table",
    "bind",
    "unbind",
    "translate",
    "read_stream",
    "alloc",
    "free",
    "extend",
    "advance",
    "truncate",
    "assign",
    "release",
    "evict",
    "touch",
    "refresh_table",
    "compact",
)


def probe(device_type: str) -> str | None:
    """Return why the kernels cannot run on a device type, with the mend; None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton (it exists for Linux)"
    # Triton decides when a kernel's module is imported whether it is interpreted; its own library counts too.
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    from pagebind_triton import guards

    interpreted = [isinstance(kernel, InterpretedFunction) for kernel in (tl.sum, guards.count)]
    if device_type == "cpu":
        if all(interpreted):
            return None
        return (
            "without a GPU its kernels run in Triton's interpreter only, and Triton was imported without it: "
            "set TRITON_INTERPRET=1 in the environment and start again"
        )
    if any(interpreted):
        return "TRITON_INTERPRET is set, so kernels are interpreted on the CPU: unset it and start again"
    if not torch.cuda.is_available():
        return (
            "torch finds no CUDA device (torch.cuda.is_available() is False): install a CUDA build of torch and a "
            "driver, or set TRITON_INTERPRET=1 and device=cpu to interpret the kernels"
        )
    return None


def _planner(operation: str) -> Planner:
    def plan(spec: Any, device: torch.device, options: LaunchOptions) -> Launch:
        planned: Launch = import_module(f"pagebind_triton.{operation}").plan(spec, device, options)
        return planned

    return plan


backend = Backend(
    name="triton",
    version="0.1.0",
    distribution="pagebind-triton",
    modes={"cuda": "gpu", "cpu": "interpreter"},
    planners={operation: _planner(operation) for operation in OPERATIONS},
    features=frozenset(
        {
            "form=token",
            "form=page",
            "granularity=token",
            "granularity=page",
            "fill=prefix",
            "fill=sink",
            "windowed",
            "table",
            "context_parallel",
            "shared",
            "page_bytes",
            "borrowed",
            "emits",
            "append",
            "beside",
        }
    ),
    probe=probe,
    compile_count=compile_count,
    rank=10,
)

__all__ = ["backend"]
