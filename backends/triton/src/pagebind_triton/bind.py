"""bind: one lane a pair; compare-and-swap takes the row of v2p, then that of p2v, or gives the first back."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.bind import BindSpec

from pagebind_triton.guards import BAD_BIND, HOLE, SINK, TOMBSTONE, count, wait_for_previous, zeros
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def swap_tombstones(
    table: tl.tensor,  # [num + 1], int32 or int64; written
    ids: tl.tensor,  # [BLOCK], int64
    values: tl.tensor,  # [BLOCK], int64
    able: tl.tensor,  # [BLOCK], mask; ids are inside the table
    num: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Put values in rows that hold a tombstone; return the mask of lanes whose row it was."""
    element = table.dtype.element_ty
    tombstones = tl.full((BLOCK,), TOMBSTONE, element)
    # The instruction has no mask: other lanes swap a tombstone for itself, spread out so that they do not queue.
    spare = tl.minimum(tl.arange(0, BLOCK).to(tl.int64), num)
    rows = table + tl.where(able, ids, spare)
    found = tl.atomic_cas(rows, tombstones, tl.where(able, values, TOMBSTONE).to(element), sem="relaxed")
    return able & (found == TOMBSTONE)


@triton.jit
def bind_pairs(
    virtual: tl.tensor,  # [BLOCK], int64
    physical: tl.tensor,  # [BLOCK], int64
    wanted: tl.tensor,  # [BLOCK], mask
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Bind the wanted pairs that may be bound; return the mask of those that were."""
    able = wanted & (virtual > SINK) & (virtual < num_virtual) & (physical > SINK) & (physical < num_physical)
    taken = swap_tombstones(v2p, virtual, physical, able, num_virtual, BLOCK)
    bound = swap_tombstones(p2v, physical, virtual, taken, num_physical, BLOCK)
    tl.atomic_xchg(
        v2p + virtual, tl.full((BLOCK,), TOMBSTONE, v2p.dtype.element_ty), mask=taken & ~bound, sem="relaxed"
    )
    return bound


@triton.jit
def bind_kernel(
    virtual: tl.tensor,  # [n], int32 or int64
    physical: tl.tensor,  # [n], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    state: tl.tensor,  # [32], int64
    n: tl.int64,
    num_virtual: tl.int64,
    num_physical: tl.int64,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Bind each pair that may be bound."""
    if DEPENDENT:
        wait_for_previous()
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    bad = zeros(BLOCK)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, n, step):
        lanes = first + tl.arange(0, BLOCK)
        v = tl.load(virtual + lanes, mask=lanes < n, other=HOLE).to(tl.int64)
        p = tl.load(physical + lanes, mask=lanes < n, other=HOLE).to(tl.int64)
        wanted = v >= 0
        bound = bind_pairs(v, p, wanted, v2p, p2v, num_virtual, num_physical, BLOCK)
        if COUNT:
            bad += (wanted & ~bound).to(tl.int64)
    if COUNT:
        count(state, BAD_BIND, tl.sum(bad, 0))


def plan(spec: BindSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a binding: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        bind_kernel,
        [spec.id_dtype, spec.id_dtype, spec.index_dtype, spec.index_dtype, torch.int64],
        {"COUNT": options.count, "BLOCK": grid.block},
        device,
    )

    def bind(
        virtual: torch.Tensor,
        physical: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        state: torch.Tensor | None = None,
    ) -> None:
        n = virtual.shape[0]
        kernel(
            grid.lanes(n),
            virtual,
            physical,
            v2p,
            p2v,
            lost if state is None else state,
            n,
            v2p.shape[0] - 1,
            p2v.shape[0] - 1,
        )

    return PlannedLaunch(bind, [kernel], device)
