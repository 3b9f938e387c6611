"""compact: one program picks the moves, then all programs rebind and copy: two launches, whatever moves.

    band [6, 8]      6  7  8           live, ascending: sources
                        |  |
    hole stack     [ 2  6  4 ]         read from the top until every source has a hole outside the band: targets
                     ^- cut            the cells below the last target keep their holes outside the band, in order

So each cell of the band and of the hole stack is read about once, and a refusal is known before either is written. The
number of moves stays on the device; the second launch is sized for the retreat. Where fresh pages are taken the whole
stack is read: its holes must be as many fewer than the sources as there are fresh pages.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.compact import CompactSpec, Side
from pagebind.words import PageTables

from pagebind_triton.bind import bind_pairs
from pagebind_triton.guards import (
    COUNT_MISMATCH,
    EPOCH,
    HOLE_TOP,
    SEAT,
    SINK,
    TOMBSTONE,
    WATERMARK,
    count,
    wait_for_previous,
    zero,
)
from pagebind_triton.launch import WARP, PlannedLaunch, Variant, plan_grid
from pagebind_triton.span import chain_of, read_span
from pagebind_triton.unbind import unbind_ids

WORD_BYTES = 8
"""Bytes of the words that pages are copied in; a GPU's thread moves two of them at once where a page has plenty."""

WIDER = 4
"""Times a program's usual cells: one program hides latency by width alone, and a page's words are plenty."""


@triton.jit
def holes_outside(
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64
    cells: tl.tensor,  # [BLOCK], int64
    listed: tl.tensor,  # [BLOCK], mask; cells are inside the stack
    begin: tl.tensor,  # page; the first one of the span outside the band
    end: tl.tensor,  # page; behind the last one
) -> tuple[tl.tensor, tl.tensor]:
    """Return the pages in cells of the hole stack, and the mask of those that are unbound and outside the band."""
    page = tl.load(hole_stack + cells, mask=listed, other=SINK).to(tl.int64)
    inside = (page >= begin) & (page < end)
    holder = tl.load(p2v + page, mask=inside, other=SINK)
    return page, inside & (holder == TOMBSTONE)


@triton.jit
def pick_moves_kernel(
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    sources: tl.tensor,  # [>= retreat], int32 or int64; physical pages; written
    targets: tl.tensor,  # [>= retreat], as sources; written
    state: tl.tensor,  # [32], int64; written
    chain: tl.tensor,  # [sub_pools, 32], int64; `state` is a row of it; with CHAINED
    moves: tl.tensor,  # [1], int64; written
    retreat: tl.int64,  # pages
    low: tl.int64,  # 1 where the low end of the span retreats, 0 where the high one does
    fresh: tl.int64,  # pages taken at the other end
    skip: tl.int64,  # pages between that end and the fresh ones
    num_virtual: tl.int64,
    num_physical: tl.int64,
    sub_pools: tl.int64,
    place: tl.int64,  # of the sub-pool in its chain
    CHAINED: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Pair live pages of the band with holes outside it, take the band and these holes away; or refuse. One program."""
    if DEPENDENT:
        wait_for_previous()
    element = sources.dtype.element_ty
    holes = tl.load(state + HOLE_TOP)
    seat = tl.load(state + SEAT)
    watermark = tl.load(state + WATERMARK)
    epoch = tl.load(state + EPOCH)
    low_end = low > 0
    able = (seat >= 0) & (seat < num_physical) & (watermark >= retreat) & (watermark < num_physical)
    seat = tl.where(able, seat, 0)
    watermark = tl.where(able, watermark, 0)
    able = able & (seat + watermark < num_physical) & (holes >= retreat - fresh) & (holes <= watermark)
    _, _, _, _, above, below = read_span(state, chain, sub_pools, place, num_physical, CHAINED)
    able = able & ((skip == 0) | (retreat == watermark)) & (zero() + fresh + skip <= tl.where(low_end, above, below))
    # A call that is refused here finds nothing in the loops below.
    holes = tl.where(able, holes, 0)
    band = tl.where(able, retreat, 0)
    frontier = seat + watermark
    begin = tl.where(low_end, seat + band, seat) + 1
    end = tl.where(low_end, frontier, frontier - band) + 1
    band_begin = tl.where(low_end, seat + 1, end)

    live = zero()
    for first in range(band_begin, band_begin + band, BLOCK):
        pages = first + tl.arange(0, BLOCK).to(tl.int64)
        v = tl.load(p2v + pages, mask=pages < band_begin + band, other=TOMBSTONE).to(tl.int64)
        bound = (v > SINK) & (v < num_virtual)
        rank = live + tl.cumsum(bound.to(tl.int64), 0) - 1
        tl.store(sources + rank, pages.to(element), mask=bound)
        live += tl.sum(bound.to(tl.int64), 0)

    found = zero()
    cut = holes
    top = holes
    while (found < live) & (top > 0):
        cells = top - 1 - tl.arange(0, BLOCK).to(tl.int64)
        page, hole = holes_outside(hole_stack, p2v, cells, cells >= 0, begin, end)
        rank = found + tl.cumsum(hole.to(tl.int64), 0) - 1
        taken = hole & (rank < live)
        tl.store(targets + rank, page.to(element), mask=taken)
        cut = tl.minimum(cut, tl.min(tl.where(taken, cells, cut), 0))
        found += tl.sum(hole.to(tl.int64), 0)
        top -= BLOCK
    # Without fresh pages holes may be left, with some none: as many sources go to them as found no hole.
    enough = able & tl.where(fresh > 0, live - found == fresh, found >= live)

    kept = zero()
    for first in range(0, tl.where(enough, cut, 0), BLOCK):
        cells = first + tl.arange(0, BLOCK).to(tl.int64)
        page, hole = holes_outside(hole_stack, p2v, cells, cells < cut, begin, end)
        rank = kept + tl.cumsum(hole.to(tl.int64), 0) - 1
        # Holes move down by any number of cells: onto cells that another thread of this trip reads, never the next one.
        tl.debug_barrier()
        tl.store(hole_stack + rank, page.to(hole_stack.dtype.element_ty), mask=hole)
        kept += tl.sum(hole.to(tl.int64), 0)

    for first in range(0, tl.where(enough, fresh, 0), BLOCK):
        number = first + tl.arange(0, BLOCK).to(tl.int64)
        page = tl.where(low_end, frontier + skip + 1 + number, seat - skip - number)
        tl.store(targets + found + number, page.to(element), mask=number < fresh)

    # All threads have read the positions and written their picks before one of them writes over either.
    tl.debug_barrier()
    picked = tl.where(enough, live, 0)
    for first in range(picked, retreat, BLOCK):
        lanes = first + tl.arange(0, BLOCK).to(tl.int64)
        nothing = tl.full((BLOCK,), TOMBSTONE, element)
        tl.store(sources + lanes, nothing, mask=lanes < retreat)
        tl.store(targets + lanes, nothing, mask=lanes < retreat)
    tl.store(moves, picked)
    tl.store(state + HOLE_TOP, kept, mask=enough)
    tl.store(state + WATERMARK, watermark - retreat + fresh, mask=enough)
    tl.store(state + SEAT, tl.where(low_end, seat + retreat + skip, seat - fresh - skip), mask=enough)
    tl.store(state + EPOCH, epoch + 1, mask=enough)
    if COUNT:
        count(state, COUNT_MISMATCH, (~enough).to(tl.int64))


@triton.jit
def move_pages_kernel(
    sources: tl.tensor,  # [>= moves], int32 or int64; physical pages
    targets: tl.tensor,  # [>= moves], as sources
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    buffer: tl.tensor,  # [>= num_physical * PAGE_WORDS], int64; aligned to 16 bytes; written; where PAGE_WORDS > 0
    moves: tl.tensor,  # [1], int64
    num_virtual: tl.int64,
    num_physical: tl.int64,
    PAGE_WORDS: tl.constexpr,  # even
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Rebind the pages that move, and copy their words; no page is both a source and a target."""
    if DEPENDENT:
        wait_for_previous()
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    picked = tl.load(moves)
    for first in range(program * BLOCK, picked, programs * BLOCK):
        lanes = first + tl.arange(0, BLOCK)
        source = tl.load(sources + lanes, mask=lanes < picked, other=TOMBSTONE).to(tl.int64)
        target = tl.load(targets + lanes, mask=lanes < picked, other=TOMBSTONE).to(tl.int64)
        known = (source > SINK) & (source < num_physical)
        v = tl.load(p2v + source, mask=known, other=TOMBSTONE).to(tl.int64)
        # By exchanges, as in unbind and bind: a hole that the stack lists twice goes to one page, and the tables stay
        # inverse to each other.
        unbind_ids(v, v2p, p2v, num_virtual, num_physical, False, BLOCK)
        # Another thread may hold the lane for the second half.
        tl.debug_barrier()
        bind_pairs(v, target, known, v2p, p2v, num_virtual, num_physical, BLOCK)
    if PAGE_WORDS > 0:
        # The interpreter takes the element type from the tensor, which is one of bytes.
        words = buffer.to(tl.pointer_type(tl.int64))
        pieces: tl.constexpr = (PAGE_WORDS + BLOCK - 1) // BLOCK
        for piece in range(program, picked * pieces, programs):
            source = tl.load(sources + piece // pieces).to(tl.int64)
            target = tl.load(targets + piece // pieces).to(tl.int64)
            place = piece % pieces * BLOCK + tl.arange(0, BLOCK)
            if (source > SINK) & (source < num_physical) & (target > SINK) & (target < num_physical):
                # Pages begin at multiples of 16 bytes: with the hint two words are one access.
                read_from = tl.multiple_of(words + source * PAGE_WORDS + place, 16)
                write_to = tl.multiple_of(words + target * PAGE_WORDS + place, 16)
                tl.store(write_to, tl.load(read_from, mask=place < PAGE_WORDS), mask=place < PAGE_WORDS)


def plan(spec: CompactSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a compaction: two kernels, the first for tables without a chain and with one."""
    grid = plan_grid(device, options)
    moves = torch.zeros(1, dtype=torch.int64, device=device)
    page_words = spec.page_bytes // WORD_BYTES
    wide = grid.block * WIDER
    block = min(max(triton.next_power_of_2(page_words), WARP), wide) if page_words else grid.block
    pieces = -(-page_words // block)
    picks = [
        Variant(
            pick_moves_kernel,
            [spec.index_dtype, spec.index_dtype, spec.id_dtype, spec.id_dtype, torch.int64, torch.int64, torch.int64],
            {"CHAINED": chained, "COUNT": options.count, "BLOCK": wide},
            device,
        )
        for chained in (False, True)
    ]
    move = Variant(
        move_pages_kernel,
        [spec.id_dtype, spec.id_dtype, spec.index_dtype, spec.index_dtype, torch.int64, torch.int64],
        {"PAGE_WORDS": page_words, "BLOCK": block},
        device,
    )

    def compact(
        tables: PageTables,
        *,
        retreat: int,
        sources: torch.Tensor,
        targets: torch.Tensor,
        buffer: torch.Tensor | None = None,
        side: Side = "high",
        fresh: int = 0,
        skip: int = 0,
    ) -> None:
        v2p, p2v, _, hole_stack, state = tables[:5]
        num_virtual, num_physical = v2p.shape[0] - 1, p2v.shape[0] - 1
        chain, sub_pools, place = chain_of(tables)
        # Neighbours bound fresh pages alone.
        pick = picks[tables.chain is not None and fresh + skip > 0]
        pick(
            1,
            p2v,
            hole_stack,
            sources,
            targets,
            state,
            chain,
            moves,
            retreat,
            int(side == "low"),
            fresh,
            skip,
            num_virtual,
            num_physical,
            sub_pools,
            place,
        )
        programs = min(retreat * pieces, grid.most) if pieces else grid.lanes(retreat)
        held = state if buffer is None else buffer
        move(programs, sources, targets, v2p, p2v, held, moves, num_virtual, num_physical)

    return PlannedLaunch(compact, [*picks, move], device)
