"""evict: one program counts the pages of every lane and moves first pages, then all free what it counted: two launches.

lanes    [ 2 | 0 | 3 ]        pages to free of each lane, by one program
offsets  [ 5 | 0 | 2 | 2 ]    how many they are, then where each lane's pages begin
begins   [ 7 | 4 | 0 ]        the first page to free of each lane, while its row's first page moves on
freed    [ a7 a8 | c0 c1 c2 ] by programs that find each page's lane in the offsets, and free it as free does
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.evict import PARTS, EvictSpec
from pagebind.ops.read_table import table_tokens
from pagebind.words import PageTables

from pagebind_triton.gaps import push, settle
from pagebind_triton.guards import (
    BAD_ROW,
    CLIPPED,
    HOLE,
    HOLE_TOP,
    SINK,
    count,
    few,
    page_of,
    pages_for,
    wait_for_previous,
    within,
    zero,
    zeros,
)
from pagebind_triton.launch import NO_COUNT, PlannedLaunch, Variant, plan_grid
from pagebind_triton.unbind import unbind_ids

HEAD = tl.constexpr(PARTS.index("head"))
TAIL = tl.constexpr(PARTS.index("tail"))


@triton.jit
def count_evicted_kernel(
    req_rows: tl.tensor,  # [bs], int32 or int64
    starts: tl.tensor,  # [bs], int32 or int64; tokens
    lens: tl.tensor,  # [bs], as starts; tokens
    first: tl.tensor,  # [num_rows], int32; pages; written
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages; written
    begins: tl.tensor,  # [>= bs], int64; pages; written
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,  # of a row of the request table
    capacity: tl.int64,  # pages
    PAGE_SIZE: tl.constexpr,
    PART: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Count the pages to free of every lane, sum them up, and move the first pages of their rows."""
    if DEPENDENT:
        wait_for_previous()
    total = zero()
    clipped = zeros(BLOCK)
    bad_row = zeros(BLOCK)
    for at in range(0, bs, BLOCK):
        lanes = at + tl.arange(0, BLOCK).to(tl.int64)
        listed = lanes < bs
        row = tl.load(req_rows + lanes, mask=listed, other=HOLE).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        start_asked = tl.load(starts + lanes, mask=listed, other=0).to(tl.int64)
        start = within(start_asked, 0, tokens)
        length_asked = tl.load(lens + lanes, mask=listed, other=0).to(tl.int64)
        length = within(length_asked, 0, tokens)
        kept = pages_for(start, PAGE_SIZE)
        begun = within(tl.load(first + row, mask=good, other=0), 0, pages_for(zero() + tokens, PAGE_SIZE))
        begin = tl.maximum(begun, kept)
        end = length // PAGE_SIZE if PART == HEAD else pages_for(length, PAGE_SIZE)
        pages = tl.where(good, tl.maximum(end - begin, 0), 0)
        ends = total + tl.cumsum(pages, 0)
        if PART == HEAD:
            # Pages past the capacity stay bound, and the row's first page is the first of them.
            served = within(capacity - (ends - pages), 0, pages)
            moved = tl.where(pages > 0, begin + served, tl.maximum(begun, end))
        elif PART == TAIL:
            moved = tl.minimum(begun, kept)
        else:
            moved = tl.zeros((BLOCK,), tl.int64)
        tl.store(offsets + 1 + lanes, ends - pages, mask=listed)
        tl.store(begins + lanes, begin, mask=listed)
        # Another thread may hold the lane for the store: all have read the first pages before one of them moves any.
        tl.debug_barrier()
        tl.store(first + row, moved.to(tl.int32), mask=good)
        total += tl.sum(pages, 0)
        if COUNT:
            cut = (start != start_asked) | (length != length_asked) | ((pages > 0) & (ends > capacity))
            clipped += (good & cut).to(tl.int64)
            bad_row += (listed & ~good).to(tl.int64)
    tl.store(offsets, total)
    if COUNT:
        count(state, CLIPPED, tl.sum(clipped, 0))
        count(state, BAD_ROW, tl.sum(bad_row, 0))


@triton.jit
def lane_of(
    cells: tl.tensor,  # [BLOCK], int64
    inside: tl.tensor,  # [BLOCK], mask; cells that some lane has
    begins: tl.tensor,  # [bs], int64; ascending, the first of them 0
    bs: tl.tensor,
    half: tl.tensor,  # the largest power of two that is no more than bs
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the last lane that begins at or before each cell; lanes without cells begin where the next one does."""
    lane = tl.zeros((BLOCK,), tl.int64)
    step = zero() + half
    while step > 0:
        further = lane + step
        begin = tl.load(begins + further, mask=inside & (further < bs), other=0)
        lane = tl.where(inside & (further < bs) & (begin <= cells), further, lane)
        step = step // 2
    return lane


@triton.jit
def evict_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages
    begins: tl.tensor,  # [>= bs], int64; pages
    listed: tl.tensor,  # [>= capacity], int32; virtual pages; written for the last program, which counts
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    state: tl.tensor,  # [32], int64; written
    freed: tl.tensor,  # [capacity], int32 or int64; written
    bs: tl.int64,
    half: tl.int64,  # the largest power of two that is no more than bs
    request_stride: tl.int64,
    capacity: tl.int64,
    expected: tl.int64,  # the host's count of pages that come back; negative where it has none
    num_virtual: tl.int64,
    num_physical: tl.int64,
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Unbind the counted pages and push what was released."""
    if DEPENDENT:
        wait_for_previous()
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    asked = tl.minimum(tl.load(offsets), capacity)
    unserved = few(BLOCK)
    doubles = few(BLOCK)
    bads = few(BLOCK)
    for first in range(program * BLOCK, capacity, programs * BLOCK):
        cells = first + tl.arange(0, BLOCK).to(tl.int64)
        inside = cells < asked
        lane = lane_of(cells, inside, offsets + 1, bs, half, BLOCK)
        row = tl.load(req_rows + lane, mask=inside, other=0).to(tl.int64)
        page = tl.load(begins + lane, mask=inside, other=0) + cells
        page -= tl.load(offsets + 1 + lane, mask=inside, other=0)
        unit: tl.constexpr = PAGE_SIZE if TOKEN_FORM else 1
        # A page is named by its first cell.
        v = tl.load(request_table + row * request_stride + page * unit, mask=inside, other=HOLE).to(tl.int64)
        if TOKEN_FORM:
            v = page_of(v, PAGE_SIZE)
        if COUNT:
            tl.store(listed + cells, v.to(tl.int32), mask=inside)
        physical, double, bad = unbind_ids(v, v2p, p2v, num_virtual, num_physical, True, BLOCK)
        tl.store(freed + cells, physical.to(freed.dtype.element_ty), mask=cells < capacity)
        served = physical > SINK
        push(hole_stack, holes + cells, physical, served, num_physical)
        unserved += (inside & ~served).to(tl.int32)
        if COUNT:
            doubles += double.to(tl.int32)
            bads += bad.to(tl.int32)
    settle(
        listed,
        freed,
        v2p,
        hole_stack,  # stands for the virtual stack, on which borrowed ids are not pushed
        hole_stack,
        state,
        unserved,
        doubles,
        bads,
        asked,
        holes,
        holes,
        expected,
        num_virtual,
        num_physical,
        True,
        COUNT,
        BLOCK,
    )


def plan(spec: EvictSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan an eviction: two kernels, one variant each."""
    grid = plan_grid(device, options)
    offsets = torch.zeros(spec.max_bs + 1, dtype=torch.int64, device=device)
    begins = torch.zeros(spec.max_bs, dtype=torch.int64, device=device)
    listed = torch.zeros(spec.max_pages, dtype=torch.int32, device=device)
    count_evicted = Variant(
        count_evicted_kernel,
        [spec.row_dtype, spec.length_dtype, spec.length_dtype, torch.int32, torch.int64, torch.int64, torch.int64],
        {
            "PAGE_SIZE": spec.page_size,
            "PART": PARTS.index(spec.part),
            "COUNT": options.count,
            "BLOCK": grid.block,
        },
        device,
    )
    evict_pages = Variant(
        evict_kernel,
        [
            *(torch.int32, spec.row_dtype, torch.int64, torch.int64, torch.int32),
            *(spec.index_dtype, spec.index_dtype, spec.index_dtype, torch.int64, spec.id_dtype),
        ],
        {
            "PAGE_SIZE": spec.page_size,
            "TOKEN_FORM": spec.form == "token",
            "COUNT": options.count,
            "BLOCK": grid.block,
        },
        device,
    )

    def evict(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        starts: torch.Tensor,
        lens: torch.Tensor,
        tables: PageTables,
        *,
        first: torch.Tensor,
        freed: torch.Tensor,
        pages: int | None = None,
    ) -> None:
        v2p, p2v, _, hole_stack, state = tables[:5]
        bs = req_rows.shape[0]
        tokens = table_tokens(spec.form, spec.page_size, request_table)
        capacity = freed.shape[0]
        num_rows = request_table.shape[0]
        count_evicted(1, req_rows, starts, lens, first, offsets, begins, state, bs, num_rows, tokens, capacity)
        evict_pages(
            grid.lanes(capacity),
            request_table,
            req_rows,
            offsets,
            begins,
            listed,
            v2p,
            p2v,
            hole_stack,
            state,
            freed,
            bs,
            1 << (bs.bit_length() - 1),
            request_table.stride(0),
            capacity,
            NO_COUNT if pages is None else pages,
            v2p.shape[0] - 1,
            p2v.shape[0] - 1,
        )

    return PlannedLaunch(evict, [count_evicted, evict_pages], device)
