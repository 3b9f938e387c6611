"""Tensors over the bytes of pages, as a layer of a model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import need_count
from pagebind.pool.chain import Place


def page_view(
    buffer: torch.Tensor | None, place: Place, dtype: torch.dtype, shape: Sequence[int], offset: int
) -> torch.Tensor:
    """Return `[num_physical, *shape]` over `buffer`, uint8: `shape` cells of `dtype`, `offset` bytes into each page."""
    if buffer is None:
        raise InvalidArgument("this pool was planned with buffer=False; it has no bytes to view")
    for n in shape:
        need_count(f"each size of shape {list(shape)}", n, 1)
    need_count("offset", offset, 0, place.page_bytes)
    size, cells = dtype.itemsize, prod(shape)
    if offset + cells * size > place.page_bytes:
        raise InvalidArgument(
            f"{cells} cells of {dtype} at offset {offset} end at byte {offset + cells * size} of a page of "
            f"{place.name!r}, which has {place.page_bytes}"
        )
    if offset % size or place.base % size or place.page_bytes % size:
        raise InvalidArgument(
            f"offset {offset}, the base {place.base} and the page size {place.page_bytes} of {place.name!r} must be "
            f"multiples of the {size} bytes of {dtype}"
        )
    pages = buffer[place.base : place.byte(place.num_physical)].view(place.num_physical, place.page_bytes)
    part = pages[:, offset : offset + cells * size].view(dtype)
    return part.view(place.num_physical, *shape)
