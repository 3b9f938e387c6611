"""translate: token ids to the ids that kernels write through."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import InvalidArgument
from pagebind.ops import TRANSLATE, TranslateSpec

from pagebind_conformance import generate, oracle
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.translate import translate

OPERATION = TRANSLATE
LONG = torch.int64


def spec(page_size: int, **fields: Any) -> TranslateSpec:
    """Return a spec of the sizes all cases share."""
    return TranslateSpec(**{"max_items": 4096, "num_physical": 512, "page_size": page_size, **fields})


SPECS = [
    spec(1),
    spec(4, id_dtype=LONG, multiplier=3),
    spec(3, out_dtype=LONG, index_dtype=LONG, ranks=2, rank=1),
    spec(16, id_dtype=LONG, out_dtype=LONG),
    spec(2, index_dtype=LONG, ranks=3, rank=2),
]


def identify(value: TranslateSpec) -> str:
    """Spell a spec: `ps3-rank1of2-x3-i64i32i64` (index, id, out)."""
    parts = [f"ps{value.page_size}"]
    parts += [f"rank{value.rank}of{value.ranks}"] if value.ranks > 1 else []
    parts += [f"x{value.multiplier}"] if value.multiplier > 1 else []
    dtypes = (value.index_dtype, value.id_dtype, value.out_dtype)
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
page_sizes = pytest.mark.parametrize("page_size", [1, 2, 3], ids="ps{}".format)


@page_sizes
def test_case_03_a_virtual_id_follows_its_page_when_it_moves(subject: Subject, page_size: int) -> None:
    # Ids 1, 2, 3 lay in pages 1, 2, 3; 2 was freed, and 3 moved into its page.
    v2p, p2v, _, _ = oracle.unbind([2], [0, 1, 2, 3, -1], [0, 1, 2, 3, -1])
    v2p, p2v, _, _ = oracle.unbind([3], v2p, p2v)
    v2p, p2v, _ = oracle.bind([3], [2], v2p, p2v)
    tokens = generate.spread([1, 3], page_size, "token")
    assert translate(subject, spec(page_size), tokens, v2p) == generate.spread([1, 2], page_size, "token")
    assert p2v[3] == -1


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, [6, 0, 7, 0, 0, 0]), (1, [0, 6, 0, 7, 0, 0])], ids=["rank0", "rank1"]
)
def test_case_07_each_rank_of_a_context_parallel_group_gets_its_own_tokens(
    subject: Subject, rank: int, expected: list[int]
) -> None:
    planned = spec(2, ranks=2, rank=rank)
    assert translate(subject, planned, [4, 5, 6, 7, 0, -1], [0, 3, -1]) == expected


@page_sizes
def test_case_08_a_padded_slot_writes_the_sink_and_not_the_last_slot(subject: Subject, page_size: int) -> None:
    slots = translate(subject, spec(page_size), [2 * page_size, -1], [0, 3, 4, 1, -1])
    data = torch.full((8 * page_size,), 7, device=subject.device)
    data[torch.tensor(slots, device=subject.device)] = 9
    assert data[4 * page_size] == 9
    assert data[-1] == 7
    assert data[0] == 9


def test_case_10_an_entry_past_32_bits_is_exact_in_int64(subject: Subject) -> None:
    planned = spec(1, num_physical=1_500_001, multiplier=2000, out_dtype=LONG)
    assert translate(subject, planned, [1], [0, 1_500_000, -1]) == [3_000_000_000]


def test_case_10_an_entry_past_32_bits_is_refused_when_planned_for_int32() -> None:
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, num_physical=1_500_001, multiplier=2000)


@pytest.mark.parametrize("gap", [1, 2, 30], ids="gap{}".format)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_case_21_row_strides_are_those_of_the_call(subject: Subject, gap: int, in_place: bool) -> None:
    apart = Layout(row_gap=gap)
    how = How(layouts={"ids": apart, "out": Layout(row_gap=7 - gap % 7)})
    v2p = [0, 40, 30, 20, 10, -1]
    assert translate(subject, spec(1), [1, 2, 3, 4], v2p, columns=2, in_place=in_place, how=how) == [40, 30, 20, 10]


def test_case_22_ids_past_the_table_and_below_minus_1(subject: Subject) -> None:
    assert translate(subject, spec(4), [-1, -5, 29, 9], [0, 2, 4, 1, 3, -1]) == [0, 0, 0, 17]


@every_spec
def test_the_first_id_past_the_table_alone_is_sunk_and_counted(subject: Subject, planned: TranslateSpec) -> None:
    # Its row of v2p is the sentinel: not a page, and no row of another tensor either.
    past = 3 * planned.page_size * planned.ranks
    assert translate(subject, planned, [past], [0, 9, 4, -1]) == [0]


@page_sizes
@pytest.mark.parametrize("columns", [None, 3], ids=["1d", "2d"])
def test_a_slice_of_a_larger_buffer_is_translated_in_place(
    subject: Subject, page_size: int, columns: int | None
) -> None:
    slots = [0, 5, 2, -1, 4, 99]
    how = How(layouts={"ids": Layout(row_gap=4 if columns else 0, column_step=2, shift=3)})
    ids = [slot * page_size + page_size - 1 if slot > 0 else slot for slot in slots]
    out = translate(subject, spec(page_size), ids, [0, 3, 1, 5, 2, 4, -1], columns=columns, in_place=True, how=how)
    assert out == [p * page_size + page_size - 1 if p else 0 for p in (0, 4, 1, 0, 2, 0)]


@every_spec
@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 4096], ids="size{}".format)
def test_awkward_sizes(subject: Subject, planned: TranslateSpec, size: int) -> None:
    size = min(size, 301) if subject.slow else size
    rng = Random(size)
    v2p, _ = generate.page_tables(rng, 120, 512, 100)
    span = planned.page_size * planned.ranks
    ids = [rng.choice([-1, rng.randrange(130 * span), rng.randrange(120 * span)]) for _ in range(size)]
    translate(subject, planned, ids, v2p)


@every_spec
@pytest.mark.parametrize("layout", [Layout(3, 2), Layout(0, 5, 1)], ids=["step2-gap3", "step5-shifted"])
@pytest.mark.parametrize("columns", [None, 1, 7], ids=["1d", "1column", "7columns"])
def test_cells_apart_by_any_stride(
    subject: Subject, planned: TranslateSpec, layout: Layout, columns: int | None
) -> None:
    rng = Random(5)
    v2p, _ = generate.page_tables(rng, 20, 512, 15)
    ids = [rng.randrange(-2, 21 * planned.page_size * planned.ranks) for _ in range(21)]
    how = How(layouts={"ids": layout, "out": Layout(layout.column_step, 1, layout.row_gap)})
    translate(subject, planned, ids, v2p, columns=columns, how=how)
    if planned.id_dtype is planned.out_dtype:
        translate(subject, planned, ids, v2p, columns=columns, in_place=True, how=how)


@every_spec
def test_any_id_is_translated_or_sunk_and_counted(subject: Subject, planned: TranslateSpec) -> None:
    least, most = generate.LIMITS[planned.id_dtype]
    span = planned.page_size * planned.ranks
    ids = [least, least + 1, -1, 0, 1, 2 * span, 3 * span - 1, 3 * span, 4 * span, most - 1, most]
    translate(subject, planned, ids, [0, 9, -1, -1])
    for how in (How(checks="off"), How(counted=False)):
        translate(subject, planned, ids, [0, 9, -1, -1], how=how)


@pytest.mark.parametrize("programs", [1, 3], ids="programs{}".format)
def test_launch_sizes_change_no_result(subject: Subject, programs: int) -> None:
    v2p, _ = generate.page_tables(Random(1), 50, 512, 40)
    how = How(options=LaunchOptions(threads=32, programs=programs))
    translate(subject, spec(4), list(range(-10, 190)), v2p, how=how)


@every_spec
def test_generated_ids_equal_the_oracle(subject: Subject, planned: TranslateSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        rows=st.integers(0, 5),
        columns=st.none() | st.integers(1, 40),
        step=st.integers(1, 3),
        gap=st.integers(0, 9),
        in_place=st.booleans(),
    )
    def equal(rng: Random, rows: int, columns: int | None, step: int, gap: int, in_place: bool) -> None:
        v2p, _ = generate.page_tables(rng, rng.randint(2, 60), 512, rng.randint(0, 60))
        past = (len(v2p) - 1) * planned.page_size * planned.ranks
        wild = [*generate.LIMITS[planned.id_dtype], -1, past, past + 7]
        ids = [
            rng.choice(wild) if rng.random() < 0.1 else rng.randrange(past)
            for _ in range(rows * (columns if columns is not None else 7))
        ]
        translate(
            subject,
            planned,
            ids,
            v2p,
            columns=columns,
            in_place=in_place and planned.id_dtype is planned.out_dtype,
            how=How(layouts={"ids": Layout(gap, step, gap), "out": Layout(gap // 2, 4 - step)}),
        )

    equal()
