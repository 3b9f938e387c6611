"""touch: tell the tables that follow a request table that rows changed, other than by appending.

    lane b, row r = req_rows[b]:   versions[r] = (version + 1, tokens[b])

A table that was brought up to date one version ago writes the row's columns from token `tokens[b]` on; one that is
further behind, the whole row. Nothing is cleared, so any number of tables may follow the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_length,
    need_state,
    need_tensor,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.ops.fields import need_fields
from pagebind.ops.lanes import add, rows_of, where

VERSION_WORDS = 2
"""Words of a row of `versions`, int32."""

VERSION = 0  # how often the row changed, other than by appending; it wraps around
CHANGED = 1  # tokens; the lowest one that the last change touched


def new_versions(max_requests: int, device: torch.device | str) -> torch.Tensor:
    """Return the words of rows that never changed, int32 `[max_requests, VERSION_WORDS]`."""
    return torch.zeros((max_requests, VERSION_WORDS), dtype=torch.int32, device=device)


def need_versions(versions: torch.Tensor, device: torch.device) -> None:
    """Refuse what are no dense words of rows on `device`."""
    need_tensor("versions", versions, torch.int32, 2, device)
    if versions.shape[1] != VERSION_WORDS or not versions.is_contiguous():
        raise InvalidArgument(
            f"versions has shape {list(versions.shape)} and strides {list(versions.stride())}; it must be dense, "
            f"[max_requests, {VERSION_WORDS}], as new_versions returns it"
        )


@dataclass(frozen=True, kw_only=True)
class TouchSpec:
    """What the plan of a touch decides: at most `max_bs` lanes a call."""

    max_bs: int
    row_dtype: torch.dtype = torch.int32  # of req_rows
    length_dtype: torch.dtype = torch.int32  # of tokens

    def __post_init__(self) -> None:
        need_fields(self)


class Touch(Protocol):
    """The planned call."""

    def __call__(
        self,
        versions: torch.Tensor,  # [max_requests, VERSION_WORDS], int32; written
        req_rows: torch.Tensor,  # [bs], row_dtype
        tokens: torch.Tensor,  # [bs], length_dtype; the lowest token of the row that changed
        *,
        state: torch.Tensor | None = None,  # [32], int64; counts bad_row
    ) -> None:
        """Raise the version of every lane's row, and note where it changed; `tokens` are clamped to int32's `[0, max]`.

        A version is an int32 that wraps around. A row that stands in several lanes rises by as many, so that tables
        write all of it; which lane's token is noted is not specified. Counted: `bad_row` lanes whose row is outside of
        `versions`; they do nothing. Raises InvalidArgument before launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: TouchSpec,
    device: torch.device,
    versions: torch.Tensor,
    req_rows: torch.Tensor,
    tokens: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    need_versions(versions, device)
    need_tensor("req_rows", req_rows, spec.row_dtype, 1, device)
    bs = req_rows.shape[0]
    need_at_most("the batch", bs, spec.max_bs, "max_bs")
    need_tensor("tokens", tokens, spec.length_dtype, 1, device)
    need_length("tokens", tokens, bs, "req_rows")
    need_state(state, device)
    need_memory_of_its_own("versions", (versions,), "req_rows tokens", (req_rows, tokens))
    return bs > 0


def bytes_moved(spec: TouchSpec, *, lanes: int, items: int = 0) -> int:
    """Return the bytes to touch `lanes` rows; there are no items."""
    return lanes * (spec.row_dtype.itemsize + spec.length_dtype.itemsize + 3 * 4)


def features(spec: TouchSpec) -> frozenset[str]:
    """Return the features a spec asks for: none."""
    return frozenset()


def faults(
    spec: TouchSpec,
    versions: torch.Tensor,
    req_rows: torch.Tensor,
    tokens: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes."""
    return {"bad_row": where(rows_of(versions, req_rows)[1])}


def touch(versions: torch.Tensor, req_rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Touch rows with torch; return which lanes have a bad row, bool `[bs]`."""
    row, bad = rows_of(versions, req_rows)
    row, changed = row[~bad], tokens[~bad].clamp(0, INT32_MAX).to(torch.int32)
    versions[:, VERSION].index_add_(0, row, torch.ones_like(changed))
    versions[row, CHANGED] = changed
    return bad


def compose(spec: TouchSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Touch with torch; no core operation knows rows' words."""

    def run(
        versions: torch.Tensor,
        req_rows: torch.Tensor,
        tokens: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        bad = touch(versions, req_rows, tokens)
        if options.count:
            add(state, bad_row=bad)

    return Composed("touch", device, run)


TOUCH: Operation[TouchSpec, Touch] = Operation(
    name="touch",
    level="extended",
    spec=TouchSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
