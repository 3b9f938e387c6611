"""alloc: ids and pages off the device stacks, bound in the same launch."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def identify(value: AllocSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    return f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)


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


def test_full_checks_refuse_a_starved_call_and_write_nothing(subject: Subject) -> None:
    pool = generate.sub_pool(Random(6), 20, 9, 3, 2)
    with pytest.raises(FaultError, match="starved") as caught:
        alloc(subject, SPECS[0], pool, 6, how=How(checks="full"))
    assert caught.value.counters == {"starved": 1}
    alloc(subject, SPECS[0], pool, 5, how=How(checks="full"))


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
