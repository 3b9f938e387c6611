"""advance: a token more for every row: its page where it begins one, its cell, its slot, its column, the row's length.

    lanes       0   1   2   3   4   5           takes: token n begins a page, n % page_size == 0
    takes       x           x   x               page g of the call goes to the g-th lane that takes
    page g      0           1   2               others go on in the row's last page, which is read before any is bound

One program does all of it where its block has a cell for every lane. Above, two launches of as many programs do it:

    look    how many lanes of each program take a page, and the last pages of the others
    step    the rest; each program adds up the counts of those before it
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.advance import AdvanceSpec
from pagebind.ops.ids import scale_of
from pagebind.ops.read_table import table_tokens
from pagebind.words import PageTables

from pagebind_triton.alloc import lanes_each, move_positions, page_of_rank
from pagebind_triton.guards import (
    BAD_BIND,
    BAD_ID,
    BAD_ROW,
    CLIPPED,
    HOLE,
    HOLE_TOP,
    SINK,
    STARVED,
    TICKET,
    VIRTUAL_TOP,
    count,
    count_lanes,
    count_mismatch,
    is_last_of,
    wait_for_previous,
    within,
    zero,
)
from pagebind_triton.launch import NO_COUNT, WARP, PlannedLaunch, Variant, plan_grid
from pagebind_triton.span import chain_of, read_span
from pagebind_triton.step import bind_taken, last_page, last_physical, open_lanes, read_lanes, tell_none, write_lanes

GPU_ALONE, GPU_SHARED = 1024, 256
"""Lanes of the one program, and of a block where several share the lanes out."""

MOST_PROGRAMS = 1024
"""Programs of a launch at most: each adds up the counts of all of them."""


@triton.jit
def look_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    taking: tl.tensor,  # [programs], int64; lanes that take a page; written
    held: tl.tensor,  # [bs], int32; virtual page that the row names as its last one, or a hole; written
    held_physical: tl.tensor,  # [bs], as v2p; its physical page, or a tombstone; written
    bs: tl.int64,
    share: tl.int64,  # lanes of a program
    num_rows: tl.int64,
    room: tl.int64,  # tokens of a row
    request_stride: tl.int64,
    num_virtual: tl.int64,
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Count lanes that take a page and read the last pages of others, before any program binds one."""
    if DEPENDENT:
        wait_for_previous()
    program = tl.program_id(0).to(tl.int64)
    begin = tl.minimum(program * share, bs)
    end = tl.minimum(begin + share, bs)
    total = zero()
    for first in range(begin, end, BLOCK):
        lanes = first + tl.arange(0, BLOCK).to(tl.int64)
        listed = lanes < end
        row, length = read_lanes(req_rows, seq_lens, lanes, end)
        row, token, page, offset, fits, _good, _cut = open_lanes(row, length, num_rows, room, PAGE_SIZE)
        goes_on = fits & (offset > 0)
        last = last_page(request_table + row * request_stride, token, page, goes_on, PAGE_SIZE, TOKEN_FORM)
        tl.store(held + lanes, last, mask=listed)
        tl.store(held_physical + lanes, last_physical(v2p, last, num_virtual), mask=listed)
        total += tl.sum((fits & (offset == 0)).to(tl.int32), 0).to(tl.int64)
    tl.store(taking + program, total)


@triton.jit
def step_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32; written
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens; written
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    virtual_stack: tl.tensor,  # [num_virtual], int32 or int64
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    state: tl.tensor,  # [32], int64; written
    chain: tl.tensor,  # [sub_pools, 32], int64; `state` is a row of it; with CHAINED
    taking: tl.tensor,  # [programs], int64; as look_kernel leaves it, but for ALONE; the same with the next two
    held: tl.tensor,  # [bs], int32
    held_physical: tl.tensor,  # [bs], as v2p
    slots: tl.tensor,  # [bs], int32 or int64; written
    table: tl.tensor,  # [>= bs, width], int32 or int64; written, with APPENDS
    token_ids: tl.tensor,  # [bs], int32 or int64; written, with EMITS; the same with the next two
    new_ids: tl.tensor,  # [told], as token_ids
    new_pages: tl.tensor,  # [told], as token_ids
    bs: tl.int64,
    share: tl.int64,  # lanes of a program
    num_rows: tl.int64,
    room: tl.int64,  # tokens of a row
    request_stride: tl.int64,
    num_virtual: tl.int64,
    num_physical: tl.int64,
    sub_pools: tl.int64,
    place: tl.int64,  # of the sub-pool in its chain
    table_stride: tl.int64,
    width: tl.int64,  # columns of `table`
    told: tl.int64,  # pages
    expected: tl.int64,  # the host's count of pages; negative where it has none
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,  # entries from one page to the next: of slots
    PER_PAGE: tl.constexpr,  # the same: of a table of pages
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    APPENDS: tl.constexpr,
    EMITS: tl.constexpr,
    CHAINED: tl.constexpr,
    ALONE: tl.constexpr,
    MOST: tl.constexpr,  # programs; a power of two
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Give the lanes of this program their next token; ALONE, all lanes, which are no more than a block."""
    if DEPENDENT:
        wait_for_previous()
    programs = tl.num_programs(0).to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    begin = tl.minimum(program * share, bs)
    end = tl.minimum(begin + share, bs)
    lanes = begin + tl.arange(0, BLOCK).to(tl.int64)
    # Rows and lengths are read ahead of their block, so that the first ones do not wait for the positions.
    row_ahead, length_ahead = read_lanes(req_rows, seq_lens, lanes, end)
    top = within(tl.load(state + VIRTUAL_TOP), 0, num_virtual)
    holes = within(tl.load(state + HOLE_TOP), 0, num_physical)
    seat, watermark, up, down, _, _ = read_span(state, chain, sub_pools, place, num_physical, CHAINED)
    most = tl.minimum(holes + up + down, top)
    before = zero()  # lanes that take a page before the block at hand
    asked = zero()
    trips = 1
    if not ALONE:
        trips = ((end - begin + (BLOCK - 1)) // BLOCK).to(tl.int32)
        others = tl.arange(0, MOST)
        counts = tl.load(taking + others, mask=others < programs, other=0)
        asked += tl.sum(counts, 0)
        before += tl.sum(tl.where(others < program, counts, 0), 0)
    for _ in range(0, trips):
        listed = lanes < end
        row, token, page, offset, fits, good, cut = open_lanes(row_ahead, length_ahead, num_rows, room, PAGE_SIZE)
        row_ahead, length_ahead = read_lanes(req_rows, seq_lens, lanes + BLOCK, end)
        takes = fits & (offset == 0)
        cells = request_table + row * request_stride
        # The reads of lanes that take and of those that go on are under way together.
        if ALONE:
            last = last_page(cells, token, page, fits & (offset > 0), PAGE_SIZE, TOKEN_FORM)
        else:
            last = tl.load(held + lanes, mask=listed, other=HOLE)
        rank = before + tl.cumsum(takes.to(tl.int32), 0).to(tl.int64) - 1
        served = takes & (rank < most)
        v = tl.load(virtual_stack + (top - 1 - rank), mask=served, other=SINK).to(tl.int64)
        p = page_of_rank(hole_stack, rank, served, holes, seat, watermark, up)
        here = tl.sum(takes.to(tl.int32), 0)
        if ALONE:
            physical = last_physical(v2p, last, num_virtual).to(tl.int64)
        else:
            physical = tl.load(held_physical + lanes, mask=listed, other=SINK).to(tl.int64)
        bound = served
        if here > 0:
            bound = bind_taken(v, p, served, v2p, p2v, num_virtual, num_physical, BLOCK)
        v = tl.where(bound, v, SINK)
        p = tl.where(bound, p, SINK)
        if EMITS:
            element = new_ids.dtype.element_ty
            tl.store(new_ids + rank, v.to(element), mask=takes & (rank < told))
            tl.store(new_pages + rank, p.to(element), mask=takes & (rank < told))
        clipped = write_lanes(
            cells,
            seq_lens,
            slots,
            table,
            token_ids,
            lanes,
            token,
            page,
            offset,
            listed,
            fits,
            tl.where(takes, v, tl.where(last < num_virtual, last, HOLE).to(tl.int64)),
            tl.where(takes, p, physical),
            bound | ~takes,
            table_stride,
            width,
            PAGE_SIZE,
            SCALE,
            PER_PAGE,
            TOKEN_FORM,
            TOKEN_GRAIN,
            APPENDS,
            EMITS,
        )
        if COUNT:
            count_lanes(state, CLIPPED, good & (cut | clipped))
            count_lanes(state, BAD_ROW, listed & ~good)
            count_lanes(state, BAD_ID, last >= num_virtual)
            count_lanes(state, BAD_BIND, served & ~bound)
        before += here
        lanes += BLOCK
    final = programs == 1
    if ALONE:
        asked = before
        tl.debug_barrier()  # all threads have read the positions
    else:
        final, _total = is_last_of(state, programs, zero())
    if EMITS:
        tell_none(new_ids, new_pages, asked, told, BLOCK)
    if final:
        found = tl.minimum(asked, most)
        if not ALONE:
            tl.store(state + TICKET, 0)
        move_positions(state, found, top, holes, seat, watermark, up, False)
        if COUNT:
            count(state, STARVED, asked - found)
            count_mismatch(state, expected, asked)


def plan(spec: AdvanceSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a decode step: one launch of one program where its block has a cell for every lane, else two.

    The plan owns scratch for batches of more lanes: calls of one plan must not overlap on two streams.
    """
    ps, token_form = spec.page_size, spec.form == "token"
    block = min(plan_grid(device, options, GPU_ALONE).block, max(1 << max(spec.max_bs - 1, 0).bit_length(), WARP))
    several = plan_grid(device, options, GPU_SHARED, gpu_most=MOST_PROGRAMS)
    most = min(several.most, MOST_PROGRAMS)
    kept = spec.max_bs if spec.max_bs > block else 0
    taking = torch.zeros(most, dtype=torch.int64, device=device)
    held = torch.zeros(kept, dtype=torch.int32, device=device)
    held_physical = torch.zeros(kept, dtype=spec.index_dtype, device=device)
    longest = torch.iinfo(spec.length_dtype).max
    lanes = [torch.int32, spec.row_dtype, spec.length_dtype]
    look = Variant(
        look_kernel,
        [*lanes, spec.index_dtype, torch.int64, torch.int32, spec.index_dtype],
        {"PAGE_SIZE": ps, "TOKEN_FORM": token_form, "BLOCK": several.block},
        device,
    )
    # Without outputs of its own a call has the slots stand for them.
    emitted = spec.id_dtype if spec.emits else spec.out_dtype
    shown = spec.table_dtype if spec.appends else spec.out_dtype

    def step_of(chained: bool, alone: bool) -> Variant:
        return Variant(
            step_kernel,
            [
                *(*lanes, *[spec.index_dtype] * 4, torch.int64, torch.int64, torch.int64, torch.int32),
                *(spec.index_dtype, spec.out_dtype, shown, emitted, emitted, emitted),
            ],
            {
                "PAGE_SIZE": ps,
                "SCALE": scale_of(spec.num_physical, spec.multiplier, ps),
                "PER_PAGE": scale_of(spec.num_physical, spec.multiplier, 1),
                "TOKEN_FORM": token_form,
                "TOKEN_GRAIN": spec.granularity == "token",
                "APPENDS": spec.appends,
                "EMITS": spec.emits,
                "CHAINED": chained,
                "ALONE": alone,
                "MOST": 1 if alone else 1 << (most - 1).bit_length(),
                "COUNT": options.count,
                "BLOCK": block if alone else several.block,
            },
            device,
        )

    alone = step_of(False, True), step_of(True, True)
    shared = (step_of(False, False), step_of(True, False)) if kept else alone

    def advance(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        tables: PageTables,
        *,
        slots: torch.Tensor,
        table: torch.Tensor | None = None,
        pages: int | None = None,
        token_ids: torch.Tensor | None = None,
        new_ids: torch.Tensor | None = None,
        new_pages: torch.Tensor | None = None,
    ) -> None:
        v2p, p2v, virtual_stack, hole_stack, state = tables[:5]
        chain, sub_pools, place = chain_of(tables)
        bs = req_rows.shape[0]
        num_virtual = v2p.shape[0] - 1
        room = min(table_tokens(spec.form, ps, request_table), longest)
        programs, share, steps = 1, bs, alone
        rows = request_table.shape[0], room, request_table.stride(0), num_virtual
        if bs > block:
            programs = min(several.lanes(bs), most)
            share, steps = lanes_each(bs, programs, several.block), shared
            look(programs, request_table, req_rows, seq_lens, v2p, taking, held, held_physical, bs, share, *rows)
        steps[tables.chain is not None](
            programs,
            request_table,
            req_rows,
            seq_lens,
            v2p,
            p2v,
            virtual_stack,
            hole_stack,
            state,
            chain,
            taking,
            held,
            held_physical,
            slots,
            slots if table is None else table,
            slots if token_ids is None else token_ids,
            slots if new_ids is None else new_ids,
            slots if new_pages is None else new_pages,
            bs,
            share,
            *rows,
            p2v.shape[0] - 1,
            sub_pools,
            place,
            0 if table is None else table.stride(0),
            0 if table is None else table.shape[1],
            0 if new_ids is None else new_ids.shape[0],
            NO_COUNT if pages is None else pages,
        )

    return PlannedLaunch(advance, [*alone, look, *shared] if kept else alone, device)
