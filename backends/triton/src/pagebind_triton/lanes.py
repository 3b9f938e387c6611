"""Lanes of a batch as kernels read them: numbers that come in pairs, lengths cut to what fits, rows that exist."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pagebind.operation import INT32_MAX

from pagebind_triton.guards import within

MOST = tl.constexpr(INT32_MAX)


def pair(low: int, high: int) -> int:
    """Return two numbers in an int64, the first of [0, 2**31), the second of 32 bits with a sign.

    A kernel's arguments come by lines of 64 bytes, and each line takes as long as a load.
    """
    return (high << 32) + low


def last_id_of(v2p: torch.Tensor) -> int:
    """Return the highest id of a table, as far as an int32 can name it; -1 where it has none."""
    return min(v2p.shape[0] - 2, INT32_MAX)


@triton.jit
def low_half(two: tl.tensor) -> tl.tensor:
    """Return the first of two numbers that `pair` put together, int32."""
    return two.to(tl.int64).to(tl.int32)


@triton.jit
def high_half(two: tl.tensor) -> tl.tensor:
    """Return the second of two numbers that `pair` put together, int32."""
    return (two.to(tl.int64) >> 32).to(tl.int32)


@triton.jit
def extent(
    length: tl.tensor,  # tokens; one lane's, or those of several
    start: tl.tensor,  # tokens
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,  # tokens that fit both tables
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the first column of a lane and the one past its last, int32, and whether its length was cut."""
    # Cut so that the sum with the delta lies in [0, fitting].
    least = -seq_len_delta.to(tl.int64)
    most = fitting.to(tl.int64) + least
    if length.dtype == tl.int64:
        cut = within(length, least, most)
        tokens = cut - least
    else:
        # The sum is below 2**32: 32 bits are enough.
        least = least.to(tl.int32)
        cut = tl.maximum(tl.minimum(length, tl.minimum(most, MOST).to(tl.int32)), least)
        tokens = cut.to(tl.uint32, bitcast=True) - least.to(tl.uint32)
    last = tokens
    if not TOKEN_GRAIN:
        last = tokens // PAGE_SIZE + (tokens % PAGE_SIZE != 0).to(tokens.dtype)
    first = last * 0
    if WINDOWED:
        first = tl.maximum(start, 0).to(tokens.dtype)
        first = tl.minimum(first if TOKEN_GRAIN else first // PAGE_SIZE, last)
    return first.to(tl.int32), last.to(tl.int32), cut != length


@triton.jit
def has_row(row: tl.tensor, num_rows: tl.tensor) -> tl.tensor:
    """Return whether a request table has a row, int32 or int64; it may have more than 32 bits name."""
    highest = num_rows.to(tl.int64) - 1
    if row.dtype == tl.int32:
        highest = tl.minimum(highest, MOST).to(tl.int32)
    return (row >= 0) & (row <= highest)


@triton.jit
def open_lane(
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    lane: tl.tensor,  # one, or several
    listed: tl.tensor,  # mask; a lane that is not is empty
    num_rows: tl.tensor,
    seq_len_delta: tl.tensor,
    fitting: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return a lane's row, int64, its first column and the one past its last, int32, and if it is clipped, or bad."""
    row = tl.load(req_rows + lane, mask=listed, other=0)
    length = tl.load(seq_lens + lane, mask=listed, other=0)
    start = length
    if WINDOWED:
        start = tl.load(starts + lane, mask=listed, other=0)
    good = listed & has_row(row, num_rows)
    first, last, clipped = extent(length, start, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED)
    return tl.where(good, row, 0).to(tl.int64), first, tl.where(good, last, first), good & clipped, listed & (good == 0)
