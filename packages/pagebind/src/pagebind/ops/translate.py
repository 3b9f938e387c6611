"""translate: token ids -> the ids kernels write through (slot mapping), 1-D or 2-D, strided, also in place.

    id -> v = id // (ps * ranks), o = id % (ps * ranks)       ranks = context-parallel group, 1 without
          owner = o % ranks, offset = o // ranks
          entry = (v2p[v] * multiplier) * ps + offset   where owner == rank; else 0

A negative id, an id whose page is past the table, a tombstone and an id of another rank give entry 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Operation,
    need_at_most,
    need_choice,
    need_count,
    need_entries_fit,
    need_page_table,
    need_state,
    need_strided,
    plain,
)
from pagebind.ops.fields import need_fields
from pagebind.ops.ids import past_table


@dataclass(frozen=True, kw_only=True)
class TranslateSpec:
    """What a translation's plan decides: at most `max_items` ids a call; `page_size` is that of the stored pages."""

    max_items: int
    page_size: int
    num_physical: int
    multiplier: int = 1
    ranks: int = 1
    rank: int = 0
    index_dtype: torch.dtype = torch.int32  # of v2p
    id_dtype: torch.dtype = torch.int32  # of ids
    out_dtype: torch.dtype = torch.int32

    def __post_init__(self) -> None:
        need_fields(self)
        need_count("ranks", self.ranks, 1, INT32_MAX)
        need_count("rank", self.rank, 0, self.ranks - 1)
        need_count("page_size * ranks", self.page_size * self.ranks, 1, INT32_MAX)
        need_entries_fit(self.num_physical, self.multiplier, self.page_size, "token", "out_dtype", self.out_dtype)


class Translate(Protocol):
    """The planned call."""

    def __call__(
        self,
        ids: torch.Tensor,  # [n] or [m, n], id_dtype; any strides
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # shape of ids, out_dtype; any strides that keep cells apart; may be ids itself; written
        state: torch.Tensor | None = None,  # [32], int64; counts bad_id
    ) -> None:
        """Write the entry of every id to `out`.

        Counted: `bad_id` ids whose page is past the table, whoever owns them. `out` is `ids` itself, a tensor over the
        same memory with the same strides, or apart from it. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: TranslateSpec,
    device: torch.device,
    ids: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False where there are no ids."""
    for name, value, dtype in (("ids", ids, spec.id_dtype), ("out", out, spec.out_dtype)):
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(f"{name} is a {type(value).__name__}; it must be a {dtype} tensor on {device}")
        if value.dtype is not dtype:
            raise InvalidArgument(
                f"{name} has dtype {value.dtype}; this plan takes {dtype}: convert it, or plan for it"
            )
        if value.device != device:
            raise InvalidArgument(f"{name} is on {value.device}; this plan runs on {device}: move it, or plan for it")
        need_strided(name, value)
    need_choice("the number of dimensions of ids", ids.dim(), (1, 2))
    if out.shape != ids.shape:
        raise InvalidArgument(f"out has shape {list(out.shape)}; it must have that of ids, {list(ids.shape)}")
    need_apart("out", out)
    _need_in_place_or_apart(ids, out)
    need_at_most("the number of ids", ids.numel(), spec.max_items, "max_items")
    need_page_table("v2p", v2p, spec.index_dtype, device)
    need_state(state, device)
    return ids.numel() > 0


def _need_in_place_or_apart(ids: torch.Tensor, out: torch.Tensor) -> None:
    # Where strides or dtypes differ and cells lie between cells, it is not looked for whether some are shared.
    if out.is_meta or out.numel() == 0:
        return
    unit, ahead = out.element_size(), out.data_ptr() - ids.data_ptr()  # bytes from the first id to the first entry
    alike = unit == ids.element_size() and out.stride() == ids.stride()
    if alike and ahead == 0:
        return
    if alike:
        shared = ahead % unit == 0 and _cells_meet(out, ahead // unit)
    elif out.is_contiguous() and ids.is_contiguous():
        shared = -out.nbytes < ahead < ids.nbytes
    else:
        shared = ahead == 0
    if shared:
        raise InvalidArgument(
            "out shares memory with ids, and not each cell with its own id; pass ids itself, or a tensor of its own"
        )


def _cells_meet(value: torch.Tensor, ahead: int) -> bool:
    # Whether a tensor with cells apart shares some with one like it that begins `ahead` cells of memory later.
    steps = sorted(((abs(s), n) for s, n in zip(value.stride(), value.shape, strict=True) if n > 1), reverse=True)
    rest = {ahead}  # what the steps left over: each reaches further than all those after it, so two counts are tried
    for step, size in steps:
        rest = {r - i * step for r in rest for i in (r // step, r // step + 1) if abs(i) < size}
    return 0 in rest


def need_apart(name: str, value: torch.Tensor) -> None:
    """Refuse an output of one or two dimensions two of whose cells share memory."""
    # Outer stride first: cells are apart if the inner ones end before the next outer one begins.
    steps = sorted((abs(step), size) for step, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    reach = 0
    for step, size in steps:
        if step <= reach:
            raise InvalidArgument(
                f"{name} has shape {list(value.shape)} and strides {list(value.stride())}: cells may share memory; "
                "pass a tensor whose cells are apart"
            )
        reach += step * (size - 1)


def bytes_moved(spec: TranslateSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to translate `items` ids: an id, a table row and an entry each."""
    return items * (spec.id_dtype.itemsize + spec.index_dtype.itemsize + spec.out_dtype.itemsize)


def features(spec: TranslateSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({"context_parallel"} if spec.ranks > 1 else ())


def faults(
    spec: TranslateSpec,
    ids: torch.Tensor,
    v2p: torch.Tensor,
    *,
    out: torch.Tensor,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count, with the virtual pages."""
    return {"bad_id": plain(past_table(ids.reshape(-1), spec.page_size * spec.ranks, v2p))}


TRANSLATE: Operation[TranslateSpec, Translate] = Operation(
    name="translate",
    level="core",
    spec=TranslateSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
)
