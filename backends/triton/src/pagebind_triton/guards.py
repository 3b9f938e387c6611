"""What kernels are built from: the words as compile-time constants, guarded lengths and pages, counters, the ticket."""

from __future__ import annotations

import triton
import triton.language as tl
from pagebind import operation, words

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # an older Triton, which has no dependent launches
    gdc_wait = None

wait_for_previous = gdc_wait
"""The first statement of every kernel that is launched before the grid ahead of it has ended."""

SINK = tl.constexpr(words.SINK)
TOMBSTONE = tl.constexpr(words.TOMBSTONE)
HOLE = tl.constexpr(words.HOLE)
MAX_LENGTH = tl.constexpr(operation.MAX_LENGTH)

VIRTUAL_TOP = tl.constexpr(words.VIRTUAL_TOP)
HOLE_TOP = tl.constexpr(words.HOLE_TOP)
WATERMARK = tl.constexpr(words.WATERMARK)
EPOCH = tl.constexpr(words.EPOCH)
SEAT = tl.constexpr(words.SEAT)
REACH = tl.constexpr(words.REACH)
CLIPPED = tl.constexpr(words.CLIPPED)
BAD_ROW = tl.constexpr(words.BAD_ROW)
BAD_ID = tl.constexpr(words.BAD_ID)
DOUBLE_FREE = tl.constexpr(words.DOUBLE_FREE)
BAD_FREE = tl.constexpr(words.BAD_FREE)
BAD_BIND = tl.constexpr(words.BAD_BIND)
STARVED = tl.constexpr(words.STARVED)
COUNT_MISMATCH = tl.constexpr(words.COUNT_MISMATCH)
TICKET = tl.constexpr(words.TICKET)
SCRATCH = tl.constexpr(words.SCRATCH)
GROWTH = tl.constexpr(words.GROWTH)
BASE = tl.constexpr(words.BASE)
PAGE_BYTES = tl.constexpr(words.PAGE_BYTES)
UP = tl.constexpr(words.UP)
DOWN = tl.constexpr(words.DOWN)
FLOAT = tl.constexpr(words.FLOAT)
STATE_WORDS = tl.constexpr(words.STATE_WORDS)

TICKET_BITS = tl.constexpr(24)
TICKET_MASK = tl.constexpr(2**24 - 1)
"""Of the ticket's word, the bits that count programs; the others carry a sum."""


@triton.jit
def within(value: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Return a value cut to [low, high], in 64 bits."""
    return tl.minimum(tl.maximum(value.to(tl.int64), low), high)


@triton.jit
def any_length(length: tl.tensor) -> tl.tensor:
    """Return a length or start cut so that no later sum overflows."""
    return within(length, -MAX_LENGTH, MAX_LENGTH)


@triton.jit
def pages_for(tokens: tl.tensor, PAGE_SIZE: tl.constexpr) -> tl.tensor:
    """Return how many pages hold the first `tokens` tokens of a row; tokens >= 0."""
    return (tokens + (PAGE_SIZE - 1)) // PAGE_SIZE


@triton.jit
def page_of(token: tl.tensor, PAGE_SIZE: tl.constexpr) -> tl.tensor:
    """Return the virtual page of a token id; a negative one is a hole, however the machine divides negatives."""
    return tl.where(token < 0, HOLE, token // PAGE_SIZE)


@triton.jit
def share_of_rows(shared: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a program's first row, its part among the `shared` programs of a row, and how many rows on the next is."""
    program = tl.program_id(0)
    shared = shared.to(tl.int32)
    return (program // shared).to(tl.int64), (program % shared).to(tl.int64), tl.num_programs(0) // shared


@triton.jit
def zero() -> tl.tensor:
    """Return a 0 that stays int64 through a loop, and makes a product so where the interpreter narrows ints."""
    return tl.full((), 0, tl.int64)


@triton.jit
def zeros(BLOCK: tl.constexpr) -> tl.tensor:
    """Return a counter for each lane of a block, int64; summed once, when the program is done."""
    return tl.zeros((BLOCK,), tl.int64)


@triton.jit
def few(BLOCK: tl.constexpr) -> tl.tensor:
    """Return a counter for each lane of a block, int32: of what a program's lanes do, which are fewer than 2**31."""
    return tl.zeros((BLOCK,), tl.int32)


@triton.jit
def count(
    state: tl.tensor,  # [32], int64
    WORD: tl.constexpr,
    faults: tl.tensor,
) -> None:
    """Add to a counter; a call without faults writes nothing."""
    tl.atomic_add(state + WORD, faults, mask=faults > 0, sem="relaxed")


@triton.jit
def count_lanes(
    state: tl.tensor,  # [32], int64
    WORD: tl.constexpr,
    faults: tl.tensor,  # [BLOCK], mask
) -> None:
    """Add lanes to a counter one by one: faults are rare, and without a sum nobody waits for other threads."""
    tl.atomic_add(state + WORD + faults.to(tl.int32) * 0, faults.to(tl.int64), mask=faults, sem="relaxed")


@triton.jit
def count_mismatch(
    state: tl.tensor,  # [32], int64
    expected: tl.tensor,  # the host's count; negative where it has none
    found: tl.tensor,
) -> None:
    """Count a call whose page count on the device is not the host's."""
    count(state, COUNT_MISMATCH, ((expected >= 0) & (expected != found)).to(tl.int64))


@triton.jit
def is_last(
    state: tl.tensor,  # [32], int64
    programs: tl.tensor,
) -> tl.tensor:
    """Return whether every other program of the launch has come here before; what they wrote is then visible.

    Nobody waits. The last one has to put the ticket back to 0.
    """
    last, _total = is_last_of(state, programs, zero())
    return last


@triton.jit
def is_last_of(
    state: tl.tensor,  # [32], int64
    programs: tl.tensor,
    part: tl.tensor,  # int64; from 0 to 2**39
) -> tuple[tl.tensor, tl.tensor]:
    """Return what `is_last` does, and to the last program the sum of all parts: the ticket carries it along."""
    # All threads have read the tops and written their pages before one of them draws the ticket, or writes new tops.
    tl.debug_barrier()
    last = programs == 1
    total = part
    if programs > 1:
        ticket = tl.atomic_add(state + TICKET, (part << TICKET_BITS) + 1, sem="acq_rel")
        last = (ticket & TICKET_MASK) == programs - 1
        total += ticket >> TICKET_BITS
    return last, total
