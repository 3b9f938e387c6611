"""unbind: the fused tombstone free."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError
from pagebind.ops import UNBIND, UnbindSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.unbind import unbind

OPERATION = UNBIND
LONG = torch.int64
SPECS = [
    UnbindSpec(max_items=512),
    UnbindSpec(max_items=512, id_dtype=LONG),
    UnbindSpec(max_items=512, index_dtype=LONG),
    UnbindSpec(max_items=512, index_dtype=LONG, id_dtype=LONG),
]


def identify(value: UnbindSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    return f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)


@every_spec
def test_both_tables_get_a_tombstone_and_pages_come_out_in_lane_order(subject: Subject, planned: UnbindSpec) -> None:
    v2p, p2v, freed = unbind(subject, planned, [3, 1, -1], [0, 4, 2, 3, -1, -1], [0, -1, 2, 3, 1, -1])
    assert (v2p, p2v, freed) == ([0, -1, 2, -1, -1, -1], [0, -1, 2, -1, -1, -1], [3, 4, -1])


@every_spec
def test_case_11_the_same_id_twice_in_one_call_comes_back_once(subject: Subject, planned: UnbindSpec) -> None:
    _, _, freed = unbind(subject, planned, [1, 1], [0, 3, -1, 1, -1], [0, 3, -1, 1, -1])
    assert sorted(freed) == [-1, 3]


@every_spec
def test_case_12_the_same_id_over_two_calls_is_dropped_and_counted(subject: Subject, planned: UnbindSpec) -> None:
    v2p, p2v, _ = unbind(subject, planned, [1], [0, 3, 1, 2, -1], [0, 2, 3, 1, -1])
    assert unbind(subject, planned, [1], v2p, p2v) == (v2p, p2v, [-1])


@every_spec
def test_case_12_full_checks_name_the_id_and_write_nothing(subject: Subject, planned: UnbindSpec) -> None:
    with pytest.raises(FaultError, match=r"double_free: 1\b") as caught:
        unbind(subject, planned, [2, 1], [0, -1, 1, 2, -1], [0, 2, 3, -1, -1], How(checks="full"))
    assert caught.value.counters == {"double_free": 1}
    unbind(subject, planned, [2, -1], [0, -1, 1, 2, -1], [0, 2, 3, -1, -1], How(checks="full"))


@every_spec
def test_the_sink_and_ids_outside_are_dropped_and_counted(subject: Subject, planned: UnbindSpec) -> None:
    least, most = generate.LIMITS[planned.id_dtype]
    v2p, p2v = [0, 3, -1, 1, -1], [0, 3, -1, 1, -1]
    unbind(subject, planned, [0, 4, 5, 10**6, most, least, -1, 2, 3], v2p, p2v)
    # Rows of v2p that hold no page of p2v: the sink, and one past the table.
    unbind(subject, planned, [1, 2, 3], [0, 0, 9, 1, -1], [0, 3, -1, -1, -1])


@every_spec
def test_of_lanes_that_repeat_an_id_exactly_one_is_served(subject: Subject, planned: UnbindSpec) -> None:
    v2p, p2v = generate.page_tables(Random(6), 12, 20, 8)
    bound = [v for v in range(1, 12) if v2p[v] > 0]
    unbind(subject, planned, [bound[0]] * 70, v2p, p2v)
    unbind(subject, planned, [bound[i % 3] for i in range(64)] + [bound[5], 0, 0, -1, -1], v2p, p2v)


@every_spec
@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 512], ids="size{}".format)
def test_awkward_sizes(subject: Subject, planned: UnbindSpec, size: int) -> None:
    size = min(size, 200) if subject.slow else size
    rng = Random(size)
    v2p, p2v = generate.page_tables(rng, 600, 700, 560)
    how = How(layouts={name: Layout(shift=size % 3) for name in ("ids", "freed", "v2p", "p2v")})
    unbind(subject, planned, rng.sample(range(1, 600), size), v2p, p2v, how)


def test_counting_off_changes_no_value_and_no_counter(subject: Subject) -> None:
    for how in (How(checks="off"), How(counted=False)):
        unbind(subject, SPECS[0], [1, 1, 0, 9, 2], [0, 3, -1, 1, -1], [0, 3, -1, 1, -1], how)


def test_launch_sizes_change_no_result(subject: Subject) -> None:
    v2p, p2v = generate.page_tables(Random(4), 300, 300, 250)
    unbind(subject, SPECS[0], list(range(1, 290, 2)), v2p, p2v, How(options=LaunchOptions(threads=32, programs=2)))


@every_spec
@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "repeats"])
def test_generated_ids_equal_the_oracle(subject: Subject, planned: UnbindSpec, repeats: bool) -> None:
    @subject.generated()
    @given(rng=generate.RANDOM, n=st.integers(0, 80), sizes=st.tuples(st.integers(2, 90), st.integers(2, 90)))
    def equal(rng: Random, n: int, sizes: tuple[int, int]) -> None:
        v2p, p2v = generate.page_tables(rng, *sizes, rng.randint(0, 90))
        ids = generate.page_ids(rng, n, range(1, sizes[0]), sizes[0], planned.id_dtype)
        if repeats and n:
            ids = [rng.choice(ids) for _ in ids]
        unbind(subject, planned, ids, v2p, p2v)

    equal()
