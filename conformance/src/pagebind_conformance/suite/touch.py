"""touch: rows that changed, other than by appending, told to the tables that follow them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError, InvalidArgument
from pagebind.ops import TOUCH, TouchSpec
from pagebind.ops.touch import new_versions

from pagebind_conformance import generate
from pagebind_conformance.guarded import Guarded, Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.touch import touch

OPERATION = TOUCH
LONG = torch.int64
MOST, LEAST = 2**31 - 1, -(2**31)


def spec(**fields: Any) -> TouchSpec:
    """Return a spec of the size all cases share."""
    return TouchSpec(**{"max_bs": 80, **fields})


SPECS = [spec(), spec(row_dtype=LONG), spec(length_dtype=LONG), spec(row_dtype=LONG, length_dtype=LONG)]


def identify(value: TouchSpec) -> str:
    """Spell a spec: `i32i64` (row, length)."""
    return "".join(f"i{8 * dtype.itemsize}" for dtype in (value.row_dtype, value.length_dtype))


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)


def test_rows_that_never_changed_have_words_of_0(subject: Subject) -> None:
    made = new_versions(3, subject.device)
    assert (made.dtype, made.device, made.tolist()) == (torch.int32, subject.device, [[0, 0]] * 3)


@every_spec
def test_a_touch_raises_the_version_and_notes_the_lowest_token(subject: Subject, planned: TouchSpec) -> None:
    versions = [[4, 9], [0, 0], [-3, 7], [5, 5]]
    after = touch(subject, planned, versions, [2, 0], [6, 0])
    assert after == [[5, 0], [0, 0], [-2, 6], [5, 5]]
    assert touch(subject, planned, after, [2], [8])[2] == [-1, 8]  # the last change, not the lowest of all


@every_spec
def test_versions_wrap_around(subject: Subject, planned: TouchSpec) -> None:
    after = touch(subject, planned, [[MOST, 1], [-1, 1], [LEAST, 1], [MOST - 1, 1]], [0, 1, 2, 3], [2] * 4)
    assert [version for version, _ in after] == [LEAST, 0, LEAST + 1, MOST]


@every_spec
def test_tokens_are_clamped(subject: Subject, planned: TouchSpec) -> None:
    least, most = generate.LIMITS[planned.length_dtype]
    after = touch(subject, planned, [[0, 5]] * 5, [0, 1, 2, 3, 4], [least, -1, most, MOST, MOST - 1])
    assert [token for _, token in after] == [0, 0, MOST, MOST, MOST - 1]


@every_spec
def test_bad_rows_do_nothing_and_are_counted(subject: Subject, planned: TouchSpec) -> None:
    rows = [0, -1, 3, 2, 4, *generate.LIMITS[planned.row_dtype]]
    assert touch(subject, planned, [[1, 1]] * 3, rows, [7] * 7) == [[2, 7], [1, 1], [2, 7]]
    if planned.row_dtype is LONG:  # rows whose low 32 bits lie inside
        assert touch(subject, planned, [[1, 1]] * 3, [2**32, 1 - 2**32], [7, 7]) == [[1, 1]] * 3
    assert touch(subject, planned, [], [0, 5], [7, 7]) == []


@every_spec
def test_a_row_in_several_lanes_rises_by_as_many(subject: Subject, planned: TouchSpec) -> None:
    after = touch(subject, planned, [[1, 1], [MOST - 1, 4], [3, 3]], [1, 0, 1, 9, 1], [5, 2, 7, 1, 6])
    assert [version for version, _ in after] == [2, LEAST + 1, 3]
    assert after[0][1] == 2
    assert after[1][1] in (5, 6, 7)
    after = touch(subject, planned, [[0, 0]] * 3, [1] * 80, list(range(1, 81)))
    assert after[1][0] == 80
    assert after[0] == after[2] == [0, 0]


def test_words_between_other_tensors_at_any_alignment(subject: Subject) -> None:
    for shift in (1, 2, 3):
        how = How(layouts={name: Layout(shift=shift) for name in ("versions", "req_rows", "tokens")})
        assert touch(subject, SPECS[0], [[1, 1], [2, 2], [3, 3]], [1, 2], [8, 9], how) == [[1, 1], [3, 8], [4, 9]]


@every_spec
def test_an_empty_batch_changes_nothing(subject: Subject, planned: TouchSpec) -> None:
    touch(subject, planned, [[1, 1]], [], [])


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[3]], ids=identify)
def test_awkward_batches(subject: Subject, planned: TouchSpec, bs: int) -> None:
    rng = Random(bs)
    versions = [[rng.choice([0, MOST, -1, rng.randint(LEAST, MOST)]), rng.randint(0, 99)] for _ in range(bs + 2)]
    rows = rng.sample(range(-1, bs + 3), bs)
    for options in (LaunchOptions(threads=32, programs=3), *(() if subject.slow else (None,))):
        touch(subject, planned, versions, rows, [rng.randint(0, 999) for _ in rows], How(options=options))


def test_more_than_1024_lanes(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 1,024")
    rng = Random(1)
    rows = [rng.randrange(-1, 2500) for _ in range(2300)]
    wide = spec(max_bs=2300)
    touch(subject, wide, [[rng.randint(MOST - 2, MOST), 5] for _ in range(2499)], rows, list(range(2300)))
    touch(subject, wide, [[0, 5]] * 3, [1] * 2300, list(range(2300)))


def test_counting_off_touches_rows_and_no_counter(subject: Subject) -> None:
    for how in (How(checks="off"), How(counted=False)):
        assert touch(subject, SPECS[0], [[1, 1]] * 2, [1, 9, -1], [5, 6, 7], how) == [[1, 1], [2, 5]]


def test_full_checks_refuse_a_bad_row_and_write_nothing(subject: Subject) -> None:
    how = How(checks="full")
    with pytest.raises(FaultError, match="bad_row: 1"):
        touch(subject, SPECS[0], [[1, 1]] * 2, [1, 2], [5, 6], how)
    assert touch(subject, SPECS[0], [[1, 1]] * 2, [1, 0], [5, 6], how) == [[2, 6], [2, 5]]


def test_words_of_another_shape_are_refused(subject: Subject) -> None:
    planned = subject.plan(TOUCH, SPECS[0])
    rows, tokens = (torch.zeros(1, dtype=torch.int32, device=subject.device) for _ in range(2))
    apart = Guarded([[1, 1], [2, 2]], torch.int32, subject.device, Layout(row_gap=2)).view
    for wrong in (apart, torch.zeros(2, 3, dtype=torch.int32, device=subject.device)):
        with pytest.raises(InvalidArgument, match="new_versions"):
            planned(wrong, rows, tokens)


@every_spec
def test_generated_touches_equal_the_oracle(subject: Subject, planned: TouchSpec) -> None:
    @subject.generated()
    @given(rng=generate.RANDOM, bs=st.integers(0, 40), requests=st.integers(0, 30), shift=st.integers(0, 3))
    def equal(rng: Random, bs: int, requests: int, shift: int) -> None:
        rows = [rng.randrange(-1, requests + 1) for _ in range(bs)]
        how = How(layouts={name: Layout(shift=shift) for name in ("versions", "req_rows", "tokens")})
        versions = [[rng.choice([MOST, -1, 0, rng.randint(LEAST, MOST)]), rng.randint(0, 99)] for _ in range(requests)]
        touch(subject, planned, versions, rows, generate.lengths(rng, bs, 50, planned.length_dtype), how)

    equal()
