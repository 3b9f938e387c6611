"""assign: ids copied to the head of rows."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind.errors import FaultError
from pagebind.ops import ASSIGN, AssignSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.assign import assign
from pagebind_conformance.trial.call import How

OPERATION = ASSIGN
LONG = torch.int64
SPECS = [
    AssignSpec(max_bs=80, max_items=4096),
    AssignSpec(max_bs=80, max_items=4096, row_dtype=LONG),
    AssignSpec(max_bs=80, max_items=4096, indptr_dtype=LONG),
    AssignSpec(max_bs=80, max_items=4096, row_dtype=LONG, indptr_dtype=LONG),
]


def identify(value: AssignSpec) -> str:
    """Spell a spec by the dtypes of rows and indptr."""
    return f"i{8 * value.row_dtype.itemsize}i{8 * value.indptr_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)


@every_spec
def test_ids_go_to_the_head_of_their_rows_as_they_are(subject: Subject, planned: AssignSpec) -> None:
    rows = assign(subject, planned, [[7] * 4 for _ in range(3)], [2, 0], [5, -1, 2**31 - 1, -(2**31)], [0, 3, 4])
    assert rows == [[-(2**31), 7, 7, 7], [7] * 4, [5, -1, 2**31 - 1, 7]]


@every_spec
def test_bad_rows_and_parts_are_clipped_and_counted(subject: Subject, planned: AssignSpec) -> None:
    low, high = generate.LIMITS[planned.indptr_dtype]
    req_rows = [0, 1, 2, 3, 4, *generate.LIMITS[planned.row_dtype]]
    rows = [[7] * 6 for _ in range(4)]
    ids = list(range(100, 140))
    for indptr in (
        [0, 6, 13, 13, 20, 22, 24, 26],
        [low, -1, 3, 40, 41, high, high, high],
        [9, 4, 8, 2, 12, 40, low, high],
        [high, low, high, low, 0, 39, 40, 40],
    ):
        assign(subject, planned, rows, req_rows, ids, indptr)


@every_spec
def test_a_fault_of_a_part_that_many_share_counts_once(subject: Subject, planned: AssignSpec) -> None:
    cells = 300 if subject.slow else 4096
    rows = [[7] * (cells - 1) for _ in range(2)]
    assign(subject, planned, rows, [1], list(range(cells)), [0, cells])
    assign(subject, planned, rows, [2], list(range(cells)), [0, cells])


@every_spec
def test_of_lanes_that_repeat_a_row_each_cell_is_one_lanes(subject: Subject, planned: AssignSpec) -> None:
    rows = [[7] * 9 for _ in range(3)]
    assign(subject, planned, rows, [1, 2, 1, 1, 5], list(range(100, 130)), [0, 3, 8, 17, 19, 20])
    assign(subject, planned, rows, [0] * 40, list(range(100, 500)), list(range(0, 361, 9)))


@every_spec
def test_empty_batches_and_parts_write_nothing(subject: Subject, planned: AssignSpec) -> None:
    assign(subject, planned, [[7] * 4], [], [1, 2], [0])
    assign(subject, planned, [[7] * 4] * 2, [0, 1], [], [0, 0, 0])
    assign(subject, planned, [[7] * 4] * 2, [0, 1], [1, 2], [1, 1, 1])


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("gap", [0, 1, 16], ids="gap{}".format)
def test_awkward_batches_and_strides(subject: Subject, bs: int, gap: int) -> None:
    rng = Random(bs)
    sizes = [rng.choice([0, 1, 33, 40, 41]) if not subject.slow else rng.choice([0, 1, 9]) for _ in range(bs)]
    indptr = generate.offsets(rng, sizes, torch.int32)
    ids = [rng.randint(-1, 999) for _ in range(min(indptr[-1], 4096))]
    how = How(layouts={"request_table": Layout(row_gap=gap, shift=gap % 3), "ids": Layout(shift=gap % 2)})
    assign(subject, SPECS[0], [[7] * 40 for _ in range(bs)], rng.sample(range(bs), bs), ids, indptr, how)


def test_counting_off_changes_no_value_and_no_counter(subject: Subject) -> None:
    for how in (How(checks="off"), How(counted=False)):
        assign(subject, SPECS[0], [[7] * 3] * 2, [0, 5, 1], [1, 2, 3, 4, 5], [0, 4, 4, 9], how)


def test_full_checks_refuse_a_fault_and_write_nothing(subject: Subject) -> None:
    how = How(checks="full")
    with pytest.raises(FaultError, match="bad_row"):
        assign(subject, SPECS[0], [[7] * 3] * 2, [0, 5], [1, 2], [0, 1, 2], how)
    assign(subject, SPECS[0], [[7] * 3] * 2, [0, 1], [1, 2], [0, 1, 2], how)


@every_spec
def test_generated_assignments_equal_the_oracle(subject: Subject, planned: AssignSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 9),
        requests=st.integers(0, 9),
        cells=st.integers(1, 40),
        wild=st.sampled_from([0.0, 0.15]),
        gap=st.integers(0, 3),
    )
    def equal(rng: Random, bs: int, requests: int, cells: int, wild: float, gap: int) -> None:
        rows = [[rng.randint(-1, 99) for _ in range(cells)] for _ in range(requests + 1)]
        indptr = generate.offsets(rng, [rng.choice([0, 1, cells, cells + 1]) for _ in range(bs)], planned.indptr_dtype,
                                  wild, 2)  # fmt: skip
        ids = [rng.randint(-5, 999) for _ in range(max(min(max(indptr), 400) - rng.choice([0, 3]), 0))]
        req_rows = generate.row_indices(rng, bs, len(rows), planned.row_dtype)
        assign(subject, planned, rows, req_rows, ids, indptr, How(layouts={"request_table": Layout(gap, 1, gap)}))

    equal()
