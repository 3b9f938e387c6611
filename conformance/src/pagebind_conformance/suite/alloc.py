"""alloc: ids and pages off the device stacks, bound in the same launch."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError
from pagebind.ops import ALLOC, AllocSpec

from pagebind_conformance import generate
from pagebind_conformance.generate import STACK_POISON
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import GuardedPool, How

OPERATION = ALLOC
LONG = torch.int64
SPECS = [
    AllocSpec(max_items=512),
    AllocSpec(max_items=512, id_dtype=LONG),
    AllocSpec(max_items=512, index_dtype=LONG),
    AllocSpec(max_items=512, index_dtype=LONG, id_dtype=LONG),
]
BORROWED = [replace(planned, borrowed=True) for planned in SPECS]


def identify(value: AllocSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    kinds = f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"
    return f"borrowed-{kinds}" if value.borrowed else kinds


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
borrowed_specs = pytest.mark.parametrize("planned", BORROWED, ids=identify)


@every_spec
def test_the_last_freed_page_goes_first_and_then_the_frontier(subject: Subject, planned: AllocSpec) -> None:
    # Live: id 4 in page 2. Holes: 1, then 3 on top. Ids: 1, 3, then 2 on top.
    pool = SubPool(
        [0, -1, -1, -1, 2, -1], [0, -1, 4, -1, -1, -1, -1], [1, 3, 2, STACK_POISON, STACK_POISON],
        [1, 3, *[STACK_POISON] * 4], 3, 2, 3,
    )  # fmt: skip
    after, ids, pages = alloc(subject, planned, pool, 3)
    assert (ids, pages) == ([2, 3, 1], [3, 1, 4])
    assert (after.virtual_top, after.hole_top, after.watermark) == (0, 0, 4)


@every_spec
def test_what_is_not_found_is_the_sink_and_counted(subject: Subject, planned: AllocSpec) -> None:
    rng = Random(1)
    no_pages = generate.sub_pool(rng, 40, 9, 3, 2)
    alloc(subject, planned, no_pages, 20)
    no_ids = generate.sub_pool(rng, 9, 40, 5, 2)
    after, _, _ = alloc(subject, planned, no_ids, 20)
    _, ids, pages = alloc(subject, planned, after, 3)
    assert ids == pages == [0, 0, 0]


@every_spec
def test_an_id_or_page_bound_by_hand_is_dropped_off_the_stacks_and_counted(
    subject: Subject, planned: AllocSpec
) -> None:
    pool = generate.sub_pool(Random(2), 30, 30, 4, 6)
    v, page = pool.virtual_stack[pool.virtual_top - 3], pool.hole_stack[pool.hole_top - 2]
    by_hand = pool.copy()
    by_hand.v2p[v], by_hand.p2v[29] = 29, v
    alloc(subject, planned, by_hand, 9)
    by_hand = pool.copy()
    by_hand.p2v[page] = pool.virtual_stack[0]
    by_hand.v2p[pool.virtual_stack[0]] = page
    alloc(subject, planned, by_hand, 9)
    outside = pool.copy()
    outside.virtual_stack[pool.virtual_top - 1] = 30
    outside.virtual_stack[pool.virtual_top - 2] = -1
    outside.virtual_stack[pool.virtual_top - 3] = 0
    outside.hole_stack[pool.hole_top - 4] = 30
    outside.hole_stack[pool.hole_top - 5] = 0
    outside.hole_stack[pool.hole_top - 6] = -7
    alloc(subject, planned, outside, 9)


@every_spec
@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 512], ids="size{}".format)
def test_awkward_sizes(subject: Subject, planned: AllocSpec, size: int) -> None:
    size = min(size, 200) if subject.slow else size
    pool = generate.sub_pool(Random(size), 600, 700, 40, size // 2)
    alloc(subject, planned, pool, size)


def test_the_whole_capacity_in_one_call_and_nothing_after(subject: Subject) -> None:
    pool = generate.sub_pool(Random(3), 64, 64, 0, 0)
    after, ids, pages = alloc(subject, SPECS[0], pool, 63)
    assert sorted(ids) == sorted(pages) == list(range(1, 64))
    alloc(subject, SPECS[0], after, 1)


def test_calls_in_a_row_take_positions_from_the_state_block(subject: Subject) -> None:
    pool = generate.sub_pool(Random(4), 60, 60, 5, 20)
    placed = GuardedPool(pool, torch.int32, subject.device)
    taken: list[int] = []
    for asked in (3, 1, 17, 9, 40):
        pool, ids, _ = alloc(subject, SPECS[0], pool, asked, placed)
        taken += [v for v in ids if v]
    assert len(set(taken)) == len(taken)


def test_counting_off_moves_positions_and_no_counter(subject: Subject) -> None:
    alloc(subject, SPECS[0], generate.sub_pool(Random(5), 9, 9, 2, 2), 12, how=How(checks="off"))


def test_case_17_full_checks_refuse_a_starved_call_and_write_nothing(subject: Subject) -> None:
    pool = generate.sub_pool(Random(6), 20, 9, 3, 2)
    with pytest.raises(FaultError, match="starved") as caught:
        alloc(subject, SPECS[0], pool, 6, how=How(checks="full"))
    assert caught.value.counters == {"starved": 1}
    alloc(subject, SPECS[0], pool, 5, how=How(checks="full"))


# ---- ids of another sub-pool ----


@borrowed_specs
def test_case_04_a_borrowers_v2p_is_sized_by_the_owners_ids(subject: Subject, planned: AllocSpec) -> None:
    # The owner of the ids has 12, the sink among them; the borrower has 3 pages.
    pool = SubPool([0, *[-1] * 12], [0, *[-1] * 3], [STACK_POISON] * 12, [STACK_POISON] * 3, 0, 0, 0)
    after, ids, pages = alloc(subject, planned, pool, [10, 11])
    assert (ids, pages) == ([10, 11], [1, 2])
    assert after.v2p == [0, *[-1] * 9, 1, 2, -1]
    assert after.p2v == [0, 10, 11, -1]
    assert (after.virtual_top, after.watermark) == (0, 2)


@borrowed_specs
def test_lanes_with_the_sink_or_a_hole_ask_for_nothing(subject: Subject, planned: AllocSpec) -> None:
    # Holes: 2, then 3 on top; page 4 is live.
    pool = SubPool(
        [0, *[-1] * 5, 4, -1, -1], [0, -1, -1, -1, 6, *[-1] * 4], [STACK_POISON] * 8,
        [2, 3, *[STACK_POISON] * 6], 0, 2, 4,
    )  # fmt: skip
    least = generate.LIMITS[planned.id_dtype][0]
    after, _, pages = alloc(subject, planned, pool, [0, 5, -1, 1, 0, least, 7, -9])
    assert pages == [0, 3, 0, 2, 0, 0, 5, 0]
    assert (after.hole_top, after.watermark, after.virtual_top) == (0, 5, 0)
    after, _, pages = alloc(subject, planned, pool, [0, -1, 0])
    assert pages == [0, 0, 0]
    assert (after.hole_top, after.watermark) == (2, 4)


@borrowed_specs
@pytest.mark.parametrize("top", [0, 2, -1, 2**62], ids="top{}".format)
def test_the_virtual_stack_of_a_borrower_is_no_bound_and_stays(subject: Subject, planned: AllocSpec, top: int) -> None:
    pool = generate.sub_pool(Random(3), 30, 20, 4, 3)._replace(virtual_top=top)
    unbound = [v for v in range(1, 30) if pool.v2p[v] < 0]
    after, _, pages = alloc(subject, planned, pool, unbound)
    assert pages[15:] == [0] * (len(unbound) - 15)
    assert (sum(p > 0 for p in pages), after.virtual_top) == (15, top)


@borrowed_specs
def test_a_borrowed_id_that_is_bound_or_outside_is_dropped_and_counted(subject: Subject, planned: AllocSpec) -> None:
    pool = generate.borrower(generate.sub_pool(Random(4), 30, 30, 6, 4))
    bound = next(v for v in range(1, 30) if pool.v2p[v] > 0)
    most = generate.LIMITS[planned.id_dtype][1]
    unbound = [v for v in range(1, 30) if pool.v2p[v] < 0]
    # Each takes its page along: what comes next gets the page after it.
    after, _, pages = alloc(subject, planned, pool, [unbound[0], bound, 30, unbound[1], 31, most, unbound[2]])
    assert [p for p in pages if p] == [pool.hole_stack[3], pool.hole_stack[0], 13]
    assert (after.hole_top, after.watermark) == (0, 13)


@borrowed_specs
def test_of_lanes_that_borrow_one_id_exactly_one_is_served(subject: Subject, planned: AllocSpec) -> None:
    pool = generate.borrower(generate.sub_pool(Random(5), 90, 150, 10, 5))
    unbound = [v for v in range(1, 90) if pool.v2p[v] < 0]
    alloc(subject, planned, pool, [unbound[0]] * 70)
    alloc(subject, planned, pool, [unbound[i % 40] for i in range(110)] + [0, -1, 90])


@borrowed_specs
def test_lanes_that_borrow_one_id_where_pages_are_bound_by_hand(subject: Subject, planned: AllocSpec) -> None:
    pool = generate.borrower(generate.sub_pool(Random(9), 90, 150, 10, 5))
    unbound = [v for v in range(1, 90) if pool.v2p[v] < 0]
    for v in unbound[60:66]:  # pages that the frontier comes to
        p = pool.watermark + v % 7 + 1
        pool.v2p[v], pool.p2v[p] = p, v
    alloc(subject, planned, pool, [unbound[i % 9] for i in range(40)])
    alloc(subject, planned, pool, [unbound[min(i, 30 - i)] for i in range(31)])


@borrowed_specs
@pytest.mark.parametrize("size", [1, 31, 33, 63, 512], ids="size{}".format)
def test_awkward_numbers_of_borrowed_ids(subject: Subject, planned: AllocSpec, size: int) -> None:
    size = min(size, 150) if subject.slow else size
    rng = Random(size)
    pool = generate.borrower(generate.sub_pool(rng, 700, 500, 40, size // 2))
    unbound = [v for v in range(1, 700) if pool.v2p[v] < 0]
    ids = [rng.choice([0, -1]) if rng.random() < 0.4 else v for v in rng.sample(unbound, size)]
    for options in (LaunchOptions(threads=32, programs=2), *(() if subject.slow else (None,))):
        alloc(subject, planned, pool, ids, how=How(options=options))


def test_full_checks_refuse_a_borrowed_call_that_would_starve(subject: Subject) -> None:
    pool = generate.borrower(generate.sub_pool(Random(6), 20, 9, 3, 2))
    unbound = [v for v in range(1, 20) if pool.v2p[v] < 0]
    how = How(checks="full")
    with pytest.raises(FaultError, match="starved: 7") as caught:
        alloc(subject, BORROWED[0], pool, [0, *unbound[:5], -1, unbound[5]], how=how)
    assert caught.value.counters == {"starved": 1}
    alloc(subject, BORROWED[0], pool, [0, *unbound[:5], -1], how=how)


@borrowed_specs
def test_generated_borrowings_equal_the_oracle(subject: Subject, planned: AllocSpec) -> None:
    @subject.generated(0.5)
    @given(
        rng=generate.RANDOM,
        sizes=st.tuples(st.integers(2, 60), st.integers(2, 60)),
        live=st.integers(0, 40),
        holes=st.integers(0, 40),
        asked=st.integers(0, 70),
        repeats=st.booleans(),
    )
    def equal(rng: Random, sizes: tuple[int, int], live: int, holes: int, asked: int, repeats: bool) -> None:
        pool = generate.borrower(generate.sub_pool(rng, *sizes, live, holes))
        ids = generate.page_ids(rng, asked, range(1, sizes[0]), sizes[0], planned.id_dtype)
        if repeats:
            ids = [rng.choice(ids) for _ in ids]
        alloc(subject, planned, pool, ids)

    equal()


@every_spec
def test_generated_allocations_equal_the_oracle(subject: Subject, planned: AllocSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        sizes=st.tuples(st.integers(2, 60), st.integers(2, 60)),
        live=st.integers(0, 40),
        holes=st.integers(0, 40),
        asked=st.integers(0, 70),
    )
    def equal(rng: Random, sizes: tuple[int, int], live: int, holes: int, asked: int) -> None:
        alloc(subject, planned, generate.sub_pool(rng, *sizes, live, holes), asked)

    equal()
