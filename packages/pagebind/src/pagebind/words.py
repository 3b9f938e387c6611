"""The words every other file uses: sentinels, the layout of a state block, and the tables of one sub-pool."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from pagebind.errors import InvalidArgument

SINK = 0
"""Page 0 of every sub-pool: reserved, never handed out, holds no data; row 0 of both tables maps 0 to 0."""

TOMBSTONE = -1
"""What a table holds for an id that is not bound; also its last row, past every id."""

HOLE = -1
"""What a request table holds where no page is; any negative id reads like it."""

API_VERSION = 2
"""Version of the contract between core and backends; a backend made for another one is refused."""

STATE_WORDS = 32
"""Length of a state block: int64, on the device, one for each sub-pool."""

# The state block. Words 0 to 5 are positions, 8 to 15 fault counters, 16 to 23 scratch of kernels, zero between
# launches, 24 to 26 the sub-pool's place in its buffer, which only its maker writes; the rest is free. Kernels read
# positions at launch and write them back in stream order; nothing else holds them. CONTRIBUTING.md says where else a
# new word has to be named.
VIRTUAL_TOP = 0  # ids on the virtual stack
HOLE_TOP = 1  # pages on the hole stack
WATERMARK = 2  # pages in the span: span = live + holes
EPOCH = 3  # bumped by a free of page ids: tables built before it may be stale
SEAT = 4  # the page below the span, which is the pages seat + 1 to seat + watermark
REACH = 5  # pages that the span of an end may grow to under a lease: its neighbours stay outside of them

CLIPPED = 8  # lanes whose length or room was cut
BAD_ROW = 9  # lanes whose row lies outside the request table
BAD_ID = 10  # cells read with an id past the table
DOUBLE_FREE = 11  # lanes that free an unbound id, or an id another lane of the call frees
BAD_FREE = 12  # lanes that free the sink, an id past the table, or an id whose page is not one
BAD_BIND = 13  # lanes that bind the sink, an id or page outside the tables, or one that is bound
STARVED = 14  # pages asked for and not found
COUNT_MISMATCH = 15  # calls whose page count on the device is not the host's

TICKET = 16  # scratch of kernels that hand work to their last block; zero between launches
SCRATCH = 17  # 17 to 23: more of the same; zero between launches

GROWTH = 24  # UP, DOWN or FLOAT
BASE = 25  # bytes; where page 0 lies in the buffer that the sub-pools of a chain share
PAGE_BYTES = 26  # bytes of a page in it

UP = 0
"""Growth of a sub-pool whose span grows to higher pages."""

DOWN = 1
"""Growth of a sub-pool whose span grows to lower pages."""

FLOAT = 2
"""Growth of a sub-pool between two others: to higher pages as long as there is room, then to lower ones."""

COUNTERS: dict[str, int] = {
    "clipped": CLIPPED,
    "bad_row": BAD_ROW,
    "bad_id": BAD_ID,
    "double_free": DOUBLE_FREE,
    "bad_free": BAD_FREE,
    "bad_bind": BAD_BIND,
    "starved": STARVED,
    "count_mismatch": COUNT_MISMATCH,
}
"""Counter name -> word of the state block."""

Form = Literal["token", "page"]
"""Unit of a request table's cells, of a read table's cells or of a stream's items."""

Fill = Literal["prefix", "sink"]
"""What a read table holds outside a row's valid extent: what it held before, or 0."""


class PageTables(NamedTuple):
    """Device tensors of one sub-pool; `I` is the index dtype, int32 or int64. Both counts include the sink.

    Invariants, for 0 < v < num_virtual and 0 < p < num_physical:
    `v2p[v] == p` if and only if `p2v[p] == v`; `v2p[0] == p2v[0] == 0`; `v2p[-1] == p2v[-1] == -1`;
    `watermark == live + hole_top`; ids on the stacks are not bound; bound pages and holes lie in the span, which is
    `seat < p <= seat + watermark`. A sub-pool that borrows the ids of another one has nothing on its virtual stack.
    """

    v2p: torch.Tensor  # [num_virtual + 1], I: virtual page -> physical page
    p2v: torch.Tensor  # [num_physical + 1], I: physical page -> virtual page
    virtual_stack: torch.Tensor  # [num_virtual], I: free virtual ids below VIRTUAL_TOP
    hole_stack: torch.Tensor  # [num_physical], I: freed physical pages below HOLE_TOP
    state: torch.Tensor  # [STATE_WORDS], int64
    chain: torch.Tensor | None = None  # [sub-pools, STATE_WORDS], int64; who shares the buffer, by rising address
    place: int = 0  # `state` is `chain[place]`


def new_state(device: torch.device | str) -> torch.Tensor:
    """Return a zeroed state block, int64 `[STATE_WORDS]`, on `device`."""
    return torch.zeros(STATE_WORDS, dtype=torch.int64, device=device)


def new_tables(
    num_virtual: int,
    num_physical: int,
    device: torch.device | str,
    index_dtype: torch.dtype = torch.int32,
    *,
    borrows: bool = False,
    chain: torch.Tensor | None = None,
    place: int = 0,
) -> PageTables:
    """Return the tables of an empty sub-pool: nothing bound, every virtual id on the stack, id 1 on top.

    `num_virtual` and `num_physical` count pages and include the sink. One that `borrows` its ids has none on the stack.
    With a `chain` its block is row `place` of it, which holds the growth, base, page bytes and seat already.
    """
    most = torch.iinfo(index_dtype).max
    for name, num in (("num_virtual", num_virtual), ("num_physical", num_physical)):
        if isinstance(num, bool) or not isinstance(num, int) or not 1 <= num <= most:
            raise InvalidArgument(f"{name} is {num!r}; it must be an int from 1, the sink, to {most} for {index_dtype}")

    def table(num: int) -> torch.Tensor:
        cells = torch.full((num + 1,), TOMBSTONE, dtype=index_dtype)
        cells[SINK] = SINK
        return cells.to(device)

    virtual_stack = torch.zeros(num_virtual, dtype=index_dtype)
    state = new_state(device) if chain is None else chain[place]
    if not borrows:
        virtual_stack[: num_virtual - 1] = torch.arange(num_virtual - 1, 0, -1, dtype=index_dtype)
        state[VIRTUAL_TOP].fill_(num_virtual - 1)
    return PageTables(
        v2p=table(num_virtual),
        p2v=table(num_physical),
        virtual_stack=virtual_stack.to(device),
        hole_stack=torch.zeros(num_physical, dtype=index_dtype, device=device),
        state=state,
        chain=chain,
        place=place,
    )


def read_counters(state: torch.Tensor) -> dict[str, int]:
    """Return every fault counter of a state block by name. Waits for the device."""
    words = state.tolist()
    return {name: words[word] for name, word in COUNTERS.items()}
