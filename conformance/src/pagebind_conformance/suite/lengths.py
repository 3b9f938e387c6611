"""Lanes at their worst, for every extended operation that takes lengths; those of read_table are in its own module.

Lengths lie at the ends of int64, many with low 32 bits that would fit a row: what is narrowed, or added to, before it
is clamped, reads or writes a wrong part of the row. And one call has bad rows, clipped lanes and lanes that are both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from pagebind import Operation, ops
from pagebind.ops import TouchSpec
from pagebind.words import Form

from pagebind_conformance import generate
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.advance import blank
from pagebind_conformance.suite.advance import spec as advance_spec
from pagebind_conformance.suite.assign import LONG
from pagebind_conformance.suite.evict import spec as evict_spec
from pagebind_conformance.suite.extend import held_rows
from pagebind_conformance.suite.extend import spec as extend_spec
from pagebind_conformance.suite.read_stream import spec as stream_spec
from pagebind_conformance.suite.read_table import DELTAS, FAR
from pagebind_conformance.suite.refresh_table import spec as refresh_spec
from pagebind_conformance.suite.release import spec as release_spec
from pagebind_conformance.suite.truncate import spec as truncate_spec
from pagebind_conformance.trial.advance import advance
from pagebind_conformance.trial.assign import assign
from pagebind_conformance.trial.evict import evict
from pagebind_conformance.trial.extend import extend
from pagebind_conformance.trial.read_stream import read_stream
from pagebind_conformance.trial.release import release
from pagebind_conformance.trial.scene import Scene
from pagebind_conformance.trial.touch import touch
from pagebind_conformance.trial.truncate import truncate

LEVEL = "extended"
TOKENS = 12
"""That a row has room for."""
HELD = 9
"""That it holds."""


class Lanes(NamedTuple):
    """A batch, and the request table it is about: row r of it holds pages of its own."""

    page_size: int
    form: Form
    dtype: torch.dtype  # of rows and of lengths
    rows: Sequence[int]
    lens: Sequence[int]

    @property
    def fields(self) -> dict[str, Any]:
        """What the specs of all operations have in common."""
        return {"form": self.form, "length_dtype": self.dtype, "row_dtype": self.dtype}

    @property
    def others(self) -> list[int]:
        """Other lengths of the same kind: where a call takes two, starts or kept tokens."""
        return list(reversed(self.lens))

    def held(self, borrowed: bool = False) -> tuple[SubPool, list[list[int]]]:
        """Return a sub-pool and the rows."""
        pages = len(self.rows) * -(-HELD // self.page_size)
        pool = generate.sub_pool(Random(pages), 400, 400, pages + 3, 7)
        cells = TOKENS if self.form == "token" else TOKENS // self.page_size
        rows = held_rows(Random(1), pool, [HELD] * len(self.rows), cells, self.page_size, self.form)
        return generate.borrower(pool) if borrowed else pool, rows


def drive_read_stream(subject: Subject, lanes: Lanes) -> None:
    planned = stream_spec(lanes.page_size, windowed=True, with_table=True, **lanes.fields)
    pool, rows = lanes.held()
    width = TOKENS // lanes.page_size
    indptr = list(range(0, width * len(rows) + 1, width))
    for delta in DELTAS:
        for starts in ([0] * len(rows), lanes.others):
            read_stream(
                subject, planned, rows, lanes.rows, lanes.lens, pool.v2p, indptr,
                capacity=indptr[-1], width=width, starts=starts, seq_len_delta=delta,
            )  # fmt: skip


def drive_refresh_table(subject: Subject, lanes: Lanes) -> None:
    scene = Scene(subject, lanes.page_size, lanes.form, rows=len(lanes.rows), pages=TOKENS // lanes.page_size)
    table = scene.table(refresh_spec(lanes.page_size, fill="sink", windowed=True, **lanes.fields), len(lanes.rows))
    short = [n % 2**32 % TOKENS for n in lanes.lens]  # what is built before fits, and is what a narrowed length is
    for starts in ([0] * len(short), lanes.others):
        for delta in DELTAS:
            scene.refresh(table, lanes.rows, short, starts=[0] * len(short))
            scene.refresh(table, lanes.rows, lanes.lens, starts=starts, seq_len_delta=delta)


def drive_extend(subject: Subject, lanes: Lanes) -> None:
    planned = extend_spec(lanes.page_size, indptr_dtype=LONG, **lanes.fields)
    pool, rows = lanes.held()
    capacity = 2 * len(rows)
    extend(subject, planned, rows, lanes.rows, lanes.lens, list(range(0, capacity + 1, 2)), pool, capacity=capacity)
    low, high = generate.LIMITS[LONG]
    extend(subject, planned, rows, [0], [HELD], [low, high], pool, capacity=5)


def drive_advance(subject: Subject, lanes: Lanes) -> None:
    planned = advance_spec(lanes.page_size, appends=True, granularity="token", **lanes.fields)
    pool, rows = lanes.held()
    table = blank(planned, len(rows), TOKENS)
    step = advance(subject, planned, rows, lanes.rows, lanes.lens, pool, table=table)
    advance(subject, planned, step.request_table, lanes.rows, step.seq_lens, step.pool, table=step.table)


def drive_truncate(subject: Subject, lanes: Lanes) -> None:
    planned = truncate_spec(lanes.page_size, **lanes.fields)
    pool, rows = lanes.held()
    for keep in (lanes.others, [0] * len(rows)):
        truncate(subject, planned, rows, lanes.rows, lanes.lens, keep, pool, capacity=200)
    truncate(subject, planned, rows, lanes.rows, [HELD] * len(rows), lanes.lens, pool, capacity=200)


def drive_release(subject: Subject, lanes: Lanes) -> None:
    planned = release_spec(lanes.page_size, shared=True, **lanes.fields)
    pool, rows = lanes.held()
    for starts in (lanes.others, [0] * len(rows)):
        release(subject, planned, rows, lanes.rows, lanes.lens, pool, capacity=200, starts=starts)


def drive_evict(subject: Subject, lanes: Lanes) -> None:
    pool, rows = lanes.held(borrowed=True)
    for part in ("head", "tail", "row"):
        planned = evict_spec(part, lanes.page_size, **lanes.fields)
        for starts in (lanes.others, [0] * len(rows)):
            first = [0] * len(rows)
            evict(subject, planned, rows, lanes.rows, starts, lanes.lens, pool, first, capacity=200)


def drive_touch(subject: Subject, lanes: Lanes) -> None:
    planned = TouchSpec(max_bs=80, length_dtype=lanes.dtype, row_dtype=lanes.dtype)
    touch(subject, planned, [[3, 5]] * len(lanes.rows), lanes.rows, lanes.lens)


def drive_assign(subject: Subject, lanes: Lanes) -> None:
    # Its lengths are those of its parts, between one cell of `indptr` and the next.
    planned = ops.AssignSpec(max_bs=80, max_items=4096, row_dtype=lanes.dtype, indptr_dtype=lanes.dtype)
    for indptr in ([*lanes.lens, 0], [0, *lanes.lens]):
        assign(subject, planned, lanes.held()[1], lanes.rows, list(range(40)), indptr)


DRIVES: dict[str, Callable[[Subject, Lanes], None]] = {
    "read_stream": drive_read_stream,
    "extend": drive_extend,
    "advance": drive_advance,
    "truncate": drive_truncate,
    "assign": drive_assign,
    "release": drive_release,
    "evict": drive_evict,
    "touch": drive_touch,
    "refresh_table": drive_refresh_table,
}

every_operation = pytest.mark.parametrize("operation", [ops.OPERATIONS[name] for name in DRIVES], ids=list(DRIVES))
page_sizes = pytest.mark.parametrize("page_size", [1, 3], ids="ps{}".format)
forms = pytest.mark.parametrize("form", ["token", "page"])


@every_operation
@page_sizes
@forms
def test_lengths_at_the_ends_of_int64_are_clamped_before_they_are_narrowed(
    subject: Subject, operation: Operation[Any, Any], page_size: int, form: Form
) -> None:
    DRIVES[operation.name](subject, Lanes(page_size, form, LONG, range(len(FAR)), FAR))


@every_operation
@forms
@pytest.mark.parametrize("dtype", [torch.int32, LONG], ids=["i32", "i64"])
def test_bad_rows_and_clipped_lanes_of_one_call_are_both_counted(
    subject: Subject, operation: Operation[Any, Any], form: Form, dtype: torch.dtype
) -> None:
    low, high = generate.LIMITS[dtype]
    rows = [0, -1, 2, 8, 4, low, 6, high]  # a bad row counts as one whatever its length
    lens = [5, 5, TOKENS + 1, 10**6, -1, -1, 3, high]
    DRIVES[operation.name](subject, Lanes(3, form, dtype, rows, lens))
