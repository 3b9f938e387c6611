"""Calls of the extended operations and what they must do, worked out by hand: values, counters, the ids at fault.

A sub-pool of 6 virtual and 7 physical pages: 1 -> 4, 2 -> 2, 3 -> 5 are bound, 4 and 5 free (5 on top), pages 3 and 1
are holes (1 on top), page 6 lies above the frontier.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pagebind.operation import Operation
from pagebind.ops import (
    ADVANCE,
    ALLOC,
    ASSIGN,
    EXTEND,
    FREE,
    READ_STREAM,
    RELEASE,
    TRUNCATE,
    AdvanceSpec,
    AllocSpec,
    AssignSpec,
    ExtendSpec,
    FreeSpec,
    ReadStreamSpec,
    ReleaseSpec,
    TruncateSpec,
)
from pagebind.words import HOLE_TOP, VIRTUAL_TOP, WATERMARK, PageTables, new_state

V2P = [0, 4, 2, 5, -1, -1, -1]
P2V = [0, -1, 2, -1, 1, 3, -1, -1]


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def sevens(*shape: int) -> torch.Tensor:
    return torch.full(shape, 7, dtype=torch.int32)


def sub_pool(v2p=V2P, p2v=P2V, free=(4, 5), holes=(3, 1), watermark=5, index_dtype=torch.int32) -> PageTables:
    def stack(ids, size):
        return ints(*ids, *[0] * (size - len(ids)), dtype=index_dtype)

    state = new_state("cpu")
    state[VIRTUAL_TOP], state[HOLE_TOP], state[WATERMARK] = len(free), len(holes), watermark
    return PageTables(
        ints(*v2p, dtype=index_dtype),
        ints(*p2v, dtype=index_dtype),
        stack(free, len(v2p) - 1),
        stack(holes, len(p2v) - 1),
        state,
    )


def sub_pool_after(tables: PageTables) -> dict[str, list[int]]:
    top, holes, watermark, epoch = tables.state[:4].tolist()
    return {
        "v2p": tables.v2p.tolist(),
        "p2v": tables.p2v.tolist(),
        "free": tables.virtual_stack[:top].tolist(),
        "holes": tables.hole_stack[:holes].tolist(),
        "watermark_and_epoch": [watermark, epoch],
    }


@dataclass(frozen=True)
class Case:
    """`build()` gives the arguments, by name; `after` what tensors hold then, `pool` what the sub-pool does."""

    name: str
    operation: Operation[Any, Any]
    spec: Any
    build: Callable[[], dict[str, Any]]
    after: Mapping[str, list[Any]]
    pool: Mapping[str, list[int]] = field(default_factory=dict)
    faults: Mapping[str, list[int]] = field(default_factory=dict)
    """Counter -> the ids at fault; what a call counts is how many there are."""

    def state(self, arguments: Mapping[str, Any]) -> torch.Tensor:
        return arguments["tables"].state if "tables" in arguments else arguments["state"]


def alloc(n, **pool):
    return lambda: {"tables": sub_pool(**pool), "ids": sevens(n), "pages": sevens(n)}


def free(*ids):
    return lambda: {"ids": ints(*ids), "tables": sub_pool(), "freed": sevens(len(ids))}


def rows(*cells):
    return torch.tensor(cells, dtype=torch.int32)


CASES = [
    Case(
        "alloc takes holes, the last freed first",
        ALLOC,
        AllocSpec(max_items=4),
        alloc(2),
        {"ids": [5, 4], "pages": [1, 3]},
        {"v2p": [0, 4, 2, 5, 3, 1, -1], "p2v": [0, 5, 2, 4, 1, 3, -1, -1], "free": [], "holes": []},
    ),
    Case(
        "alloc grows the frontier behind the holes",
        ALLOC,
        AllocSpec(max_items=4),
        alloc(2, holes=(3,)),
        {"ids": [5, 4], "pages": [3, 6]},
        {"p2v": [0, -1, 2, 5, 1, 3, 4, -1], "watermark_and_epoch": [6, 0], "holes": []},
    ),
    Case(
        "alloc gives lanes that starve the sink",
        ALLOC,
        AllocSpec(max_items=4),
        alloc(4),
        {"ids": [5, 4, 0, 0], "pages": [1, 3, 0, 0]},
        {"free": [], "holes": []},
        {"starved": [2, 3]},
    ),
    Case(
        "alloc drops a page that was bound by hand, and takes it off the stack",
        ALLOC,
        AllocSpec(max_items=4, index_dtype=torch.int64),
        alloc(2, holes=(3, 2), index_dtype=torch.int64),
        {"ids": [0, 4], "pages": [0, 3]},
        {"v2p": [0, 4, 2, 5, 3, -1, -1], "free": [], "holes": []},
        {"bad_bind": [5]},
    ),
    Case(
        "alloc clamps positions that are spoiled",
        ALLOC,
        AllocSpec(max_items=4),
        alloc(2, free=(-9, 4), holes=(99, 3)),
        {"ids": [4, 0], "pages": [3, 0]},
        {"free": [], "holes": []},
        {"bad_bind": [-9]},
    ),
    Case(
        "free pushes what it serves in lane order",
        FREE,
        FreeSpec(max_items=8),
        free(3, -1, 1),
        {"freed": [5, -1, 4]},
        {"v2p": [0, -1, 2, -1, -1, -1, -1], "free": [4, 5, 3, 1], "holes": [3, 1, 5, 4], "watermark_and_epoch": [5, 1]},
    ),
    Case(
        "free drops the sink, ids past the table, unbound ids and repeats",
        FREE,
        FreeSpec(max_items=8),
        free(0, 6, 2**31 - 1, 4, 2, 2),
        {"freed": [-1, -1, -1, -1, 2, -1]},
        {"free": [4, 5, 2], "holes": [3, 1, 2]},
        {"bad_free": [0, 6, 2**31 - 1], "double_free": [4, 2]},
    ),
    Case(
        "extend goes on with the last page, then takes new ones, by token",
        EXTEND,
        ExtendSpec(max_bs=4, max_tokens=16, page_size=2, num_virtual=6, num_physical=7, multiplier=3),
        lambda: {
            "request_table": rows([4, -1, -1, -1, -1], [2, -1, -1, -1, -1]),
            "req_rows": ints(1, 0),
            "prefix_lens": ints(1, 0),
            "indptr": ints(0, 2, 5),
            "tables": sub_pool(),
            "slots": sevens(6),
            "pages": 3,
        },
        # Row 1 names token 2, of page 1 at 4; its second token begins page 5 at 1. Row 0 gets page 4 at 3, then none.
        {"slots": [25, 6, 18, 19, 0, 7], "request_table": [[8, 9, 0, -1, -1], [2, 3, 10, -1, -1]]},
        {"free": [], "holes": []},
        {"starved": [2]},
    ),
    Case(
        "extend writes pages where the table holds pages, and cuts what its row has no room for",
        EXTEND,
        ExtendSpec(max_bs=4, max_tokens=16, page_size=3, num_virtual=6, num_physical=7, form="page"),
        lambda: {
            "request_table": rows([1, -1], [-1, -1]),
            "req_rows": ints(0, 1, 5),
            "prefix_lens": ints(2, 9, 0),
            "indptr": ints(0, 5, 6, 6),
            "tables": sub_pool(),
            "slots": sevens(6),
            "pages": None,
        },
        {"slots": [14, 3, 4, 5, 0, 0], "request_table": [[1, 5], [-1, -1]]},
        {"free": [4], "holes": [3]},
        {"clipped": [0, 1], "bad_row": [2]},
    ),
    Case(
        "extend gives slot 0 where the last page is a hole, past the table, or a tombstone",
        EXTEND,
        ExtendSpec(max_bs=4, max_tokens=16, page_size=4, num_virtual=6, num_physical=7),
        lambda: {
            "request_table": rows([-1, -1, -1], [24, -1, -1], [16, -1, -1]),
            "req_rows": ints(0, 1, 2),
            "prefix_lens": ints(1, 1, 1),
            "indptr": ints(0, 1, 2, 3),
            "tables": sub_pool(),
            "slots": sevens(3),
            "pages": 1,
        },
        {"slots": [0, 0, 0], "request_table": [[-1, -1, -1], [24, -1, -1], [16, 17, -1]]},
        {"free": [4, 5]},
        {"bad_id": [6], "count_mismatch": [0]},
    ),
    Case(
        "advance begins a page where a row crosses into one, and goes on in the last one elsewhere",
        ADVANCE,
        AdvanceSpec(max_bs=5, page_size=3, num_virtual=6, num_physical=7, form="page", multiplier=2, appends=True),
        lambda: {
            "request_table": rows([1, -1], [-1, -1], [6, -1], [3, 2]),
            "req_rows": ints(0, 1, 2, 3, 9),
            "seq_lens": ints(3, 2, 1, 6, 0),
            "tables": sub_pool(),
            "slots": sevens(5),
            "table": sevens(5, 2),
            "pages": 1,
        },
        # Row 0 begins page 5 at 1; row 1 goes on in a hole, row 2 in a page past the table, row 3 is full.
        {
            "slots": [6, 0, 0, 0, 0],
            "seq_lens": [4, 3, 2, 6, 0],
            "request_table": [[1, 5], [-1, -1], [6, -1], [3, 2]],
            "table": [[7, 2], [7, 7], [7, 7], [7, 7], [7, 7]],
        },
        {"free": [4], "holes": [3]},
        {"clipped": [3], "bad_row": [4], "bad_id": [6]},
    ),
    Case(
        "advance keeps the length of a lane that finds no page, and tells what it took",
        ADVANCE,
        AdvanceSpec(
            max_bs=5, page_size=2, num_virtual=6, num_physical=7, appends=True, granularity="token", emits=True
        ),
        lambda: {
            "request_table": rows([-1, -1, -1], [2, 3, -1], [6, 7, -1], [4, -1, -1]),
            "req_rows": ints(0, 1, 2, 3),
            "seq_lens": ints(0, 2, 2, 1),
            "tables": sub_pool(),
            "slots": sevens(4),
            "table": sevens(4, 3),
            "pages": 2,
            "token_ids": sevens(4),
            "new_ids": sevens(5),
            "new_pages": sevens(5),
        },
        # Row 0 begins page 5 at 1, row 1 page 4 at 3; row 2 finds none; row 3 goes on in page 2 at 2.
        {
            "slots": [2, 6, 0, 5],
            "seq_lens": [1, 3, 2, 2],
            "request_table": [[10, -1, -1], [2, 3, 8], [6, 7, 0], [4, 5, -1]],
            "table": [[2, 7, 7], [7, 7, 6], [7, 7, 7], [7, 5, 7]],
            "token_ids": [10, 8, 0, 5],
            "new_ids": [5, 4, 0, -1, -1],
            "new_pages": [1, 3, 0, -1, -1],
        },
        {"free": [], "holes": [], "watermark_and_epoch": [5, 0]},
        {"starved": [2], "count_mismatch": [3]},
    ),
    Case(
        "truncate frees the pages behind the kept tokens, and empties their cells",
        TRUNCATE,
        TruncateSpec(max_bs=4, max_pages=4, page_size=2),
        lambda: {
            "request_table": rows([2, 3, 4, 5, 6, 7], [8, 8, -1, 0, 0, 0]),
            "req_rows": ints(0, 1),
            "seq_lens": ints(6, 3),
            "keep_lens": ints(1, 3),
            "tables": sub_pool(),
            "freed": sevens(4),
            "pages": 2,
        },
        {"freed": [2, 5, -1, -1], "request_table": [[2, -1, -1, -1, -1, -1], [8, 8, -1, 0, 0, 0]]},
        {"free": [4, 5, 2, 3], "holes": [3, 1, 2, 5], "watermark_and_epoch": [5, 0]},
    ),
    Case(
        "truncate leaves pages past the capacity bound and in their row",
        TRUNCATE,
        TruncateSpec(max_bs=4, max_pages=2, page_size=2, form="page"),
        lambda: {
            "request_table": rows([1, 3, 2], [-1, 9, 4]),
            "req_rows": ints(1, 0, -1),
            "seq_lens": ints(3, 6, 2),
            "keep_lens": ints(0, 2, 0),
            "tables": sub_pool(),
            "freed": sevens(2),
            "pages": 4,
        },
        {"freed": [-1, -1], "request_table": [[1, 3, 2], [-1, -1, 4]]},
        {"free": [4, 5]},
        {"clipped": [1], "bad_row": [2], "bad_free": [9]},
    ),
    Case(
        "release empties a row and skips its shared prefix",
        RELEASE,
        ReleaseSpec(max_bs=4, max_pages=8, page_size=2, shared=True),
        lambda: {
            "request_table": rows([2, 3, 4, 5, 6, 7], [12, 1, 10, 8, 8, 8]),
            "req_rows": ints(0, 1),
            "seq_lens": ints(5, 4),
            "starts": ints(3, -(2**31)),
            "tables": sub_pool(),
            "freed": sevens(4),
            "pages": 3,
        },
        {"freed": [5, -1, -1, -1], "request_table": [[-1, -1, -1, -1, -1, 7], [-1, -1, -1, -1, 8, 8]]},
        {"free": [4, 5, 3], "holes": [3, 1, 5]},
        {"clipped": [1], "bad_free": [6], "double_free": [5]},
    ),
    Case(
        "release leaves the pages that `freed` has no room for",
        RELEASE,
        ReleaseSpec(max_bs=4, max_pages=1, page_size=2, form="page"),
        lambda: {
            "request_table": rows([1, 3, 2], [-1, -1, -1]),
            "req_rows": ints(0),
            "seq_lens": ints(6),
            "tables": sub_pool(),
            "freed": sevens(1),
            "pages": 1,
        },
        {"freed": [4], "request_table": [[-1, 3, 2], [-1, -1, -1]]},
        {"free": [4, 5, 1]},
        {"clipped": [0], "count_mismatch": [3]},
    ),
    Case(
        "assign copies ids to the head of rows",
        ASSIGN,
        AssignSpec(max_bs=4, max_items=8),
        lambda: {
            "request_table": sevens(3, 3),
            "req_rows": ints(2, 0, 3, 1),
            "ids": ints(5, -1, 9, 8, 6),
            "indptr": ints(0, 2, 6, 4, 5),
            "state": new_state("cpu"),
        },
        {"request_table": [[9, 8, 6], [6, 7, 7], [5, -1, 7]]},
        {},
        {"clipped": [1], "bad_row": [2]},
    ),
    Case(
        "read_stream packs pages and writes the table in one call",
        READ_STREAM,
        ReadStreamSpec(
            max_bs=4,
            max_items=8,
            page_size=2,
            num_physical=7,
            windowed=True,
            with_table=True,
            max_width=3,
            multiplier=2,
        ),
        lambda: {
            "request_table": rows([2, 3, 4, 5, 6, 7], [-1, -1, 12, 13, 8, 9]),
            "req_rows": ints(1, 0, 2),
            "seq_lens": ints(5, 2, 1),
            "v2p": ints(*V2P),
            "indptr": ints(1, 3, 4, 8),
            "out": sevens(8),
            "starts": ints(0, 3, 0),
            "table": sevens(4, 3),
            "state": new_state("cpu"),
        },
        # Lane 0: a hole, a page past the table, a tombstone (only in the table). Lane 1: pages 1 and 2, one with room.
        {"out": [7, 0, 0, 4, 7, 7, 7, 7], "table": [[0, 0, 0], [7, 4, 10], [7, 7, 7], [7, 7, 7]]},
        {},
        {"clipped": [0, 1], "bad_row": [2], "bad_id": [6]},
    ),
    Case(
        "read_stream packs tokens of a table of pages",
        READ_STREAM,
        ReadStreamSpec(max_bs=4, max_items=8, page_size=3, num_physical=7, form="page", granularity="token"),
        lambda: {
            "request_table": rows([1, 4], [2, 0]),
            "req_rows": ints(0, 1),
            "seq_lens": ints(3, 4),
            "v2p": ints(*V2P),
            "indptr": ints(0, 4, 8),
            "out": sevens(8),
            "seq_len_delta": 1,
            "state": new_state("cpu"),
        },
        {"out": [12, 13, 14, 0, 6, 7, 8, 0]},
        {},
        {"clipped": [1]},
    ),
]
