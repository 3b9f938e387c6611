"""Whether what a call writes lies apart from all else that it is given, cell by cell.

    one buffer    | row 0 of out | row 0 of in |    | row 1 of out | row 1 of in |        extents overlap, cells do not

Tensors are of one or two dimensions, the last of them dense; rows may alternate, in strides of their own.
"""

from __future__ import annotations

from itertools import combinations
from operator import itemgetter

import torch

from pagebind.errors import InvalidArgument

Tensors = tuple[torch.Tensor | None, ...]


def need_memory_of_its_own(written_names: str, written: Tensors, read_names: str, read: Tensors) -> None:
    """Refuse a call that writes a cell which it also reads, or writes as a cell of another tensor.

    Names stand in the order of the tensors, with spaces between. What is None is passed over, and so is what has no
    address: tensors on the meta device, and without cells.
    """
    # By rising address, each need only lie behind what came before. Extents that overlap are rare: names wait for them.
    there = sorted([(t.data_ptr(), i, t) for i, t in enumerate(written + read) if t is not None])
    writes, written_to, read_to = len(written), 0, 0
    for begin, i, value in there:
        if begin < written_to or (i < writes and begin < read_to):
            _need_each_apart(f"{written_names} {read_names}".split(), there, writes)
            return
        if begin:
            end = begin + _extent(value)
            if i < writes:
                written_to = end  # it begins behind all others
            elif end > read_to:
                read_to = end


def _extent(value: torch.Tensor) -> int:
    # Bytes from the first cell to behind the last.
    if value.dim() == 1:
        return value.nbytes
    rows, width = value.shape
    return ((rows - 1) * value.stride()[0] + width) * value.element_size() if rows and width else 0


def _need_each_apart(names: list[str], there: list[tuple[int, int, torch.Tensor]], writes: int) -> None:
    for (first, i, value), (begin, j, other) in combinations(sorted(there, key=itemgetter(1)), 2):
        meet = 0 < first < begin + _extent(other) and 0 < begin < first + _extent(value)
        if meet and i < writes and _share(value, other):
            # Blamed is what the call writes; of two outputs, the later one.
            name, of = (names[j], names[i]) if j < writes else (names[i], names[j])
            raise InvalidArgument(f"{name} shares memory with {of}; pass a tensor of its own")


def _share(value: torch.Tensor, other: torch.Tensor) -> bool:
    # Whether two tensors whose extents overlap have cells in the same memory.
    few, many = sorted((_rows(value), _rows(other)), key=lambda rows: rows[1])
    begin, count, stride, width = few
    first, most, step, length = many
    if count == 1 or stride == step:
        ahead = (first - begin) % step if step else 0  # bytes from a row of the one to the next row of the other
        return not (width <= ahead and ahead + length <= step)
    for at in range(begin, begin + count * stride, stride):
        row = max((at - first - length) // step + 1, 0)  # the first one of `many` that ends behind `at`
        if row < most and first + row * step < at + width:
            return True
    return False


def _rows(value: torch.Tensor) -> tuple[int, int, int, int]:
    # Address, number, stride and width of the rows, in bytes; rows that lie on one another are one.
    unit = value.element_size()
    if value.dim() == 1 or value.shape[0] == 1 or value.stride(0) == 0:
        return value.data_ptr(), 1, 0, value.shape[-1] * unit
    return value.data_ptr(), value.shape[0], value.stride(0) * unit, value.shape[1] * unit
