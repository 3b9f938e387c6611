"""Tensors with guard bands: each lies inside a larger poisoned buffer that is compared whole after a call.

    buffer:  | guard band | row 0 ....... gap | row 1 ....... gap | guard band |
             | poison     | values     poison | values     poison | poison     |

What a call must not touch is everything but its expected outputs: both bands, the gaps of strided rows, its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from pagebind.words import (
    BASE,
    COUNTERS,
    EPOCH,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    VIRTUAL_TOP,
    WATERMARK,
)

from pagebind_conformance.difference import SPARE, Difference, differing

BAND = 64
"""Elements of a guard band; a multiple of 16, so that a view without shift is aligned as torch aligns a tensor."""

POISON = {torch.int32: 0x7A7A7A7A, torch.int64: 0x7A7A7A7A7A7A7A7A, torch.uint8: 0x7A}
"""What bands, gaps and outputs hold before a call: neither 0 nor -1, and no id of any test."""

POSITIONS = {
    "virtual_top": VIRTUAL_TOP,
    "hole_top": HOLE_TOP,
    "watermark": WATERMARK,
    "epoch": EPOCH,
    "seat": SEAT,
    "reach": REACH,
    "growth": GROWTH,
    "base": BASE,
    "page_bytes": PAGE_BYTES,
}
"""Name -> word of a state block that is no counter."""

WORDS = [f"{SPARE}{i}" for i in range(STATE_WORDS)]
"""What the words of a state block are called."""
for _name, _word in (COUNTERS | POSITIONS).items():
    WORDS[_word] = _name

MOST_TOLD = 8
"""Differing elements a message names; it counts the others."""


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: elements between rows and between columns, and the shift of its first element."""

    row_gap: int = 0
    column_step: int = 1
    shift: int = 0


@dataclass(frozen=True)
class Unspecified:
    """An expected value the contract leaves open: `check(got)` returns what is wrong with it, or None."""

    check: Callable[[Any], str | None]


class Guarded:
    """A tensor, `view`, between two guard bands."""

    def __init__(
        self,
        values: Sequence[Any],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout = Layout(),
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Place nested lists, or bytes, on `device`; `shape` says what lists cannot, as of `[0, 5]`."""
        cells = _cells(values, dtype) if shape is None or 0 not in shape else torch.empty(shape, dtype=dtype)
        step = layout.column_step
        strides = (step,) if cells.dim() == 1 else (cells.shape[-1] * step + layout.row_gap, step)
        span = strides[0] * cells.shape[0] if cells.dim() == 2 else step * cells.shape[0]
        start = BAND + layout.shift
        self.geometry = (tuple(cells.shape), strides, start)
        host = torch.full((start + max(span, 1) + BAND,), POISON[dtype], dtype=dtype)
        host.as_strided(*self.geometry).copy_(cells)
        self.before = host
        self.buffer = host.to(device, copy=True)
        self.view = self.buffer.as_strided(*self.geometry)

    @classmethod
    def poisoned(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, layout: Layout = Layout()
    ) -> Guarded:
        """Return a tensor of `shape` that is all poison, for outputs."""
        return cls(torch.full(shape, POISON[dtype], dtype=dtype).tolist(), dtype, device, layout, shape)

    def values(self) -> Any:
        """Return what the tensor holds now, as nested lists. Waits for the device."""
        return self.view.cpu().tolist()

    def raw(self, *, before: bool = False) -> bytes:
        """Return what a tensor of bytes holds now, or when last verified."""
        cells = self.before.as_strided(*self.geometry) if before else self.view.cpu()
        return cells.contiguous().numpy().tobytes()

    def before_values(self) -> Any:
        """Return what the tensor held when last verified, as nested lists, without asking the device."""
        return self.before.as_strided(*self.geometry).tolist()

    def verify(self, name: str, expected: Any = None) -> None:
        """Fail unless the tensor holds `expected`, and every other element of the buffer what it held before.

        `expected` None means that nothing may have changed. The buffer as it is becomes what it held before.
        """
        __tracebackhide__ = True
        got = self.buffer.to("cpu", copy=True)  # on the CPU, the next call writes to the buffer itself
        wanted = self.before.clone()
        inside = wanted.as_strided(*self.geometry)
        if isinstance(expected, Unspecified):
            complaint = expected.check(got.as_strided(*self.geometry).tolist())
            if complaint is not None:
                grid = differing(name, got.as_strided(*self.geometry), None, POISON[got.dtype])
                raise Difference(f"{name}: {complaint}", [grid])
            inside.copy_(got.as_strided(*self.geometry))
        elif expected is not None and 0 not in self.geometry[0]:
            inside.copy_(_cells(expected, wanted.dtype))
        if not torch.equal(got, wanted):
            self._complain(name, got, wanted)
        self.before = got

    def _complain(self, name: str, got: torch.Tensor, wanted: torch.Tensor) -> NoReturn:
        __tracebackhide__ = True
        wrong = torch.nonzero(got != wanted).flatten().tolist()
        told = [self._tell(name, at, int(got[at]), int(wanted[at])) for at in wrong[:MOST_TOLD]]
        told += [f"and {len(wrong) - MOST_TOLD} more"] if len(wrong) > MOST_TOLD else []
        inside, due = got.as_strided(*self.geometry), wanted.as_strided(*self.geometry)
        outside = len(wrong) - int((inside != due).sum())
        grid = differing(name, inside, due, POISON[got.dtype], outside, self.words(name))
        raise Difference(f"{name} {list(self.geometry[0])}: " + "; ".join(told), [grid])

    def words(self, name: str) -> list[str] | None:
        """Return what the columns of a state block are called, None of another tensor."""
        return WORDS if name.rpartition(".")[2] in ("state", "chain") and self.geometry[0][-1] == STATE_WORDS else None

    def _tell(self, name: str, at: int, got: int, wanted: int) -> str:
        shape, strides, start = self.geometry
        poison, before, first = POISON[self.before.dtype], int(self.before[at]), at - start
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) if 0 not in shape else -1
        if first < 0:
            return f"outside the tensor was written: {got}, element {-first} before the first"
        if first > last:
            return f"outside the tensor was written: {got}, element {first - last} past the last"
        if self.words(name):
            block, word = divmod(first, STATE_WORDS)
            told = _tell_word(word, got, wanted, before)
            return f"of block {block} {told}" if name == "chain" else told
        index, gap = [], 0
        for size, step in zip(shape, strides, strict=True):
            index.append(min(first // step, size - 1))
            first -= index[-1] * step
            gap = first
        place = f"[{', '.join(map(str, index))}]"
        if gap:
            return f"the gap behind {place} was written: {got}"
        if got == poison:
            return f"{place} was not written, expected {wanted}"
        if wanted == poison:
            return f"{place} was written: {got}, nothing belongs there"
        return f"{place} is {got}, has to stay {wanted}" if wanted == before else f"{place} is {got}, expected {wanted}"


def _cells(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, bytes):
        return torch.frombuffer(bytearray(values), dtype=torch.uint8)
    return torch.tensor(values, dtype=dtype)


def _tell_word(word: int, got: int, wanted: int, before: int) -> str:
    for name, counter in COUNTERS.items():
        if counter == word:
            return f"{name} counted {got - before}, expected {wanted - before}"
    for name, position in POSITIONS.items():
        if position == word:
            return f"{name} is {got}, {'has to stay' if wanted == before else 'expected'} {wanted}"
    return f"word {word} is {got}, has to stay {wanted}"
