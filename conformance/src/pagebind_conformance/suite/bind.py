"""bind: pairs written into both tables, unless either page is bound."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError
from pagebind.ops import BIND, BindSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.bind import bind
from pagebind_conformance.trial.call import How

OPERATION = BIND
LONG = torch.int64
SPECS = [
    BindSpec(max_items=512),
    BindSpec(max_items=512, id_dtype=LONG),
    BindSpec(max_items=512, index_dtype=LONG),
    BindSpec(max_items=512, index_dtype=LONG, id_dtype=LONG),
]


def identify(value: BindSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    return f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)


@every_spec
def test_case_04_tables_of_another_size_than_the_owner_of_the_ids(subject: Subject, planned: BindSpec) -> None:
    v2p, p2v = bind(subject, planned, [10, 11], [1, 2], [0] + [-1] * 12, [0] + [-1] * 3)
    assert v2p == [0, *[-1] * 9, 1, 2, -1]
    assert p2v == [0, 10, 11, -1]


@every_spec
def test_what_is_bound_the_sink_and_ids_outside_are_dropped_and_counted(subject: Subject, planned: BindSpec) -> None:
    least, most = generate.LIMITS[planned.id_dtype]
    v2p, p2v = [0, 2, -1, -1, -1, -1, -1], [0, -1, 1, -1, -1, -1]
    virtual = [1, 2, 0, 3, 6, 7, most, 4, 4, 4, 5, 5, -1, least]
    physical = [3, 2, 3, 0, 3, 3, 3, 5, most, least, -1, 4, 1, 1]
    bind(subject, planned, virtual[:9], physical[:9], v2p, p2v)
    for v, p in zip(virtual, physical, strict=True):
        bind(subject, planned, [v], [p], v2p, p2v)


@every_spec
def test_of_lanes_that_repeat_a_page_at_most_one_is_served(subject: Subject, planned: BindSpec) -> None:
    v2p, p2v = [0, *[-1] * 9], [0, *[-1] * 9]
    bind(subject, planned, [1, 1, 2, 3, 3, 5], [4, 4, 5, 6, 7, 5], v2p, p2v)
    bind(subject, planned, [4] * 70, [7] * 70, v2p, p2v)
    bind(subject, planned, [4] * 8, list(range(1, 9)), v2p, p2v)
    bind(subject, planned, list(range(1, 9)), [3] * 8, v2p, p2v)
    bind(subject, planned, [i % 5 + 1 for i in range(64)], [i % 7 + 1 for i in range(64)], v2p, p2v)


@every_spec
@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 512], ids="size{}".format)
def test_awkward_sizes(subject: Subject, planned: BindSpec, size: int) -> None:
    size = min(size, 200) if subject.slow else size
    rng = Random(size)
    virtual, physical = rng.sample(range(1, 600), size), rng.sample(range(1, 700), size)
    how = How(layouts={name: Layout(shift=size % 3) for name in ("virtual", "physical", "v2p", "p2v")})
    bind(subject, planned, virtual, physical, [0, *[-1] * 600], [0, *[-1] * 700], how)


def test_counting_off_changes_no_value_and_no_counter(subject: Subject) -> None:
    for how in (How(checks="off"), How(counted=False)):
        bind(subject, SPECS[0], [1, 2, 0, 9], [3, 3, 1, 1], [0, -1, -1, -1], [0, -1, -1, -1, -1], how)
        bind(subject, SPECS[0], [1, 2], [1, 2], [0, 3, -1, -1], [0, -1, -1, 1, -1], how)


def test_full_checks_name_the_id_and_write_nothing(subject: Subject) -> None:
    how = How(checks="full")
    v2p, p2v = [0, 3, -1, -1], [0, -1, -1, 1, -1]
    with pytest.raises(FaultError, match="1") as caught:
        bind(subject, SPECS[0], [2, 1], [2, 1], v2p, p2v, how)
    assert caught.value.counters == {"bad_bind": 1}
    bind(subject, SPECS[0], [2], [2], v2p, p2v, how)


def test_launch_sizes_change_no_result(subject: Subject) -> None:
    rng = Random(4)
    how = How(options=LaunchOptions(threads=32, programs=2))
    bind(subject, SPECS[0], rng.sample(range(1, 300), 150), rng.sample(range(1, 300), 150), [0, *[-1] * 300],
         [0, *[-1] * 300], how)  # fmt: skip


@every_spec
@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "repeats"])
def test_generated_pairs_equal_the_oracle(subject: Subject, planned: BindSpec, repeats: bool) -> None:
    @subject.generated()
    @given(rng=generate.RANDOM, n=st.integers(0, 80), sizes=st.tuples(st.integers(2, 90), st.integers(2, 90)))
    def equal(rng: Random, n: int, sizes: tuple[int, int]) -> None:
        v2p, p2v = generate.page_tables(rng, *sizes, rng.randint(0, 30))
        virtual = generate.page_ids(rng, n, range(1, sizes[0]), sizes[0], planned.id_dtype)
        physical = generate.page_ids(rng, n, range(1, sizes[1]), sizes[1], planned.id_dtype)
        if repeats and n:
            virtual = [rng.choice(virtual) for _ in virtual]
            physical = [rng.choice(physical) if rng.random() < 0.5 else p for p in physical]
        bind(subject, planned, virtual, physical, v2p, p2v)

    equal()
