"""compact: one program picks the moves, then all programs rebind and copy: two launches, whatever moves.

    band [6, 8]      6  7  8           live, ascending: sources
                        |  |
    hole stack     [ 2  6  4 ]         read from the top until every source has a hole below the band: targets
                     ^- cut            the cells below the last target keep their holes below the band, in order

So each cell of the band and of the hole stack is read about once, and a refusal is known before either is written. The
number of moves stays on the device; the second launch is sized for the retreat.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import LaunchOptions
from pagebind.ops.compact import CompactSpec
from pagebind.words import PageTables

from pagebind_triton.bind import bind_pairs
from pagebind_triton.guards import COUNT_MISMATCH, EPOCH, HOLE_TOP, SINK, TOMBSTONE, WATERMARK, count, zero
from pagebind_triton.launch import WARP, PlannedLaunch, Variant, plan_grid
from pagebind_triton.unbind import unbind_ids

WORD_BYTES = 8
"""Bytes of the words that pages are copied in; a GPU's thread moves two of them at once where a page has plenty."""

WIDER = 4
"""Times a program's usual cells: one program hides latency by width alone, and a page's words are plenty."""


@triton.jit
def holes_below(
    hole_stack: tl.tensor,  # [num_physical], int32 or int64
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64
    cells: tl.tensor,  # [BLOCK], int64
    listed: tl.tensor,  # [BLOCK], mask; cells are inside the stack
    last: tl.tensor,  # page; the watermark after the retreat
) -> tuple[tl.tensor, tl.tensor]:
    """Return the pages in cells of the hole stack, and the mask of those that are unbound and outside the band."""
    page = tl.load(hole_stack + cells, mask=listed, other=SINK).to(tl.int64)
    inside = (page > SINK) & (page <= last)
    holder = tl.load(p2v + page, mask=inside, other=SINK)
    return page, inside & (holder == TOMBSTONE)


@triton.jit
def pick_moves_kernel(
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64
    hole_stack: tl.tensor,  # [num_physical], int32 or int64; written
    sources: tl.tensor,  # [>= retreat], int32 or int64; physical pages; written
    targets: tl.tensor,  # [>= retreat], as sources; written
    state: tl.tensor,  # [32], int64; written
    moves: tl.tensor,  # [1], int64; written
    retreat: tl.int64,  # pages
    num_virtual: tl.int64,
    num_physical: tl.int64,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Pair live pages of the band with holes outside it, take the band and these holes away; or refuse. One program."""
    element = sources.dtype.element_ty
    holes = tl.load(state + HOLE_TOP)
    watermark = tl.load(state + WATERMARK)
    able = (holes >= retreat) & (holes <= num_physical) & (watermark >= retreat) & (watermark < num_physical)
    # A call that is refused here finds nothing in the loops below.
    holes = tl.where(able, holes, 0)
    watermark = tl.where(able, watermark, 0)
    last = tl.where(able, watermark - retreat, 0)

    live = zero()
    for first in range(last + 1, watermark + 1, BLOCK):
        pages = first + tl.arange(0, BLOCK).to(tl.int64)
        v = tl.load(p2v + pages, mask=pages <= watermark, other=TOMBSTONE).to(tl.int64)
        bound = (v > SINK) & (v < num_virtual)
        place = live + tl.cumsum(bound.to(tl.int64), 0) - 1
        tl.store(sources + place, pages.to(element), mask=bound)
        live += tl.sum(bound.to(tl.int64), 0)

    found = zero()
    cut = holes
    top = holes
    while (found < live) & (top > 0):
        cells = top - 1 - tl.arange(0, BLOCK).to(tl.int64)
        page, hole = holes_below(hole_stack, p2v, cells, cells >= 0, last)
        place = found + tl.cumsum(hole.to(tl.int64), 0) - 1
        taken = hole & (place < live)
        tl.store(targets + place, page.to(element), mask=taken)
        cut = tl.minimum(cut, tl.min(tl.where(taken, cells, cut), 0))
        found += tl.sum(hole.to(tl.int64), 0)
        top -= BLOCK
    enough = able & (found >= live)

    kept = zero()
    for first in range(0, tl.where(enough, cut, 0), BLOCK):
        cells = first + tl.arange(0, BLOCK).to(tl.int64)
        page, hole = holes_below(hole_stack, p2v, cells, cells < cut, last)
        place = kept + tl.cumsum(hole.to(tl.int64), 0) - 1
        # Holes move down by any number of cells: onto cells that another thread of this trip reads, never the next one.
        tl.debug_barrier()
        tl.store(hole_stack + place, page.to(hole_stack.dtype.element_ty), mask=hole)
        kept += tl.sum(hole.to(tl.int64), 0)

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
    tl.store(state + WATERMARK, last, mask=enough)
    tl.store(state + EPOCH, tl.load(state + EPOCH) + 1, mask=enough)
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
) -> None:
    """Rebind the pages that move, and copy their words; no page is both a source and a target."""
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
        unbind_ids(v, v2p, p2v, num_virtual, num_physical, BLOCK)
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
    """Plan a compaction: two kernels, one variant each."""
    grid = plan_grid(device, options)
    moves = torch.zeros(1, dtype=torch.int64, device=device)
    page_words = spec.page_bytes // WORD_BYTES
    wide = grid.block * WIDER
    block = min(max(triton.next_power_of_2(page_words), WARP), wide) if page_words else grid.block
    pieces = -(-page_words // block)
    pick = Variant(
        pick_moves_kernel,
        [spec.index_dtype, spec.index_dtype, spec.id_dtype, spec.id_dtype, torch.int64, torch.int64],
        {"COUNT": options.count, "BLOCK": wide},
        device,
    )
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
    ) -> None:
        v2p, p2v, _, hole_stack, state = tables
        num_virtual, num_physical = v2p.shape[0] - 1, p2v.shape[0] - 1
        pick(1, p2v, hole_stack, sources, targets, state, moves, retreat, num_virtual, num_physical)
        programs = min(retreat * pieces, grid.most) if pieces else grid.lanes(retreat)
        held = state if buffer is None else buffer
        move(programs, sources, targets, v2p, p2v, held, moves, num_virtual, num_physical)

    return PlannedLaunch(compact, [pick, move], device)
