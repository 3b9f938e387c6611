"""unbind: one lane an id; it looks the page up, and an exchange of the row decides which of several lanes is served."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.unbind import UnbindSpec

from pagebind_triton.guards import BAD_FREE, DOUBLE_FREE, HOLE, SINK, TOMBSTONE, count, few, wait_for_previous
from pagebind_triton.launch import PlannedLaunch, Variant, nowhere, plan_grid


@triton.jit
def unbind_ids(
    ids: tl.tensor,  # [BLOCK], int64; holes where there is no lane
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BORROWED: tl.constexpr,  # an id without a page is a hole
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Unbind ids; return each lane's page, a tombstone where none, and the masks of double and of bad frees.

    With BORROWED a repeated id is a double free where it is looked up before it is released, as in one block of ids;
    after that it reads as a hole.
    """
    known = (ids > SINK) & (ids < num_virtual)
    page = tl.load(v2p + ids, mask=known, other=TOMBSTONE).to(tl.int64)
    able = known & (page > SINK) & (page < num_physical)
    if BORROWED:
        tl.debug_barrier()  # all threads have looked up before one of them releases
    # Within a launch a row changes to a tombstone only, so what was looked up is what the first exchange finds.
    tombstones = tl.full((BLOCK,), TOMBSTONE, v2p.dtype.element_ty)
    found = tl.atomic_xchg(v2p + ids, tombstones, mask=able, sem="relaxed")
    served = able & (found != TOMBSTONE)
    tl.store(p2v + page, tl.full((BLOCK,), TOMBSTONE, p2v.dtype.element_ty), mask=served)
    missing = known & (page < SINK)
    double = able & ~served
    bad = (ids >= 0) & ~able & ~missing
    if not BORROWED:
        double = double | missing
    return tl.where(served, page, TOMBSTONE), double, bad


@triton.jit
def count_frees(
    state: tl.tensor,  # [32], int64; written
    doubles: tl.tensor,  # [BLOCK], int32
    bads: tl.tensor,  # [BLOCK], int32
) -> None:
    """Add a program's faults to their counters."""
    count(state, DOUBLE_FREE, tl.sum(doubles, 0).to(tl.int64))
    count(state, BAD_FREE, tl.sum(bads, 0).to(tl.int64))


@triton.jit
def unbind_kernel(
    ids: tl.tensor,  # [n], int32 or int64
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    freed: tl.tensor,  # [n], as ids; written
    state: tl.tensor,  # [32], int64
    n: tl.int64,
    num_virtual: tl.int64,
    num_physical: tl.int64,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Unbind every id that is bound."""
    if DEPENDENT:
        wait_for_previous()
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    doubles = few(BLOCK)
    bads = few(BLOCK)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, n, step):
        lanes = first + tl.arange(0, BLOCK)
        v = tl.load(ids + lanes, mask=lanes < n, other=HOLE).to(tl.int64)
        page, double, bad = unbind_ids(v, v2p, p2v, num_virtual, num_physical, False, BLOCK)
        tl.store(freed + lanes, page.to(freed.dtype.element_ty), mask=lanes < n)
        if COUNT:
            doubles += double.to(tl.int32)
            bads += bad.to(tl.int32)
    if COUNT and tl.sum(doubles + bads, 0) > 0:
        count_frees(state, doubles, bads)


def plan(spec: UnbindSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an unbinding: one kernel, one variant."""
    grid = plan_grid(device, options)
    lost = nowhere(device)
    kernel = Variant(
        unbind_kernel,
        [spec.id_dtype, spec.index_dtype, spec.index_dtype, spec.id_dtype, torch.int64],
        {"COUNT": options.count, "BLOCK": grid.block},
        device,
    )

    def unbind(
        ids: torch.Tensor,
        v2p: torch.Tensor,
        p2v: torch.Tensor,
        *,
        freed: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> None:
        n = ids.shape[0]
        kernel(
            grid.lanes(n),
            ids,
            v2p,
            p2v,
            freed,
            lost if state is None else state,
            n,
            v2p.shape[0] - 1,
            p2v.shape[0] - 1,
        )

    return PlannedLaunch(unbind, [kernel], device)
