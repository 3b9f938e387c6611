"""release: a row emptied, all but a shared prefix freed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind.errors import FaultError
from pagebind.ops import RELEASE, ReleaseSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.extend import held_rows
from pagebind_conformance.suite.truncate import filled
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.release import release

OPERATION = RELEASE
LONG = torch.int64


def spec(page_size: int, **fields: Any) -> ReleaseSpec:
    """Return a spec of the sizes all cases share."""
    return ReleaseSpec(**{"max_bs": 80, "max_pages": 512, "page_size": page_size, **fields})


SPECS = [
    spec(1),
    spec(1, form="page", length_dtype=LONG, id_dtype=LONG, shared=True),
    spec(4, index_dtype=LONG, row_dtype=LONG, shared=True),
    spec(4, form="page", row_dtype=LONG, length_dtype=LONG),
    spec(3, length_dtype=LONG, id_dtype=LONG, shared=True),
    spec(3, form="page", index_dtype=LONG, id_dtype=LONG, shared=True),
]


def identify(value: ReleaseSpec) -> str:
    """Spell a spec: `ps4-token-shared-i64i64i32i32` (index, row, length, id)."""
    parts = [f"ps{value.page_size}", value.form] + (["shared"] if value.shared else [])
    dtypes = (value.index_dtype, value.row_dtype, value.length_dtype, value.id_dtype)
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
forms = pytest.mark.parametrize("form", ["token", "page"])


@forms
def test_a_shared_prefix_stays_bound_and_leaves_the_row(subject: Subject, form: str) -> None:
    pool = SubPool([0, 4, 2, 5, 1, -1], [0, 4, 2, -1, 1, 3, -1], [0] * 5, [0] * 6, 0, 0, 5)
    rows = [generate.spread([3, 1, 4], 3, form)]
    planned = spec(3, form=form, shared=True)
    table, after, freed = release(subject, planned, rows, [0], [8], pool, capacity=4, starts=[4])
    assert freed == [1, -1, -1, -1]
    assert table[0] == ([-1] * 8 + [14] if form == "token" else [-1, -1, -1])
    assert after.v2p == [0, 4, 2, 5, -1, -1]


@every_spec
@pytest.mark.parametrize("length", [0, 1, 3, 4, 11, 12], ids="len{}".format)
def test_every_length_of_a_row(subject: Subject, planned: ReleaseSpec, length: int) -> None:
    pool, rows = filled([12, 11, 4, 3], 14, planned.page_size, planned.form)
    starts = [0, 4, length, 13] if planned.shared else None
    lens = [length, max(length - 1, 0), length, length]
    release(subject, planned, rows, [3, 2, 1, 0], lens, pool, capacity=40, starts=starts)


@every_spec
@pytest.mark.parametrize("capacity", [0, 1, 3, 5], ids="capacity{}".format)
def test_pages_past_the_capacity_stay_bound_and_in_their_row(
    subject: Subject, planned: ReleaseSpec, capacity: int
) -> None:
    lens = [7, 12, 5, 9]
    pool, rows = filled(lens, 14, planned.page_size, planned.form)
    starts = [1, 4, 0, 2] if planned.shared else None
    release(subject, planned, rows, [0, 1, 2, 3], lens, pool, capacity=capacity, starts=starts)


@every_spec
def test_the_hosts_page_count_is_held_against_the_devices(subject: Subject, planned: ReleaseSpec) -> None:
    pool, rows = filled([12, 12], 14, planned.page_size, planned.form)
    starts = [0, 0] if planned.shared else None
    pages = 2 * -(-12 // planned.page_size)
    for claimed in (pages, pages - 1):
        release(subject, planned, rows, [0, 1], [12, 12], pool, capacity=24, starts=starts, pages=claimed)


@every_spec
def test_bad_lengths_rows_and_cells_are_clipped_dropped_and_counted(subject: Subject, planned: ReleaseSpec) -> None:
    least, most = generate.LIMITS[planned.length_dtype]
    pool, rows = filled([9] * 8, 12, planned.page_size, planned.form)
    lens = [least, -1, 0, 9, 12, 10**6, most, 9, 9, 9, 9]
    starts = [0, 3, -1, least, most, 4, 0, -2, 0, 0, 0] if planned.shared else None
    req_rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, *generate.LIMITS[planned.row_dtype]]
    release(subject, planned, rows, req_rows, lens, pool, capacity=100, starts=starts)
    for row, junk in zip(rows, (-1, -9, 10**6, 2**31 - 1, 0, 301 * planned.page_size, 2, -(2**31)), strict=True):
        row[0] = row[planned.page_size if planned.form == "token" else 1] = junk
    release(subject, planned, rows, req_rows, lens, pool, capacity=100, starts=starts)


@every_spec
def test_a_page_that_two_rows_hold_comes_back_once(subject: Subject, planned: ReleaseSpec) -> None:
    pool, rows = filled([9], 12, planned.page_size, planned.form)
    starts = [0, 4, 0] if planned.shared else None
    release(subject, planned, rows * 3, [0, 1, 2], [9] * 3, pool, capacity=40, starts=starts)


@every_spec
def test_empty_batches_write_nothing(subject: Subject, planned: ReleaseSpec) -> None:
    pool, rows = filled([9], 12, planned.page_size, planned.form)
    release(subject, planned, rows, [], [], pool, capacity=4, starts=[] if planned.shared else None)


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[5]], ids=identify)
def test_awkward_batches(subject: Subject, planned: ReleaseSpec, bs: int) -> None:
    rng = Random(bs)
    lens = [rng.randint(0, 3 * planned.page_size) for _ in range(bs)]
    pool, rows = filled(lens, 10, planned.page_size, planned.form)
    order = rng.sample(range(bs), bs)
    in_order = [lens[r] for r in order]
    starts = [n // 2 for n in in_order] if planned.shared else None
    release(subject, planned, rows, order, in_order, pool, capacity=300, starts=starts)


def test_counting_off_moves_positions_and_no_counter(subject: Subject) -> None:
    pool, rows = filled([9, 9], 12, 1, "token")
    how = How(checks="off")
    release(subject, SPECS[0], rows * 2, [0, 9, 2, 1], [9, 9, 9, 99], pool, capacity=9, pages=1, how=how)


def test_full_checks_refuse_a_fault_and_write_nothing(subject: Subject) -> None:
    pool, rows = filled([9], 12, 1, "token")
    how = How(checks="full")
    with pytest.raises(FaultError, match="double_free"):
        release(subject, SPECS[0], rows * 2, [0, 1], [9, 9], pool, capacity=30, how=how)
    release(subject, SPECS[0], rows, [0], [9], pool, capacity=30, how=how)


@every_spec
def test_generated_releases_equal_the_oracle(subject: Subject, planned: ReleaseSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 8),
        cells=st.integers(1, 30),
        capacity=st.integers(0, 60),
        wild=st.sampled_from([0.0, 0.0, 0.15]),
        gap=st.integers(0, 3),
    )
    def equal(rng: Random, bs: int, cells: int, capacity: int, wild: float, gap: int) -> None:
        tokens = cells * (1 if planned.form == "token" else planned.page_size)
        lens = generate.lengths(rng, bs, tokens, planned.length_dtype, wild)
        pool = generate.sub_pool(rng, 120, 130, rng.randint(0, 119), rng.randint(0, 20))
        rows = held_rows(rng, pool, [min(max(n, 0), tokens) for n in lens], cells, planned.page_size, planned.form)
        if wild:
            for row in rows:
                row[rng.randrange(cells)] = rng.choice([-3, 10**6, rng.randint(0, 400)])
        starts = generate.lengths(rng, bs, tokens, planned.length_dtype, wild) if planned.shared else None
        req_rows = [r if rng.random() >= wild else rng.choice([-1, bs]) for r in range(bs)]
        how = How(layouts={"request_table": Layout(row_gap=gap, shift=gap), "freed": Layout(shift=gap)})
        pages = rng.choice([None, 3])
        rows = rows or [[-1] * cells]
        release(subject, planned, rows, req_rows, lens, pool, capacity=capacity, starts=starts, pages=pages, how=how)

    equal()
