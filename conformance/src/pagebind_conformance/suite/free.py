"""free: ids unbound, they and their pages pushed back, in one launch."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind.errors import FaultError
from pagebind.ops import FREE, AllocSpec, FreeSpec

from pagebind_conformance import generate
from pagebind_conformance.generate import STACK_POISON
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import GuardedPool, How
from pagebind_conformance.trial.free import free

OPERATION = FREE
LONG = torch.int64
SPECS = [
    FreeSpec(max_items=512),
    FreeSpec(max_items=512, id_dtype=LONG),
    FreeSpec(max_items=512, index_dtype=LONG),
    FreeSpec(max_items=512, index_dtype=LONG, id_dtype=LONG),
]
BORROWED = [replace(planned, borrowed=True) for planned in SPECS]


def identify(value: FreeSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    kinds = f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"
    return f"borrowed-{kinds}" if value.borrowed else kinds


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
borrowed_specs = pytest.mark.parametrize("planned", BORROWED, ids=identify)
all_specs = pytest.mark.parametrize("planned", [*SPECS, *BORROWED], ids=identify)


def three_bound() -> SubPool:
    """Return a sub-pool of 3 pages, ids 1, 2, 3 bound to pages 3, 1, 2."""
    return SubPool([0, 3, 1, 2, -1], [0, 2, 3, 1, -1], [0] * 4, [0] * 4, 0, 0, 3, 5)


@every_spec
def test_freed_ids_and_pages_are_pushed_in_lane_order(subject: Subject, planned: FreeSpec) -> None:
    after, freed = free(subject, planned, three_bound(), [3, -1, 1])
    assert freed == [2, -1, 3]
    assert (after.virtual_stack[:2], after.hole_stack[:2]) == ([3, 1], [2, 3])
    assert (after.virtual_top, after.hole_top, after.watermark, after.epoch) == (2, 2, 3, 6)
    after, _ = free(subject, planned, three_bound(), [2, 3, 1])  # no lane is left out, and nothing is pushed anew
    assert (after.virtual_stack[:3], after.hole_stack[:3]) == ([2, 3, 1], [1, 2, 3])


@every_spec
def test_gaps_between_many_lanes_are_closed_in_lane_order(subject: Subject, planned: FreeSpec) -> None:
    pool = generate.sub_pool(Random(9), 600, 700, 560, 30)
    bound = [v for v in range(1, 600) if pool.v2p[v] > 0]
    ids = [v if i % 3 else -1 for i, v in enumerate(bound[: 100 if subject.slow else 512])]
    after, _ = free(subject, planned, pool, ids)
    assert after.virtual_top == pool.virtual_top + sum(v > 0 for v in ids)


@every_spec
def test_case_11_an_id_twice_in_one_call_gives_one_page_to_the_next_allocations(
    subject: Subject, planned: FreeSpec
) -> None:
    pool = three_bound()
    placed = GuardedPool(pool, planned.index_dtype, subject.device)
    pool, freed = free(subject, planned, pool, [1, 1], placed)
    assert sorted(freed) == [-1, 3]
    pool, _ = free(subject, planned, pool, [2], placed)
    _, ids, pages = alloc(subject, AllocSpec(max_items=4, index_dtype=planned.index_dtype), pool, 2, placed)
    assert ids == [2, 1]
    assert pages == [1, 3]


@every_spec
def test_case_12_an_id_over_two_calls_puts_no_tombstone_on_a_stack(subject: Subject, planned: FreeSpec) -> None:
    pool = three_bound()
    placed = GuardedPool(pool, planned.index_dtype, subject.device)
    for ids in ([1], [1], [1, 1]):
        pool, _ = free(subject, planned, pool, ids, placed)
    _, ids, pages = alloc(subject, AllocSpec(max_items=4, index_dtype=planned.index_dtype), pool, 3, placed)
    assert (ids, pages) == ([1, 0, 0], [3, 0, 0])


@every_spec
def test_case_12_full_checks_name_the_id_and_write_nothing(subject: Subject, planned: FreeSpec) -> None:
    pool, _ = free(subject, planned, three_bound(), [1], how=How(checks="full"))
    with pytest.raises(FaultError, match=r"double_free: 1\b") as caught:
        free(subject, planned, pool, [2, 1], how=How(checks="full"))
    assert caught.value.counters == {"double_free": 1}


@every_spec
def test_the_sink_and_ids_outside_are_dropped_and_counted(subject: Subject, planned: FreeSpec) -> None:
    least, most = generate.LIMITS[planned.id_dtype]
    free(subject, planned, three_bound(), [0, 2, 4, 5, most, least, -1, 3])
    free(subject, planned, three_bound(), [0, 4, -1])


@every_spec
@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 512], ids="size{}".format)
def test_awkward_sizes(subject: Subject, planned: FreeSpec, size: int) -> None:
    size = min(size, 200) if subject.slow else size
    rng = Random(size)
    pool = generate.sub_pool(rng, 600, 700, 560, 30)
    bound = [v for v in range(1, 600) if pool.v2p[v] > 0]
    free(subject, planned, pool, rng.sample(bound, size))


@every_spec
def test_of_lanes_that_repeat_an_id_exactly_one_is_served(subject: Subject, planned: FreeSpec) -> None:
    pool = generate.sub_pool(Random(7), 90, 90, 70, 5)
    bound = [v for v in range(1, 90) if pool.v2p[v] > 0]
    free(subject, planned, pool, [bound[0]] * 70)
    free(subject, planned, pool, [bound[i % 40] for i in range(130)] + [0, -1, 90])


def test_counting_off_moves_positions_and_no_counter(subject: Subject) -> None:
    free(subject, SPECS[0], three_bound(), [1, 0, 9, 3, -1], how=How(checks="off"))


@all_specs
def test_the_hosts_page_count_is_held_against_the_lanes_served(subject: Subject, planned: FreeSpec) -> None:
    for claimed in (2, 3, 0, None):
        free(subject, planned, three_bound(), [3, -1, 1, 0], pages=claimed)
    free(subject, planned, three_bound(), [1, 1, 1], pages=1)
    free(subject, planned, three_bound(), [-1], pages=0)
    free(subject, planned, three_bound(), [], pages=3)  # an empty call counts nothing


def test_a_count_that_is_off_is_not_counted_where_counting_is_off_and_refused_where_all_is_checked(
    subject: Subject,
) -> None:
    for planned in (SPECS[0], BORROWED[0]):
        free(subject, planned, three_bound(), [1, 3], pages=1, how=How(checks="off"))
        with pytest.raises(FaultError, match="count_mismatch: 2") as caught:
            free(subject, planned, three_bound(), [1, 3], pages=1, how=How(checks="full"))
        assert caught.value.counters == {"count_mismatch": 1}
        free(subject, planned, three_bound(), [1, 3], pages=2, how=How(checks="full"))


# ---- ids of another sub-pool ----


def window() -> SubPool:
    """Return a sub-pool that borrows ids 1 to 6, of which 2 and 5 have no page in it; nothing is on its stacks."""
    return SubPool(
        [0, 3, -1, 1, 2, -1, 4, -1], [0, 3, 4, 1, 6, -1, -1], [STACK_POISON] * 7, [STACK_POISON] * 6, 0, 0, 4, 5
    )


@borrowed_specs
def test_a_borrower_pushes_pages_and_no_ids(subject: Subject, planned: FreeSpec) -> None:
    after, freed = free(subject, planned, window(), [4, -1, 6])
    assert freed == [2, -1, 4]
    assert (after.hole_stack[:2], after.hole_top, after.virtual_top, after.epoch) == ([2, 4], 2, 0, 6)
    assert after.virtual_stack == [STACK_POISON] * 7


@borrowed_specs
def test_a_borrowed_id_without_a_page_here_is_a_hole(subject: Subject, planned: FreeSpec) -> None:
    pool = window()
    pool.v2p[5] = -7
    _, freed = free(subject, planned, pool, [2, 5, 3, 2], pages=1)
    assert freed == [-1, -1, 1, -1]
    free(subject, planned, pool, [2, 5, 3], pages=1, how=How(checks="full"))


@borrowed_specs
def test_a_borrower_counts_the_sink_ids_past_the_table_and_repeats(subject: Subject, planned: FreeSpec) -> None:
    least, most = generate.LIMITS[planned.id_dtype]
    pool = window()
    pool.v2p[2] = 0  # no page: a fault
    pool.v2p[5] = 6
    free(subject, planned, pool, [0, 7, most, least, 2, 5, 1])
    free(subject, planned, window(), [4, 2, 4, 4, -1, 6, 2])
    with pytest.raises(FaultError, match="double_free: 4") as caught:
        free(subject, planned, window(), [4, 2, 4], how=How(checks="full"))
    assert caught.value.counters == {"double_free": 1}


@borrowed_specs
def test_a_borrower_frees_the_same_id_again_after_another_borrowing_alone(subject: Subject, planned: FreeSpec) -> None:
    placed = GuardedPool(window(), planned.index_dtype, subject.device)
    pool, _ = free(subject, planned, window(), [4], placed)
    pool, freed = free(subject, planned, pool, [4], placed)
    assert freed == [-1]
    lending = AllocSpec(max_items=4, borrowed=True, index_dtype=planned.index_dtype)
    pool, _, pages = alloc(subject, lending, pool, [4], placed)
    assert pages == [2]
    _, freed = free(subject, planned, pool, [4], placed)
    assert freed == [2]


@borrowed_specs
@pytest.mark.parametrize("size", [1, 33, 512], ids="size{}".format)
def test_awkward_numbers_of_borrowed_ids(subject: Subject, planned: FreeSpec, size: int) -> None:
    size = min(size, 150) if subject.slow else size
    rng = Random(size)
    pool = generate.borrower(generate.sub_pool(rng, 600, 700, 300, 30))
    ids = rng.sample(range(1, 600), size)  # some of which have no page
    free(subject, planned, pool, ids, pages=size)


@pytest.mark.parametrize("planned", [*SPECS[::3], *BORROWED[::3]], ids=identify)
@pytest.mark.parametrize("top", [-1, -(2**63), 2**63 - 1, 5], ids="top{}".format)
def test_a_spoiled_top_pushes_into_the_stack_alone(subject: Subject, planned: FreeSpec, top: int) -> None:
    free(subject, planned, window()._replace(hole_top=top), [4, 6, 1])
    if not planned.borrowed:
        free(subject, planned, window()._replace(virtual_top=top), [4, 6, 1])


@all_specs
@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "repeats"])
def test_generated_frees_equal_the_oracle(subject: Subject, planned: FreeSpec, repeats: bool) -> None:
    @subject.generated(0.4)
    @given(
        rng=generate.RANDOM,
        sizes=st.tuples(st.integers(2, 70), st.integers(2, 70)),
        live=st.integers(0, 60),
        holes=st.integers(0, 20),
        n=st.integers(0, 80),
    )
    def equal(rng: Random, sizes: tuple[int, int], live: int, holes: int, n: int) -> None:
        pool = generate.sub_pool(rng, *sizes, live, holes)
        if planned.borrowed:
            pool = generate.borrower(pool)
        ids = generate.page_ids(rng, n, range(1, sizes[0]), sizes[0], planned.id_dtype)
        if repeats and n:
            ids = [rng.choice(ids) for _ in ids]
        free(subject, planned, pool, ids, pages=rng.choice([None, None, 3]))

    equal()
