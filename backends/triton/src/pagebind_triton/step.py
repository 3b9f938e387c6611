"""What a decode step does to a block of lanes: reads them, looks their last pages up, binds what they take, writes."""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.bind import swap_tombstones
from pagebind_triton.guards import HOLE, SINK, TOMBSTONE, within


@triton.jit
def read_lanes(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    lanes: tl.tensor,  # [BLOCK], int64
    end: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the row and the length of each lane below `end`; of others a hole and 0."""
    listed = lanes < end
    return tl.load(req_rows + lanes, mask=listed, other=HOLE), tl.load(seq_lens + lanes, mask=listed, other=0)


@triton.jit
def open_lanes(
    row: tl.tensor,  # [BLOCK], int32 or int64
    length: tl.tensor,  # [BLOCK], int32 or int64; tokens
    num_rows: tl.tensor,
    room: tl.tensor,  # tokens of a row; no more than a length holds
    PAGE_SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return a lane's row, token, its page and offset there, int64; whether it fits, has a good row, a bad length."""
    row = row.to(tl.int64)
    good = (row >= 0) & (row < num_rows)
    token = within(length, 0, room)
    # 32 bits, where they hold a token, divide by fewer instructions.
    if length.dtype == tl.int64:
        page = (token.to(tl.uint64) // PAGE_SIZE).to(tl.int64)
    else:
        page = (token.to(tl.uint32) // PAGE_SIZE).to(tl.int64)
    full = token == room
    cut = full | (token != length.to(tl.int64))
    return tl.where(good, row, 0), token, page, token - page * PAGE_SIZE, good & ~full, good, cut


@triton.jit
def last_page(
    cells: tl.tensor,  # [BLOCK], int32; where each lane's row begins
    token: tl.tensor,  # [BLOCK], int64
    page: tl.tensor,  # [BLOCK], int64
    goes_on: tl.tensor,  # [BLOCK], mask; nothing is read elsewhere
    PAGE_SIZE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
) -> tl.tensor:
    """Return the virtual page that the row names for the token before, int32, or a hole."""
    cell = token - 1 if TOKEN_FORM else page
    named = tl.load(cells + cell, mask=goes_on, other=HOLE)
    last = named
    if TOKEN_FORM:
        last = (named.to(tl.uint32) // PAGE_SIZE).to(tl.int32)
    return tl.where(named < 0, HOLE, last)


@triton.jit
def last_physical(
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    last: tl.tensor,  # [BLOCK], int32; as last_page returns it
    num_virtual: tl.tensor,
) -> tl.tensor:
    """Return the physical page of a row's last one, or a tombstone."""
    return tl.load(v2p + last, mask=(last >= 0) & (last < num_virtual), other=TOMBSTONE)


@triton.jit
def bind_taken(
    virtual: tl.tensor,  # [BLOCK], int64
    physical: tl.tensor,  # [BLOCK], int64
    wanted: tl.tensor,  # [BLOCK], mask
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64; written
    p2v: tl.tensor,  # [num_physical + 1], int32 or int64; written
    num_virtual: tl.tensor,
    num_physical: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Bind wanted pairs off the stacks that may be bound; return the mask of those that were.

    No two lanes have the same page unless the stacks are wrong. So both rows are taken at once, where `bind_pairs`
    waits for the first; one that was taken alone is given back.
    """
    able = wanted & (virtual > SINK) & (virtual < num_virtual) & (physical > SINK) & (physical < num_physical)
    # A pair that is bound already does not keep its other half from another lane, not even for a moment.
    page_before = tl.load(v2p + virtual, mask=able, other=SINK)
    id_before = tl.load(p2v + physical, mask=able, other=SINK)
    able = able & (page_before == TOMBSTONE) & (id_before == TOMBSTONE)
    tl.debug_barrier()  # all threads have read what they read of v2p
    page_is_ours = swap_tombstones(v2p, virtual, physical, able, num_virtual, BLOCK)
    id_is_ours = swap_tombstones(p2v, physical, virtual, able, num_physical, BLOCK)
    bound = page_is_ours & id_is_ours
    tombstones = tl.full((BLOCK,), TOMBSTONE, v2p.dtype.element_ty)
    tl.atomic_xchg(v2p + virtual, tombstones, mask=page_is_ours & ~bound, sem="relaxed")
    tl.atomic_xchg(p2v + physical, tombstones, mask=id_is_ours & ~bound, sem="relaxed")
    return bound


@triton.jit
def write_lanes(
    cells: tl.tensor,  # [BLOCK], int32; where each lane's row begins; rows are written
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens; written
    slots: tl.tensor,  # [bs], int32 or int64; written
    table: tl.tensor,  # [>= bs, width], int32 or int64; written, with APPENDS
    token_ids: tl.tensor,  # [bs], int32 or int64; written, with EMITS
    lanes: tl.tensor,  # [BLOCK], int64
    token: tl.tensor,  # [BLOCK], int64
    page: tl.tensor,  # [BLOCK], int64
    offset: tl.tensor,  # [BLOCK], int64
    listed: tl.tensor,  # [BLOCK], mask
    fits: tl.tensor,  # [BLOCK], mask
    v: tl.tensor,  # [BLOCK], int64; virtual page of the token, or a hole
    p: tl.tensor,  # [BLOCK], int64; its physical page; negative where it has none
    done: tl.tensor,  # [BLOCK], mask; a lane that takes a page got it
    table_stride: tl.tensor,
    width: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    SCALE: tl.constexpr,
    PER_PAGE: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    APPENDS: tl.constexpr,
    EMITS: tl.constexpr,
) -> tl.tensor:
    """Write a lane's slot, id, cells and length; return the mask of those whose column lies past the table's width."""
    slot = tl.where(fits & (p >= 0), p * SCALE + offset, SINK)
    token_id = tl.where(fits & (v >= 0), v * PAGE_SIZE + offset, HOLE)
    tl.store(slots + lanes, slot.to(slots.dtype.element_ty), mask=listed)
    if EMITS:
        tl.store(token_ids + lanes, token_id.to(token_ids.dtype.element_ty), mask=listed)
    takes = fits & (offset == 0)
    if TOKEN_FORM:
        tl.store(cells + token, token_id.to(tl.int32), mask=fits)
    else:
        tl.store(cells + page, v.to(tl.int32), mask=takes)
    served = fits & done
    tl.store(seq_lens + lanes, (token + 1).to(seq_lens.dtype.element_ty), mask=served)
    past = fits & ~fits
    if APPENDS:
        column = token if TOKEN_GRAIN else page
        past = column >= width
        wrote = served & ~past
        entry = slot
        if not TOKEN_GRAIN:
            entry = p * PER_PAGE
            wrote = wrote & takes
        tl.store(table + lanes * table_stride + column, entry.to(table.dtype.element_ty), mask=wrote)
    return past


@triton.jit
def tell_none(
    new_ids: tl.tensor,  # [told], int32 or int64; written
    new_pages: tl.tensor,  # [told], as new_ids; written
    asked: tl.tensor,  # pages
    told: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write a hole past the pages that were asked for; the programs share them out."""
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, told, step):
        number = first + tl.arange(0, BLOCK).to(tl.int64)
        none = tl.full((BLOCK,), HOLE, new_ids.dtype.element_ty)
        tl.store(new_ids + number, none, mask=(number >= asked) & (number < told))
        tl.store(new_pages + number, none, mask=(number >= asked) & (number < told))
