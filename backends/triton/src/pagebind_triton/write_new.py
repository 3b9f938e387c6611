"""The last launch of extend: programs share out rows and write slots and ids; then they tell what was taken."""

from __future__ import annotations

import triton
import triton.language as tl

from pagebind_triton.guards import HOLE, SINK, pages_for, share_of_rows, wait_for_previous, within


@triton.jit
def tell_new(
    offsets: tl.tensor,  # [>= 1], int64; pages asked for
    ids: tl.tensor,  # [room], int32 or int64; virtual pages taken
    pages: tl.tensor,  # [room], as ids; their physical pages
    new_ids: tl.tensor,  # [told], int32 or int64; written
    new_pages: tl.tensor,  # [told], as new_ids; written
    room: tl.tensor,
    told: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the pages that were taken, as far as the caller wants to know them; the programs share them out."""
    element = new_ids.dtype.element_ty
    asked = tl.load(offsets)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, told, step):
        number = first + tl.arange(0, BLOCK).to(tl.int64)
        # Past the room nothing was found: the sink. Past what was asked for there is no page.
        taken = number < tl.minimum(asked, room)
        v = tl.where(number < asked, tl.load(ids + number, mask=taken, other=SINK).to(element), HOLE)
        p = tl.where(number < asked, tl.load(pages + number, mask=taken, other=SINK).to(element), HOLE)
        tl.store(new_ids + number, v, mask=number < told)
        tl.store(new_pages + number, p, mask=number < told)


@triton.jit
def write_new_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32; written
    req_rows: tl.tensor,  # [bs], int32 or int64
    prefix_lens: tl.tensor,  # [bs], int32 or int64; tokens
    indptr: tl.tensor,  # [bs + 1], int32 or int64; tokens
    offsets: tl.tensor,  # [>= 1 + bs], int64; pages
    held: tl.tensor,  # [>= bs], int64
    held_physical: tl.tensor,  # [>= bs], int64
    ids: tl.tensor,  # [room], int32 or int64; virtual pages taken
    pages: tl.tensor,  # [room], as ids; their physical pages
    slots: tl.tensor,  # [capacity], int32 or int64; written
    token_ids: tl.tensor,  # [capacity], int32 or int64; written, with EMITS
    new_ids: tl.tensor,  # [told], as token_ids; the same
    new_pages: tl.tensor,  # [told], as token_ids; the same
    bs: tl.int64,
    num_rows: tl.int64,
    tokens: tl.int64,
    request_stride: tl.int64,
    capacity: tl.int64,
    room: tl.int64,
    told: tl.int64,  # pages
    shared: tl.int64,  # programs to a lane
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    EMITS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write the new tokens' slots, and their ids or the new pages' ones; tell what was taken."""
    if DEPENDENT:
        wait_for_previous()
    first_lane, part, step = share_of_rows(shared)
    for lane in range(first_lane, bs, step):
        row = tl.load(req_rows + lane).to(tl.int64)
        good = (row >= 0) & (row < num_rows)
        low = within(tl.load(indptr + lane), 0, capacity)
        high = within(tl.load(indptr + lane + 1), 0, capacity)
        prefix = within(tl.load(prefix_lens + lane), 0, tokens)
        new = tl.where(good, within(high - low, 0, tokens - prefix), 0)
        offset = tl.load(offsets + 1 + lane)
        at_hand = tl.load(held + lane)
        at_hand_physical = tl.load(held_physical + lane)
        first_new = pages_for(prefix, PAGE_SIZE)
        cells = request_table + row * request_stride
        for begin in range(part * BLOCK, high - low, shared * BLOCK):
            item = begin + tl.arange(0, BLOCK)
            token = prefix + item
            page = token // PAGE_SIZE
            place = token % PAGE_SIZE
            live = item < new
            fresh = live & (page >= first_new)
            taken = offset + (page - first_new)
            # Past the room nothing was found: the sink.
            v = tl.load(ids + taken, mask=fresh & (taken < room), other=SINK).to(tl.int64)
            p = tl.load(pages + taken, mask=fresh & (taken < room), other=SINK).to(tl.int64)
            v = tl.where(fresh, v, at_hand)
            p = tl.where(fresh, p, at_hand_physical)
            slot = tl.where(live & (p >= 0), p * MULTIPLIER * PAGE_SIZE + place, SINK)
            tl.store(slots + low + item, slot.to(slots.dtype.element_ty), mask=item < high - low)
            token_id = tl.where(live & (v >= 0), v * PAGE_SIZE + place, HOLE)
            if EMITS:
                tl.store(token_ids + low + item, token_id.to(token_ids.dtype.element_ty), mask=item < high - low)
            if TOKEN_FORM:
                tl.store(cells + token, token_id.to(tl.int32), mask=live)
            else:
                tl.store(cells + page, v.to(tl.int32), mask=fresh & (place == 0))
    if EMITS:
        tell_new(offsets, ids, pages, new_ids, new_pages, room, told, BLOCK)
