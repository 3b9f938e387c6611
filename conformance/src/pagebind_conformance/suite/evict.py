"""evict: pages of rows given back where their ids are borrowed, as a window does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError
from pagebind.ops import EVICT, EvictSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Guarded, Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.extend import held_rows
from pagebind_conformance.trial.call import GuardedPool, How
from pagebind_conformance.trial.evict import evict

OPERATION = EVICT
LONG = torch.int64
PARTS = ("head", "tail", "row")


def spec(part: str, page_size: int, **fields: Any) -> EvictSpec:
    """Return a spec of the sizes all cases share."""
    return EvictSpec(**{"part": part, "max_bs": 80, "max_pages": 512, "page_size": page_size, **fields})


SPECS = [
    spec("head", 1),
    spec("head", 4, form="page", index_dtype=LONG, row_dtype=LONG),
    spec("head", 3, length_dtype=LONG, id_dtype=LONG),
    spec("tail", 1, form="page", length_dtype=LONG, id_dtype=LONG),
    spec("tail", 4, row_dtype=LONG, length_dtype=LONG),
    spec("tail", 3, form="page", index_dtype=LONG, id_dtype=LONG),
    spec("row", 1, index_dtype=LONG),
    spec("row", 4, form="page", length_dtype=LONG),
    spec("row", 3, row_dtype=LONG, id_dtype=LONG),
]


def identify(value: EvictSpec) -> str:
    """Spell a spec: `head-ps4-token-i64i64i32i32` (index, row, length, id)."""
    dtypes = (value.index_dtype, value.row_dtype, value.length_dtype, value.id_dtype)
    kinds = "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)
    return f"{value.part}-ps{value.page_size}-{value.form}-{kinds}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
forms = pytest.mark.parametrize("form", ["token", "page"])
parts = pytest.mark.parametrize("part", PARTS)


def filled(lens: list[int], cells: int, page_size: int, form: str) -> tuple[SubPool, list[list[int]]]:
    """Return a sub-pool that borrows, and rows that hold pages of it for so many tokens."""
    rng = Random(len(lens) + cells)
    pool = generate.borrower(generate.sub_pool(rng, 300, 200, sum(-(-n // page_size) for n in lens) + 3, 7))
    return pool, held_rows(rng, pool, lens, cells, page_size, form)


def window() -> SubPool:
    """Return a sub-pool of ids 1 to 5 in pages 3, 5, 1, 4, 2, with nothing on its stacks."""
    return SubPool([0, 3, 5, 1, 4, 2, -1], [0, 3, 5, 1, 4, 2, -1, -1], [7] * 6, [0] * 7, 0, 0, 5, 9)


@forms
def test_a_head_goes_up_to_the_page_that_holds_a_kept_token(subject: Subject, form: str) -> None:
    rows = [generate.spread([2, 4, 1, 5], 3, form)]
    after, first, freed = evict(subject, spec("head", 3, form=form), rows, [0], [0], [8], window(), [0], capacity=3)
    assert (first, freed) == ([2], [5, 4, -1])
    assert (after.hole_stack[:2], after.hole_top, after.virtual_top, after.epoch) == ([5, 4], 2, 0, 9)
    assert after.v2p == [0, 3, -1, 1, -1, 2, -1]


@forms
def test_a_tail_goes_from_the_first_page_without_a_kept_token(subject: Subject, form: str) -> None:
    rows = [generate.spread([2, 4, 1, 5], 3, form)]
    after, first, freed = evict(subject, spec("tail", 3, form=form), rows, [0], [4], [10], window(), [1], capacity=3)
    assert (first, freed) == ([1], [3, 2, -1])
    assert after.v2p == [0, -1, 5, 1, 4, -1, -1]
    _, first, freed = evict(subject, spec("tail", 3, form=form), rows, [0], [4], [10], window(), [3], capacity=3)
    assert (first, freed) == ([2], [2, -1, -1])  # pages before 3 went before; the row may grow from page 2 on again


@forms
def test_a_row_goes_but_for_a_shared_prefix_and_begins_at_page_0(subject: Subject, form: str) -> None:
    rows = [generate.spread([2, 4, 1, 5], 3, form)]
    planned = spec("row", 3, form=form)
    _, first, freed = evict(subject, planned, rows, [0], [3], [12], window(), [0], capacity=5)
    assert (first, freed) == ([0], [4, 3, 2, -1, -1])
    _, first, freed = evict(subject, planned, rows, [0], [3], [12], window(), [2], capacity=5)
    assert (first, freed) == ([0], [3, 2, -1, -1, -1])


@every_spec
@pytest.mark.parametrize("start", [0, 1, 4, 12], ids="start{}".format)
def test_every_part_of_a_row(subject: Subject, planned: EvictSpec, start: int) -> None:
    held = [12] * 14
    pool, rows = filled(held, 14, planned.page_size, planned.form)
    lens = list(range(14))
    for first in (0, 3) if subject.slow else (0, 1, 3, 13):
        evict(subject, planned, rows, lens, [start] * 14, lens, pool, [first] * 14, capacity=140)


@every_spec
@pytest.mark.parametrize("capacity", [0, 1, 5], ids="capacity{}".format)
def test_pages_past_the_capacity_stay_bound_and_a_head_begins_with_them(
    subject: Subject, planned: EvictSpec, capacity: int
) -> None:
    lens = [7, 12, 5, 9]
    pool, rows = filled(lens, 14, planned.page_size, planned.form)
    evict(subject, planned, rows, [2, 0, 3, 1], [0, 1, 0, 2], lens, pool, [0, 1, 0, 0], capacity=capacity)


def test_a_head_cut_short_goes_on_in_the_next_call(subject: Subject) -> None:
    pool, rows = filled([9], 9, 1, "token")
    placed = GuardedPool(pool, torch.int32, subject.device)
    first = Guarded([0], torch.int32, subject.device)
    seen = []
    for _ in range(4):
        pool, moved, freed = evict(subject, SPECS[0], rows, [0], [0], [8], pool, first, capacity=3, placed=placed)
        seen += [p for p in freed if p >= 0]
    assert moved == [8]
    assert len(set(seen)) == 8


@every_spec
def test_ids_without_a_page_here_are_holes_and_no_fault(subject: Subject, planned: EvictSpec) -> None:
    lens = [12, 12, 12]
    pool, rows = filled(lens, 12, planned.page_size, planned.form)
    pool.p2v[:] = [0, *[-1] * (len(pool.p2v) - 1)]
    unit = planned.page_size if planned.form == "token" else 1
    for i, row in enumerate(rows):  # of every third page, the window has gone before, or it never came here
        for k, cell in enumerate(row[::unit]):
            v = cell // unit
            if v >= len(pool.v2p) - 1:
                continue
            if k % 3 == i:
                pool.v2p[v] = -1 - k
            else:
                pool.p2v[pool.v2p[v]] = v
    evict(subject, planned, rows, [1, 2, 0], [0, 1, 0], lens, pool, [0, 0, 1], capacity=40)


@every_spec
def test_the_hosts_page_count_is_held_against_those_that_came_back(subject: Subject, planned: EvictSpec) -> None:
    lens = [12, 12]
    pool, rows = filled(lens, 12, planned.page_size, planned.form)
    unit = planned.page_size if planned.form == "token" else 1
    gone = rows[0][0] // unit
    pool.p2v[pool.v2p[gone]] = pool.v2p[gone] = -1
    came = 2 * (12 // planned.page_size) - 1
    for claimed in (came, came + 1, 0):
        evict(subject, planned, rows, [0, 1], [0, 0], lens, pool, [0, 0], capacity=24, pages=claimed)
    evict(subject, planned, rows, [0, 1], [0, 0], lens, pool, [0, 0], capacity=2, pages=came)


@every_spec
def test_a_first_page_of_garbage_is_clipped_and_not_counted(subject: Subject, planned: EvictSpec) -> None:
    lens = [12, 5, 9, 12, 12]
    pool, rows = filled(lens, 14, planned.page_size, planned.form)
    first = [-1, 2**31 - 1, -(2**31), 99, 5]
    evict(subject, planned, rows, [4, 2, 0, 1], [0, 1, 0, 2], [12, 9, 12, 3], pool, first, capacity=60)


@every_spec
def test_bad_lengths_rows_and_cells_are_clipped_dropped_and_counted(subject: Subject, planned: EvictSpec) -> None:
    least, most = generate.LIMITS[planned.length_dtype]
    pool, rows = filled([9] * 8, 12, planned.page_size, planned.form)
    lens = [least, -1, 0, 9, 12, 10**6, most, 9, 9, 9, 9]
    starts = [0, 3, -1, least, most, 4, 0, -2, 0, 0, 0]
    req_rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, *generate.LIMITS[planned.row_dtype]]
    first = [0, 5, -9, 1, 0, 2, 0, 0]
    evict(subject, planned, rows, req_rows, starts, lens, pool, first, capacity=100)
    unit = planned.page_size if planned.form == "token" else 1
    for row, junk in zip(rows, (-1, -9, 10**6, 2**31 - 1, 0, 301 * planned.page_size, 2, -(2**31)), strict=True):
        row[0] = row[unit] = junk
    evict(subject, planned, rows, req_rows, starts, lens, pool, first, capacity=100)
    sink = rows[7][2 * unit] // unit if rows[7][2 * unit] >= 0 else 1
    if sink < len(pool.v2p) - 1:
        pool.v2p[sink] = 0  # a row that holds no page of p2v is a fault
    evict(subject, planned, rows, req_rows, starts, lens, pool, [0] * 8, capacity=100)


@every_spec
def test_a_page_that_two_rows_hold_comes_back_once(subject: Subject, planned: EvictSpec) -> None:
    pool, rows = filled([9], 12, planned.page_size, planned.form)
    evict(subject, planned, rows * 3, [2, 0, 1], [0, 2, 4], [9] * 3, pool, [0, 1, 0], capacity=40)


@every_spec
def test_empty_batches_and_lanes_without_pages_free_nothing(subject: Subject, planned: EvictSpec) -> None:
    pool, rows = filled([9], 12, planned.page_size, planned.form)
    evict(subject, planned, rows, [], [], [], pool, [77], capacity=4)
    evict(subject, planned, rows, [0], [0], [0], pool, [1], capacity=4)
    evict(subject, planned, rows, [0], [12], [9], pool, [0], capacity=0)


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[5], SPECS[8]], ids=identify)
def test_awkward_batches(subject: Subject, planned: EvictSpec, bs: int) -> None:
    rng = Random(bs)
    held = [rng.randint(0, 3 * planned.page_size) for _ in range(bs)]
    pool = generate.borrower(generate.sub_pool(rng, 400, 300, 240, 9))
    rows = held_rows(rng, pool, held, 10, planned.page_size, planned.form)
    order = rng.sample(range(bs), bs)
    lens = [held[r] for r in order]
    first = [rng.randint(0, 2) for _ in range(bs)]
    for options in (LaunchOptions(threads=32, programs=3), *(() if subject.slow else (None,))):
        how = How(options=options)
        evict(subject, planned, rows, order, [n // 5 for n in lens], lens, pool, first, capacity=250, how=how)


def test_counting_off_moves_first_pages_and_no_counter(subject: Subject) -> None:
    pool, rows = filled([9, 9], 12, 1, "token")
    how = How(checks="off")
    evict(
        subject, SPECS[0], rows * 2, [0, 9, 2, 1], [0, 0, -3, 0], [9, 9, 9, 99], pool, [0, 3, -1, 0], capacity=9,
        pages=1, how=how,
    )  # fmt: skip


@parts
def test_full_checks_refuse_a_fault_and_write_nothing(subject: Subject, part: str) -> None:
    pool, rows = filled([9], 12, 1, "token")
    how = How(checks="full")
    planned = spec(part, 1)
    with pytest.raises(FaultError, match="double_free"):
        evict(subject, planned, rows * 2, [0, 1], [0, 0], [9, 9], pool, [0, 0], capacity=30, how=how)
    with pytest.raises(FaultError, match="count_mismatch: 8"):
        evict(subject, planned, rows, [0], [1], [9], pool, [0], capacity=30, pages=9, how=how)
    gone = pool.copy()
    gone.p2v[pool.v2p[rows[0][4]]] = gone.v2p[rows[0][4]] = -1  # an id without a page here is none
    evict(subject, planned, rows, [0], [1], [9], gone, [0], capacity=30, pages=7, how=how)


@every_spec
def test_generated_evictions_equal_the_oracle(subject: Subject, planned: EvictSpec) -> None:
    @subject.generated(0.6)
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 8),
        cells=st.integers(1, 30),
        capacity=st.integers(0, 60),
        wild=st.sampled_from([0.0, 0.0, 0.15]),
        gap=st.integers(0, 3),
    )
    def equal(rng: Random, bs: int, cells: int, capacity: int, wild: float, gap: int) -> None:
        ps = planned.page_size
        tokens = cells * (1 if planned.form == "token" else ps)
        lens = generate.lengths(rng, bs, tokens, planned.length_dtype, wild)
        pool = generate.sub_pool(rng, 120, 130, rng.randint(0, 119), rng.randint(0, 20))
        rows = held_rows(rng, pool, [min(max(n, 0), tokens) for n in lens], cells, ps, planned.form)
        pool = generate.borrower(pool)
        for v in range(1, 120):  # a window of each row has gone
            if rng.random() < 0.2 and pool.v2p[v] > 0:
                pool.p2v[pool.v2p[v]] = pool.v2p[v] = -1
        if wild:
            for row in rows:
                row[rng.randrange(cells)] = rng.choice([-3, 10**6, rng.randint(0, 400)])
        starts = [n if rng.random() < 0.3 else 0 for n in generate.lengths(rng, bs, tokens, planned.length_dtype, wild)]
        req_rows = [r if rng.random() >= wild else rng.choice([-1, bs]) for r in range(bs)]
        rows = rows or [[-1] * cells]
        first = [rng.choice([0, 0, rng.randint(0, 9), rng.choice([-1, 2**31 - 1, -(2**31)])]) for _ in rows]
        layouts = {name: Layout(shift=gap) for name in ("first", "freed", "v2p", "hole_stack")}
        how = How(layouts=layouts | {"request_table": Layout(row_gap=gap, shift=gap)})
        pages = rng.choice([None, 3])
        evict(subject, planned, rows, req_rows, starts, lens, pool, first, capacity=capacity, pages=pages, how=how)

    equal()
