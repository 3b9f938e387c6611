"""Compile every kernel for an H100 or H200 (sm_90), without a GPU, and print names, types and constants as JSON.

Run it without TRITON_INTERPRET. Plans made for the meta device hold the very variants that a GPU's plans hold.
"""

import json
import re
import sys
from importlib import import_module
from itertools import product

import torch
import triton
from pagebind.operation import LaunchOptions
from pagebind.ops import (
    AdvanceSpec,
    AllocSpec,
    AssignSpec,
    Beside,
    BindSpec,
    CompactSpec,
    EvictSpec,
    ExtendSpec,
    FreeSpec,
    ReadStreamSpec,
    ReadTableSpec,
    RefreshTableSpec,
    ReleaseSpec,
    TouchSpec,
    TranslateSpec,
    TruncateSpec,
    UnbindSpec,
)
from pagebind.ops.evict import PARTS
from pagebind_triton import launch
from triton.backends.compiler import GPUTarget

# Every pair of choices occurs, and so every branch of every kernel; the last choice is whether faults are counted.
CHOICES = (
    ("token", "page", False, True),
    ("page", "token", True, True),
    ("token", "token", True, False),
    ("page", "page", False, False),
)


def specs():
    """Yield operations with specs, of narrow dtypes and of wide ones, and whether faults are counted."""
    for dtype, (form, granularity, flag, counted) in product((torch.int32, torch.int64), CHOICES):
        index, both = {"index_dtype": dtype}, {"index_dtype": dtype, "id_dtype": dtype}
        lens = {"row_dtype": dtype, "length_dtype": dtype}
        # 3 is no power of two; 2**33 needs 64 bits and a plan that has them.
        sizes = {"page_size": 3, "num_physical": 9, "multiplier": 2**33 if dtype is torch.int64 else 5}
        lanes = {"max_bs": 4, "form": form, **lens}
        reads = {"granularity": granularity, "windowed": flag, "max_width": 9, "out_dtype": dtype}
        reads |= {**index, **lanes, **sizes}
        fill = "sink" if flag else "prefix"
        yield "read_table", ReadTableSpec(fill=fill, **reads), counted
        yield "read_table", ReadTableSpec(fill=fill, beside=Beside(9, 7, windowed=not flag), **reads), counted
        if counted == (dtype is torch.int32):  # it takes seconds: half of them, in which every branch occurs
            yield "refresh_table", RefreshTableSpec(fill=fill, borrowed=flag, **reads), counted
        yield "touch", TouchSpec(max_bs=4, **lens), counted
        yield (
            "read_stream",
            ReadStreamSpec(max_items=9, with_table=flag, indptr_dtype=dtype, **reads),
            counted,
        )
        yield "release", ReleaseSpec(max_pages=9, page_size=3, shared=flag, **both, **lanes), counted
        yield "truncate", TruncateSpec(max_pages=9, page_size=3, **both, **lanes), counted
        wide = {"indptr_dtype": dtype, "out_dtype": dtype}
        emits = {"emits": flag, "id_dtype": dtype}
        yield "extend", ExtendSpec(max_tokens=9, num_virtual=9, **sizes, **index, **lanes, **wide, **emits), counted
        more = {"appends": flag, "granularity": granularity, "table_dtype": dtype, "max_bs": 2000}  # two launches too
        yield (
            "advance",
            AdvanceSpec(num_virtual=9, out_dtype=dtype, **sizes, **index, **{**lanes, **more}, **emits),
            counted,
        )
        for part in PARTS:
            yield "evict", EvictSpec(part=part, max_pages=9, page_size=3, **both, **lanes), counted
        ranks = {"ranks": 2, "rank": 1} if flag else {}
        yield "translate", TranslateSpec(max_items=9, out_dtype=dtype, **sizes, **both, **ranks), counted
        yield "assign", AssignSpec(max_bs=4, max_items=9, row_dtype=dtype, indptr_dtype=dtype), counted
        # 48 bytes are six words, no power of two; without bytes the copy is not compiled.
        yield "compact", CompactSpec(max_pages=9, page_bytes=48 if flag else 0, **both), counted
        for name, spec in (("bind", BindSpec), ("unbind", UnbindSpec)):
            yield name, spec(max_items=9, **both), counted
        for name, spec in (("alloc", AllocSpec), ("free", FreeSpec)):
            yield name, spec(max_items=9, borrowed=flag, **both), counted


def need_wait_first(name, ptx):
    """Refuse code that reads or writes memory before it waits for the grid ahead of it."""
    (wait,) = re.finditer(r"griddepcontrol\.wait", ptx)
    touch = re.search(r"\b(ld|st|atom|red)\.(\w+\.)*global", ptx)
    if touch is None or touch.start() < wait.start():
        raise AssertionError(f"{name}: {touch and touch.group()} comes before griddepcontrol.wait")


def main():
    """Compile what is not compiled yet; a compiler's error ends the run with its message."""
    launch.is_dependent = lambda device: True  # as on a GPU for which it is compiled
    done = {}
    for name, spec, counted in specs():
        operation = import_module(f"pagebind_triton.{name}")
        planned = operation.plan(spec, torch.device("meta"), LaunchOptions(count=counted))
        for variant in planned.variants:
            source = variant.source()
            key = (source.name, tuple(source.signature.values()), tuple(variant.constants.items()))
            if key not in done:
                target = GPUTarget("cuda", 90, 32)
                done[key] = triton.compile(source, target=target, options=variant.options)
                need_wait_first(source.name, done[key].asm["ptx"])
    json.dump([[name, signature, dict(constants)] for name, signature, constants in done], sys.stdout)


if __name__ == "__main__":
    main()
