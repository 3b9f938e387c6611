"""Many inputs side by side in one buffer for each backend, and the comparison of the buffers after all calls.

    image:  | band | req_rows | band | out ... gap ... | band | req_rows of the next input | band | ...
              poison           poison        poison

One copy takes a block of inputs to a device and one brings it back. Bands and gaps are poison, and whatever differs
from the image as it was drawn must be a cell that its call may write.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pagebind.ops import SecondTable
from pagebind.words import HOLE_TOP, VIRTUAL_TOP, PageTables

from pagebind_conformance.guarded import BAND, POISON
from pagebind_conformance.inputs.drawn import NUMPY, Cells, Input, Ints, Plan, cells
from pagebind_conformance.trial.call import chain_words, state_words

POISONED = POISON[torch.uint8]
LINE = 256
"""Bytes to which a tensor without shift is aligned."""

IN_TABLES = ("v2p", "p2v", "virtual_stack", "hole_stack")
WRITTEN = {
    *("out", "state", "beside.out", "beside.state", "freed", "table", "slots", "pages", "sources", "targets", "buffer"),
    *("token_ids", "new_ids", "new_pages", "built"),
}
"""Tensors that every operation writes which has them."""
ALSO_WRITTEN = {
    "bind": {"v2p", "p2v"},
    "unbind": {"v2p", "p2v"},
    "alloc": {"ids"},
    "assign": {"request_table"},
    "extend": {"request_table"},
    "advance": {"request_table", "seq_lens"},
    "truncate": {"request_table"},
    "release": {"request_table"},
    "evict": {"first"},
    "touch": {"versions"},
}
ALL_BITS = {torch.int32: -1, torch.int64: -1, torch.uint8: 255}
PUSHING = ("free", "truncate", "release", "evict")
"""Operations after which cells of a stack from its top on mean nothing."""


class Placed(NamedTuple):
    """Where a tensor lies in the buffers; strides in elements."""

    of: int
    """The input, by its place among those of the arena."""
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    """Byte of the first element."""
    begin: int
    """Byte where the band before it begins."""
    end: int
    """Byte where the band behind it ends."""

    def within(self, image: Ints) -> Ints:
        """Return the tensor in a buffer of bytes."""
        dtype = NUMPY[self.dtype]
        strides = tuple(step * dtype.itemsize for step in self.strides)
        return np.ndarray(self.shape, dtype, image.data, self.start, strides)


def tensors_of(plan: Plan, drawn: Input) -> dict[str, Cells]:
    """Return all tensors of an input, those of its sub-pool too."""
    if drawn.pool is None:
        return dict(drawn.tensors)
    pool, found = drawn.pool, dict(drawn.tensors)
    found |= {name: cells(part, plan.spec.index_dtype) for name, part in zip(IN_TABLES, pool[:4], strict=True)}
    if pool.chain is None:
        return found | {"state": cells(state_words(pool.positions()), torch.int64)}
    return found | {"chain": cells(chain_words(pool.positions()), torch.int64)}


class Arena:
    """The tensors of some inputs of one plan."""

    def __init__(self, plan: Plan, inputs: Sequence[Input]) -> None:
        self.operation, self.inputs = plan.operation.name, inputs
        self.placed: list[dict[str, Placed]] = []
        values: list[tuple[Placed, Ints | None]] = []
        end = 0
        for i, drawn in enumerate(inputs):
            here = {}
            for name, one in tensors_of(plan, drawn).items():
                at = _place(i, name, one, end)
                end = at.end
                here[name] = at
                values.append((at, one.values))
            self.placed.append(here)
        self.begins = [at.begin for at, _ in values]
        self.order = [at for at, _ in values]
        self.image = np.full(-(-end // LINE) * LINE, POISONED, dtype=np.uint8)
        for at, array in values:
            if array is not None:
                at.within(self.image)[...] = array

    def on(self, device: torch.device) -> torch.Tensor:
        """Return a copy of the image on a device, bytes."""
        return torch.from_numpy(self.image).to(device, copy=True)

    def arguments(self, i: int, buffers: Mapping[torch.dtype, torch.Tensor]) -> dict[str, Any]:
        """Return the arguments of an input whose tensors lie in a buffer, which is given in each dtype."""
        drawn = self.inputs[i]
        views: dict[str, Any] = {
            at.name: buffers[at.dtype].as_strided(at.shape, at.strides, at.start // at.dtype.itemsize)
            for at in self.placed[i].values()
        }
        if drawn.pool is not None:
            parts: dict[str, Any] = {name: views.pop(name) for name in IN_TABLES}
            chain = drawn.pool.chain
            if chain is None:
                parts["state"] = views.pop("state")
            else:
                parts["chain"] = views.pop("chain")
                parts |= {"state": parts["chain"][chain.place], "place": chain.place}
            views["tables"] = PageTables(**parts)
        second = {name[7:]: views.pop(name) for name in list(views) if name.startswith("beside.")}
        if second:
            views["beside"] = SecondTable(**second)
        if drawn.in_place:
            views["out"] = views["ids"]
        return {**views, **drawn.plain}

    def allowed(self) -> Ints:
        """Return which bytes calls may write."""
        mask = np.zeros(len(self.image), dtype=np.uint8)
        written = WRITTEN | ALSO_WRITTEN.get(self.operation, set())
        for i, here in enumerate(self.placed):
            drawn = self.inputs[i]
            of_pool = IN_TABLES if drawn.pool is not None else ()
            for name, at in here.items():
                if name == "chain":
                    assert drawn.pool is not None
                    assert drawn.pool.chain is not None
                    at.within(mask)[drawn.pool.chain.place] = -1
                elif name in written or name in of_pool or (name == "ids" and drawn.in_place):
                    at.within(mask)[...] = ALL_BITS[at.dtype]
        return mask

    def without_leftovers(self, image: Ints) -> Ints:
        """Poison what means nothing in a buffer after the calls: cells of stacks, from their tops on."""
        if self.operation not in (*PUSHING, "compact"):
            return image
        for here, drawn in zip(self.placed, self.inputs, strict=True):
            pool = drawn.pool
            assert pool is not None
            words = here["state"].within(image) if pool.chain is None else here["chain"].within(image)[pool.chain.place]
            for name, word, old in (("virtual_stack", VIRTUAL_TOP, None), ("hole_stack", HOLE_TOP, pool.hole_top)):
                stack = here[name].within(image)
                top = min(max(int(words[word]), 0), len(stack))
                if self.operation in PUSHING:
                    stack[top:] = POISON[here[name].dtype]
                elif old is not None and top < old:
                    stack[top:old] = POISON[here[name].dtype]
        return image

    def at(self, byte: int) -> Placed:
        """Return the tensor that a byte lies in, or in whose bands."""
        return self.order[max(bisect_right(self.begins, byte) - 1, 0)]


def _place(i: int, name: str, one: Cells, after: int) -> Placed:
    size, layout = one.dtype.itemsize, one.layout
    step = layout.column_step
    strides: tuple[int, ...] = (step,) if len(one.shape) == 1 else (one.shape[1] * step + layout.row_gap, step)
    begin = -(-after // LINE) * LINE
    start = begin + (BAND + layout.shift) * size
    span = max(one.shape[0] * strides[0], 1)
    end = start + (span + BAND) * size
    return Placed(i, name, one.dtype, one.shape, strides, start, begin, end)
