"""extend: pages for new tokens, bound, written to the request table, with their write slots."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError, InvalidArgument
from pagebind.ops import EXTEND, ExtendSpec

from pagebind_conformance import generate
from pagebind_conformance.generate import STACK_POISON
from pagebind_conformance.guarded import Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.extend import extend, extend_and_tell

OPERATION = EXTEND
LONG = torch.int64


def spec(page_size: int, **fields: Any) -> ExtendSpec:
    """Return a spec of the sizes all cases share."""
    sizes = {"max_bs": 80, "max_tokens": 4096, "num_virtual": 512, "num_physical": 512}
    return ExtendSpec(**{**sizes, "page_size": page_size, **fields})


SPECS = [
    spec(1),
    spec(1, form="page", length_dtype=LONG, out_dtype=LONG),
    spec(4, index_dtype=LONG, multiplier=3, indptr_dtype=LONG),
    spec(4, form="page", row_dtype=LONG, length_dtype=LONG),
    spec(3, length_dtype=LONG, row_dtype=LONG, out_dtype=LONG, multiplier=7),
    spec(3, form="page", index_dtype=LONG, indptr_dtype=LONG),
]


EMITTING = [
    spec(1, emits=True),
    spec(1, form="page", emits=True, id_dtype=LONG, index_dtype=LONG),
    spec(4, emits=True, id_dtype=LONG, length_dtype=LONG),
    spec(4, form="page", emits=True, indptr_dtype=LONG),
    spec(3, emits=True, index_dtype=LONG, row_dtype=LONG, out_dtype=LONG),
    spec(3, form="page", emits=True, id_dtype=LONG, multiplier=5),
]


def identify(value: ExtendSpec) -> str:
    """Spell a spec: `ps4-token-x3-i64i32i32i64i32` (index, row, length, indptr, out, then id where it emits)."""
    parts = [f"ps{value.page_size}", value.form] + ([f"x{value.multiplier}"] if value.multiplier > 1 else [])
    dtypes = [value.index_dtype, value.row_dtype, value.length_dtype, value.indptr_dtype, value.out_dtype]
    if value.emits:
        parts.append("emits")
        dtypes.append(value.id_dtype)
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
emitting_specs = pytest.mark.parametrize("planned", EMITTING, ids=identify)
forms = pytest.mark.parametrize("form", ["token", "page"])


def pool_of(live: dict[int, int], holes: list[int], ids: list[int], watermark: int, num: int = 12) -> SubPool:
    """Return a sub-pool of `num` pages with these pages live, these holes and free ids, the last of each on top."""
    v2p, p2v = [0] + [-1] * num, [0] + [-1] * num
    for v, p in live.items():
        v2p[v], p2v[p] = p, v
    return SubPool(
        v2p, p2v, ids + [STACK_POISON] * (num - len(ids)), holes + [STACK_POISON] * (num - len(holes)),
        len(ids), len(holes), watermark,
    )  # fmt: skip


def held_rows(
    rng: Random, pool: SubPool, prefixes: list[int], cells: int, page_size: int, form: str
) -> list[list[int]]:
    """Return a row per prefix that holds live pages for it, no page twice while there are enough, then leftovers."""
    live = [v for v in range(1, len(pool.v2p) - 1) if pool.v2p[v] > 0]
    rng.shuffle(live)
    rows = []
    for prefix in prefixes:
        pages = [live.pop() if live else -1 for _ in range(-(-prefix // page_size))]
        row = generate.spread(pages, page_size, form)[:cells]
        rows.append(row + [rng.choice([-1, 7777]) for _ in range(cells - len(row))])
    return rows


@forms
def test_new_tokens_fill_the_last_page_and_then_take_new_ones(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5}, [2, 4], [1, 9, 8], 5)
    rows = [generate.spread([3, -1, -1, -1], 3, form)]
    table, after, slots = extend(subject, spec(3, form=form), rows, [0], [2], [0, 5], pool, capacity=6)
    # Token 2 goes on in page 5; tokens 3 to 5 get id 8 in page 4, token 6 id 9 in page 2.
    assert slots[:5] == [17, 12, 13, 14, 6]
    assert table[0][:7] == [9, 10, 11, 24, 25, 26, 27] if form == "token" else table[0][:3] == [3, 8, 9]
    assert (after.virtual_top, after.hole_top, after.watermark) == (1, 0, 5)


@forms
def test_a_last_page_that_is_a_hole_past_the_table_or_unbound(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5}, [], [1, 2], 5)
    for page in (-1, -5, 12, 400, 4, 0):
        cells = [page * 3 + i for i in range(3)] if form == "token" else [page]
        rows = [cells + [-7] * (3 * len(cells)), generate.spread([3, -1, -1, -1], 3, form)]
        extend(subject, spec(3, form=form), rows, [0, 1], [1, 1], [0, 4, 8], pool, capacity=8)


@forms
def test_case_08_pages_that_are_not_found_are_the_sink(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5}, [2], [9, 8, 7], 11)
    rows = [generate.spread([-1] * 4, 3, form) for _ in range(2)]
    _, _, slots = extend(subject, spec(3, form=form), rows, [1, 0], [0, 0], [0, 6, 12], pool, capacity=12)
    assert slots == [6, 7, 8, *[0, 1, 2] * 3]


def test_case_10_a_slot_past_32_bits_is_exact_or_refused(subject: Subject) -> None:
    planned = spec(1, num_physical=2001, multiplier=1_500_000, out_dtype=LONG)
    pool = SubPool([0, -1, -1], [0] + [-1] * 2001, [1, 0], [0] * 2001, 1, 0, 1999)
    _, _, slots = extend(subject, planned, [[-1]], [0], [0], [0, 1], pool, capacity=1)
    assert slots == [3_000_000_000]
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, num_physical=2001, multiplier=1_500_000)


@every_spec
def test_empty_batches_and_lanes_without_tokens_write_nothing(subject: Subject, planned: ExtendSpec) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    extend(subject, planned, [[-1] * 4], [], [], [0], pool, capacity=3)
    extend(subject, planned, [[-1] * 4] * 3, [0, 1, 2], [0, 2, 4], [1, 1, 1, 1], pool, capacity=3)


@every_spec
def test_the_hosts_page_count_is_held_against_the_devices(subject: Subject, planned: ExtendSpec) -> None:
    pool = generate.sub_pool(Random(2), 40, 40, 0, 5)
    rows = [[-1] * 12] * 2
    pages = 2 * -(-5 // planned.page_size)
    for claimed in (pages, pages + 1, 0):
        extend(subject, planned, rows, [0, 1], [0, 0], [0, 5, 10], pool, capacity=10, pages=claimed)


@every_spec
def test_bad_prefixes_rows_and_parts_are_clipped_and_counted(subject: Subject, planned: ExtendSpec) -> None:
    rng = Random(3)
    least, most = generate.LIMITS[planned.length_dtype]
    low, high = generate.LIMITS[planned.indptr_dtype]
    pool = generate.sub_pool(rng, 60, 60, 12, 8)
    prefixes = [least, -1, 0, 3, 11, 12, 10**6, most, 0, 0, 0]
    cells = 12
    rows = held_rows(rng, pool, [0, 0, 0, 3, 11, 12, 12, 12], cells, planned.page_size, planned.form)
    req_rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, *generate.LIMITS[planned.row_dtype]]
    for indptr in (
        list(range(0, 60, 5)),
        [0, 0, 2, 2, 9, 10, 11, 30, 10**6, high, high, high],
        [low, -1, 0, 4, 4, 8, 9, 12, 13, 14, 15, high],
        [5, 3, 30, 31, 20, 22, 40, high, 41, low, 44, 45],
    ):
        if any(a < b and c < d for (a, b), (c, d) in overlapping(indptr, 50)):
            continue
        extend(subject, planned, rows, req_rows, prefixes, indptr, pool, capacity=50)


def overlapping(indptr: list[int], capacity: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of parts that share a slot: what it holds is open."""
    clamped = [min(max(x, 0), capacity) for x in indptr]
    parts = [(a, b) for a, b in pairwise(clamped) if a < b]
    return [(x, y) for i, x in enumerate(parts) for y in parts[:i] if x[0] < y[1] and y[0] < x[1]]


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[5]], ids=identify)
def test_awkward_batches(subject: Subject, planned: ExtendSpec, bs: int) -> None:
    rng = Random(bs)
    pool = generate.sub_pool(rng, 500, 500, 160, 40)
    prefixes = [rng.randint(0, 2 * planned.page_size) for _ in range(bs)]
    rows = held_rows(rng, pool, prefixes, 40, planned.page_size, planned.form)
    indptr = generate.offsets(rng, [rng.choice([0, 1, 2, 7]) for _ in range(bs)], planned.indptr_dtype)
    order = rng.sample(range(bs), bs)
    in_order = [prefixes[r] for r in order]
    extend(subject, planned, rows, order, in_order, indptr, pool, capacity=indptr[-1])


def test_counting_off_moves_positions_and_no_counter(subject: Subject) -> None:
    pool = generate.sub_pool(Random(5), 9, 9, 2, 2)
    rows = [[-1] * 9] * 2
    how = How(checks="off")
    extend(subject, SPECS[0], rows, [0, 7, 1], [0, 0, -1], [0, 9, 12, 40], pool, capacity=20, pages=1, how=how)


def test_case_17_full_checks_refuse_a_starved_call_and_write_nothing(subject: Subject) -> None:
    pool = generate.sub_pool(Random(6), 20, 9, 3, 2)
    how = How(checks="full")
    with pytest.raises(FaultError, match="starved") as caught:
        extend(subject, SPECS[0], [[-1] * 9], [0], [0], [0, 6], pool, capacity=6, how=how)
    assert caught.value.counters == {"starved": 1}
    extend(subject, SPECS[0], [[-1] * 9], [0], [0], [0, 5], pool, capacity=6, how=how)


# ---- calls that tell what they took ----


@forms
def test_a_plan_that_emits_tells_the_id_of_every_token_and_the_pages_it_took(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5}, [2, 4], [1, 9, 8], 5)
    rows = [generate.spread([3, -1, -1, -1], 3, form), generate.spread([-1] * 4, 3, form)]
    planned = spec(3, form=form, emits=True)
    *_, told = extend_and_tell(subject, planned, rows, [0, 1], [2, 0], [0, 5, 6], pool, 5, capacity=8)
    assert told is not None
    assert told.token_ids[:6] == [11, 24, 25, 26, 27, 3]  # of ids 3; 8; 9; and 1 of the second lane
    assert (told.new_ids, told.new_pages) == ([8, 9, 1, -1, -1], [4, 2, 6, -1, -1])


@emitting_specs
@pytest.mark.parametrize("told", [0, 5, 6, 40], ids="told{}".format)
def test_pages_that_have_no_room_are_not_told_and_room_past_them_is_padded(
    subject: Subject, planned: ExtendSpec, told: int
) -> None:
    ps = planned.page_size
    pool = generate.sub_pool(Random(2), 40, 40, 3, 4)
    rows = [generate.spread([-1] * 4, ps, planned.form) for _ in range(3)]
    indptr = [0, 3 * ps, 3 * ps, 6 * ps]
    extend_and_tell(subject, planned, rows, [2, 0, 1], [0] * 3, indptr, pool, told, capacity=6 * ps + 2, pages=6)


@emitting_specs
def test_pages_that_starve_or_are_bound_by_hand_are_told_as_the_sink(subject: Subject, planned: ExtendSpec) -> None:
    ps = planned.page_size
    rows, indptr = [generate.spread([-1] * 6, ps, planned.form) for _ in range(2)], [0, 4 * ps, 9 * ps]
    starving = pool_of({3: 5}, [2, 4], [9, 8, 7, 6, 1], 9)
    *_, told = extend_and_tell(subject, planned, rows, [1, 0], [0, 0], indptr, starving, 12, capacity=9 * ps)
    assert told is not None
    assert (told.new_ids, told.new_pages) == (
        [1, 6, 7, 8, 0, 0, 0, 0, 0, -1, -1, -1],
        [4, 2, 10, 11, 0, 0, 0, 0, 0, -1, -1, -1],
    )
    assert told.token_ids[4 * ps :] == [*range(ps)] * 5
    by_hand = pool_of({3: 5}, [2, 4], [9, 8, 7, 6, 1], 5)
    by_hand.v2p[6], by_hand.p2v[11] = 11, 6
    *_, told = extend_and_tell(subject, planned, rows, [1, 0], [0, 0], indptr, by_hand, 12, capacity=9 * ps)
    assert told is not None
    assert (told.new_ids[:3], told.new_pages[:3]) == ([1, 0, 7], [4, 0, 6])


@emitting_specs
def test_tokens_without_an_id_are_told_as_holes(subject: Subject, planned: ExtendSpec) -> None:
    ps = planned.page_size
    pool = pool_of({3: 5}, [], [1, 2, 6], 5)
    pages = (-1, -5, 12, 400, 4, 0, 3)  # of the page the new tokens go on in; 12 and up lie past the table
    for page in pages[::3] if subject.slow else pages:
        cells = [page * ps + i for i in range(ps)] if planned.form == "token" else [page]
        rows = [cells + [-7] * (2 * len(cells)), generate.spread([3, -1, -1], ps, planned.form)]
        indptr = [0, 4 * ps, 5 * ps, 8 * ps, 8 * ps + 2]
        for capacity in (8 * ps + 2, 7 * ps):
            extend_and_tell(subject, planned, rows, [0, 2, 1, -1], [1, 0, 1, 0], indptr, pool, 4, capacity=capacity)


@emitting_specs
def test_an_empty_call_tells_nothing(subject: Subject, planned: ExtendSpec) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    extend_and_tell(subject, planned, [[-1] * 4], [], [], [0], pool, 3, capacity=3)
    extend_and_tell(subject, planned, [[-1] * 4] * 2, [0, 1], [0, 0], [1, 1, 1], pool, 3, capacity=3)


def test_case_10_an_emitted_id_past_32_bits_is_exact_or_refused(subject: Subject) -> None:
    big: dict[str, Any] = {"num_virtual": 3000, "num_physical": 8, "form": "page", "emits": True, "out_dtype": LONG}
    planned = spec(1_000_000, **big, id_dtype=LONG)
    pool = SubPool([0] + [-1] * 3000, [0] + [-1] * 8, [2999] * 3000, [0] * 8, 1, 0, 4)
    *_, told = extend_and_tell(subject, planned, [[-1]], [0], [0], [0, 2], pool, 1, capacity=2)
    assert told is not None
    assert told.token_ids == [2_999_000_000, 2_999_000_001]
    with pytest.raises(InvalidArgument, match="2999999999"):
        spec(1_000_000, **big)


@pytest.mark.parametrize("emits", [True, False], ids=["emitting", "silent"])
def test_what_is_emitted_is_given_exactly_where_it_is_planned(subject: Subject, emits: bool) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    planned = spec(1, emits=emits)
    told = None if emits else 2
    with pytest.raises(InvalidArgument, match="token_ids"):
        extend_and_tell(subject, planned, [[-1] * 4], [0], [0], [0, 2], pool, told, capacity=2)


@emitting_specs
def test_launch_sizes_change_nothing_that_is_told(subject: Subject, planned: ExtendSpec) -> None:
    rng = Random(4)
    pool = generate.sub_pool(rng, 300, 300, 60, 30)
    prefixes = [rng.randint(0, 5) for _ in range(45)]
    rows = held_rows(rng, pool, prefixes, 9, planned.page_size, planned.form)
    indptr = generate.offsets(rng, [rng.choice([0, 1, 3]) for _ in range(45)], planned.indptr_dtype, slack=1)
    order = rng.sample(range(45), 45)
    for programs in (2,) if subject.slow else (2, 1, 16):
        options = LaunchOptions(threads=32, programs=programs)
        extend_and_tell(
            subject, planned, rows, order, [prefixes[r] for r in order], indptr, pool, 50, capacity=indptr[-1],
            how=How(options=options),
        )  # fmt: skip


@pytest.mark.parametrize("planned", [*SPECS, *EMITTING], ids=identify)
def test_generated_extensions_equal_the_oracle(subject: Subject, planned: ExtendSpec) -> None:
    @subject.generated(0.6)
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 8),
        cells=st.integers(1, 40),
        num=st.integers(4, 120),
        wild=st.sampled_from([0.0, 0.0, 0.1]),
        gap=st.integers(0, 3),
        less=st.integers(0, 4),
    )
    def equal(rng: Random, bs: int, cells: int, num: int, wild: float, gap: int, less: int) -> None:
        ps = planned.page_size
        tokens = cells * (1 if planned.form == "token" else ps)
        pool = generate.sub_pool(rng, num, rng.randint(4, 120), rng.randint(0, 60), rng.randint(0, 20))
        prefixes = generate.lengths(rng, bs, min(tokens, 12), planned.length_dtype, wild)
        rows = held_rows(rng, pool, [min(max(n, 0), tokens) for n in prefixes], cells, ps, planned.form)
        if wild:
            for row in rows:
                row[rng.randrange(cells)] = rng.choice([-3, 10**6, rng.randint(0, 400)])
        rows = rows or [[-1] * cells]
        indptr = generate.offsets(rng, [rng.choice([0, 1, 3, 9]) for _ in range(bs)], planned.indptr_dtype, wild, 1)
        capacity = max(min(max(indptr), 200) - less, 0)
        if overlapping(indptr, capacity) or goes_on_in_a_taken_page(rows, prefixes, pool, ps, planned.form):
            return
        req_rows = [r if rng.random() >= wild else rng.choice([-1, bs]) for r in range(bs)]
        how = How(layouts={"request_table": Layout(row_gap=gap, shift=gap), "slots": Layout(shift=gap)})
        pages = rng.choice([None, 3])
        told = rng.choice([0, 3, 60]) if planned.emits else None
        extend_and_tell(
            subject, planned, rows, req_rows, prefixes, indptr, pool, told, capacity=capacity, pages=pages, how=how
        )

    equal()


def goes_on_in_a_taken_page(
    rows: list[list[int]], prefixes: list[int], pool: SubPool, page_size: int, form: str
) -> bool:
    """Return whether a row's last page is a free id, which the same call may bind: what its tokens see is open."""
    free_ids = set(pool.virtual_stack[: pool.virtual_top])
    for row, prefix in zip(rows, prefixes, strict=False):
        tokens = len(row) * (1 if form == "token" else page_size)
        at = min(max(prefix, 0), tokens)
        if at % page_size:
            cell = row[at - 1] // page_size if form == "token" else row[at // page_size]
            if cell in free_ids:
                return True
    return False
