"""read_table: the rectangle, cell by cell against the oracle."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import InvalidArgument
from pagebind.ops import READ_TABLE, ReadTableSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How, hold
from pagebind_conformance.trial.read_table import read_table, read_table_case

OPERATION = READ_TABLE
LONG = torch.int64


def spec(page_size: int, **fields: Any) -> ReadTableSpec:
    """Return a spec of the sizes all cases share, so that few plans serve many cases."""
    return ReadTableSpec(**{"max_bs": 80, "max_width": 400, "num_physical": 512, "page_size": page_size, **fields})


# Every value of every field stands here with most values of the others.
SPECS = [
    spec(1),
    spec(1, form="page", fill="sink", windowed=True, length_dtype=LONG),
    spec(4, granularity="token", multiplier=3, index_dtype=LONG, windowed=True),
    spec(4, form="page", granularity="token", fill="sink", out_dtype=LONG, row_dtype=LONG),
    spec(3, fill="sink", multiplier=7, row_dtype=LONG, windowed=True),
    spec(3, form="page", granularity="token", length_dtype=LONG, index_dtype=LONG),
    spec(16, fill="sink", length_dtype=LONG, out_dtype=LONG, index_dtype=LONG, row_dtype=LONG),
    spec(16, form="page", multiplier=5, out_dtype=LONG),
]


def identify(value: ReadTableSpec) -> str:
    """Spell a spec: `ps4-page-token-sink-window-x3-i32i64i32i32` (index, row, length, out)."""
    parts = [f"ps{value.page_size}", value.form, value.granularity, value.fill]
    parts += ["window"] if value.windowed else []
    parts += [f"x{value.multiplier}"] if value.multiplier > 1 else []
    dtypes = (value.index_dtype, value.row_dtype, value.length_dtype, value.out_dtype)
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


V2P = [0, 13, 11, 12, -1]

FAR = [
    *(-(2**63), 7 - 2**63, -(2**62) - 3, 5 - 2**32, -(2**31) - 1, 2**31),
    *(2**32, 2**32 + 5, 2**62 + 5, 2**63 - 2**32 + 5, 2**63 - 2, 2**63 - 1),
]
"""Lengths in int64 that no row has; of some the low 32 bits are a length that it may have."""

DELTAS = [0, 5, 2**31 - 1, 1 - 2**31]

every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
page_sizes = pytest.mark.parametrize("page_size", [1, 2, 3], ids="ps{}".format)
forms = pytest.mark.parametrize("form", ["token", "page"])


@forms
@page_sizes
def test_case_01_a_hole_reads_page_0_and_not_the_cell_before_the_table(
    subject: Subject, page_size: int, form: str
) -> None:
    v2p = [0, 11, 12, 13, -1]
    row = generate.spread([1, -1, 3], page_size, form)
    out = read_table(subject, spec(page_size, form=form), [row], [0], [3 * page_size], v2p, width=3)
    assert out == [[11, 0, 13]]


@forms
@page_sizes
def test_case_02_a_row_longer_than_the_table_stays_in_its_row(subject: Subject, page_size: int, form: str) -> None:
    rows = [generate.spread(pages, page_size, form) for pages in ([1, 2, 3, 4, 5], [6, 7, 8, 0, 0])]
    v2p = [0, *range(11, 19), -1]
    lens = [5 * page_size, 2 * page_size]
    out = read_table(subject, spec(page_size, form=form), rows, [0, 1], lens, v2p, width=3, rows=3, before=7)
    assert out == [[11, 12, 13], [16, 17, 7], [7, 7, 7]]


@page_sizes
@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_case_09_padded_rows_show_no_page_of_a_finished_request(subject: Subject, fill: str, page_size: int) -> None:
    rows = [generate.spread(pages, page_size, "token") for pages in ([1, 2], [2, 3], [3, 1])]
    planned = spec(page_size, fill=fill)
    read_table(subject, planned, rows, [0, 1, 2], [2 * page_size] * 3, V2P, width=2, rows=4, before=7)
    out = read_table(subject, planned, rows, [0, 0, 0, 0], [2 * page_size, 0, 0, 0], V2P, width=2, rows=4, before=7)
    assert out == [[13, 11]] + [[7, 7] if fill == "prefix" else [0, 0]] * 3


@forms
def test_case_10_an_entry_past_32_bits_is_exact_in_int64(subject: Subject, form: str) -> None:
    planned = spec(1, form=form, num_physical=1_500_001, multiplier=2000, out_dtype=LONG)
    assert read_table(subject, planned, [[1]], [0], [1], [0, 1_500_000, -1], width=1) == [[3_000_000_000]]


def test_case_10_an_entry_past_32_bits_is_refused_when_planned_for_int32() -> None:
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, num_physical=1_500_001, multiplier=2000)


@page_sizes
def test_case_20_two_groups_of_one_shape_keep_their_own_tables(subject: Subject, page_size: int) -> None:
    row = generate.spread([1, 2], page_size, "token")
    for v2p, expected in (([0, 1, 2, -1], [1, 2]), ([0, 2, 1, -1], [2, 1]), ([0, 1, 2, -1], [1, 2])):
        assert read_table(subject, spec(page_size), [row], [0], [2 * page_size], v2p, width=2) == [expected]


@page_sizes
def test_case_22_empty_rows_stay_untouched_between_others(subject: Subject, page_size: int) -> None:
    v2p = [0, 2, 4, 1, 3, -1]
    rows = [generate.spread([1, 2], page_size, "token")] * 3
    out = read_table(subject, spec(page_size), rows, [0, 1, 2], [0, 2 * page_size, 0], v2p, width=2, before=7)
    assert out == [[7, 7], [2, 4], [7, 7]]


@forms
@pytest.mark.parametrize("page_size", [2, 3], ids="ps{}".format)
def test_a_page_that_is_begun_has_its_entry(subject: Subject, page_size: int, form: str) -> None:
    row = generate.spread([1, 3, 2], page_size, form)
    out = read_table(subject, spec(page_size, form=form), [row], [0], [page_size + 1], V2P, width=3, before=7)
    assert out == [[13, 12, 7]]


@forms
@page_sizes
def test_a_window_keeps_its_columns_and_begins_with_the_page_of_its_first_token(
    subject: Subject, page_size: int, form: str
) -> None:
    planned = spec(page_size, form=form, windowed=True)
    row = generate.spread([1, 3, 2, 1], page_size, form)
    starts = [2 * page_size, 3 * page_size - 1, 0, 4 * page_size]
    lens = [4 * page_size, 3 * page_size, page_size, 4 * page_size]
    out = read_table(subject, planned, [row], [0] * 4, lens, V2P, width=4, before=7, starts=starts)
    assert out == [[7, 7, 11, 13], [7, 7, 11, 7], [13, 7, 7, 7], [7, 7, 7, 7]]


@pytest.mark.parametrize("planned", [SPECS[0], SPECS[5]], ids=identify)
def test_ids_past_the_table_are_counted_once_in_wide_rows(subject: Subject, planned: ReadTableSpec) -> None:
    # Blocks and threads share a row out, and a row that no block divides has cells that two of them could claim.
    bs, width = (2, 150) if subject.slow else (64, 99)
    cells = -(-width // planned.page_size) if planned.form == "page" else width
    table = [[1 + (r + c) % 7 for c in range(cells)] for r in range(bs)]
    lens = [width - b % 3 for b in range(bs)]
    starts = [0] * bs if planned.windowed else None
    read_table(subject, planned, table, list(range(bs)), lens, [0, 9, 4, 7, 2, -1], width=width, starts=starts)


@every_spec
def test_an_empty_batch_writes_nothing(subject: Subject, planned: ReadTableSpec) -> None:
    starts: list[int] | None = [] if planned.windowed else None
    read_table(subject, planned, [[4, 5]], [], [], [0, 2, 1, -1], width=1, rows=2, starts=starts)


@pytest.mark.parametrize("size", [1, 31, 33, 63, 80], ids="size{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[4], SPECS[5]], ids=identify)
def test_awkward_batches_and_widths(subject: Subject, planned: ReadTableSpec, size: int) -> None:
    rng = Random(size)
    bs, width = (min(size, 7), size) if subject.slow else (size, size + 1)
    v2p, _ = generate.page_tables(rng, 200, 512, 180)
    unit = 1 if planned.granularity == planned.form else planned.page_size
    cells = -(-width // unit) if planned.granularity == "token" else width * unit
    table = generate.request_table(rng, bs, cells, planned.page_size, planned.form, range(1, 200))
    most = width * (planned.page_size if planned.granularity == "page" else 1)
    lens = [most, *(rng.randint(0, most) for _ in range(bs - 1))]
    starts = [rng.randint(0, most) for _ in range(bs)] if planned.windowed else None
    rows = rng.sample(range(bs), bs)
    read_table(subject, planned, table, rows, lens, v2p, width=width, rows=bs + 1, starts=starts)


@pytest.mark.parametrize("planned", [SPECS[0], SPECS[7]], ids=identify)
def test_full_rows_of_a_full_batch_read_the_page_of_each_id(subject: Subject, planned: ReadTableSpec) -> None:
    # No id is past the table, and each is below the number of blocks: taken for that of a block, it stays inside.
    rng = Random(6)
    bs, width = (7, 150) if subject.slow else (80, 400)
    v2p, _ = generate.page_tables(rng, 200, 512, 190)
    table = generate.request_table(rng, bs, width, planned.page_size, planned.form, range(1, 200), garbage=0)
    read_table(subject, planned, table, rng.sample(range(bs), bs), [width * planned.page_size] * bs, v2p, width=width)


@pytest.mark.parametrize("gap", [0, 1, 3, 16, 1000], ids="gap{}".format)
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "shifted"])
def test_rows_apart_by_any_stride(subject: Subject, gap: int, shift: int) -> None:
    rng = Random(gap)
    v2p, _ = generate.page_tables(rng, 60, 512, 50)
    table = generate.request_table(rng, 5, 48, 4, "token", range(1, 60))
    apart = Layout(row_gap=gap, shift=shift)
    names = ("request_table", "out", "req_rows", "seq_lens", "v2p")
    how = How(layouts={name: apart for name in names})
    read_table(subject, spec(4), table, [4, 2, 0, 3], [48, 47, 1, 17], v2p, width=12, how=how)
    narrow = How(layouts={"request_table": apart})
    read_table(subject, spec(4), table, [4, 2, 0, 3], [48, 47, 1, 17], v2p, width=9, how=narrow)


@every_spec
@pytest.mark.parametrize("delta", [1, 5, -3, 2**31 - 1, -(2**31) + 1], ids="delta{}".format)
def test_a_length_delta_widens_every_lane_before_clipping(subject: Subject, planned: ReadTableSpec, delta: int) -> None:
    v2p = [0, 9, 4, 7, 2, 5, -1]
    row = generate.spread([5, 1, 4, 2], planned.page_size, planned.form)
    lens = [0, 2, planned.page_size, 3 * planned.page_size]
    starts = [0, 1, 0, planned.page_size] if planned.windowed else None
    width = 4 * (planned.page_size if planned.granularity == "token" else 1)
    read_table(subject, planned, [row] * 2, [0, 1, 0, 1], lens, v2p, width=width, starts=starts, seq_len_delta=delta)


@every_spec
@pytest.mark.parametrize("checks", ["count", "full"])
def test_a_call_that_leaves_out_the_delta_widens_no_lane(subject: Subject, planned: ReadTableSpec, checks: str) -> None:
    # Full checks hand arguments on as they are given: there a backend's own default counts. A token more, or one less,
    # changes how many columns one of the two lanes has.
    lens = [planned.page_size, planned.page_size + 1]
    row = generate.spread([3, 1, 2], planned.page_size, planned.form)
    width = 3 * (planned.page_size if planned.granularity == "token" else 1)
    starts = [0, 0] if planned.windowed else None
    v2p = [0, 9, 4, 7, -1]
    arguments, expected = read_table_case(subject.device, planned, [row], [0, 0], lens, v2p, width, starts=starts)
    del arguments["seq_len_delta"]
    hold(subject, READ_TABLE, planned, arguments, expected, How(checks=checks))


@every_spec
def test_bad_lengths_rows_and_ids_are_clipped_sunk_and_counted(subject: Subject, planned: ReadTableSpec) -> None:
    rng = Random(1)
    v2p = [0, 9, -1, 7, 2, 5, -1]
    table = generate.request_table(rng, 4, 20, planned.page_size, planned.form, range(1, 6), garbage=0.6)
    width = 20 if planned.granularity == planned.form else 20 // planned.page_size or 1
    least, most = generate.LIMITS[planned.length_dtype]
    lens = [least, -1, 0, 1, width, 10**6, most - 1, most, 5, 5]
    outside = generate.LIMITS[planned.row_dtype]
    rows = [0, 1, 2, 3, 0, 1, 2, 3, *outside]
    starts = [0, 0, most, least, 1, -1, least, 3, 0, 0] if planned.windowed else None
    read_table(subject, planned, table, rows, lens, v2p, width=width, starts=starts)
    read_table(subject, planned, table, [-1, 4, 1, 7], [4] * 4, v2p, width=width, starts=starts and [0] * 4)


@forms
@page_sizes
@pytest.mark.parametrize("fill", ["prefix", "sink"])
@pytest.mark.parametrize("delta", DELTAS, ids="delta{}".format)
def test_lengths_at_the_ends_of_int64_are_clamped_before_they_are_narrowed(
    subject: Subject, page_size: int, form: str, fill: str, delta: int
) -> None:
    planned = spec(page_size, form=form, fill=fill, length_dtype=LONG, windowed=True)
    rows = [generate.spread([1, 2, 3, 1], page_size, form)] * 2
    lanes = [b % 2 for b in range(len(FAR))]
    for starts in ([0] * len(FAR), FAR[::-1]):
        read_table(subject, planned, rows, lanes, FAR, V2P, width=4, starts=starts, seq_len_delta=delta)
    read_table(subject, planned, rows, lanes, [4 * page_size] * len(FAR), V2P, width=4, starts=FAR)


@forms
@page_sizes
@pytest.mark.parametrize("dtype", [torch.int32, LONG], ids=["i32", "i64"])
def test_bad_rows_and_clipped_lanes_of_one_call_are_both_counted(
    subject: Subject, page_size: int, form: str, dtype: torch.dtype
) -> None:
    planned = spec(page_size, form=form, length_dtype=dtype, row_dtype=dtype)
    low, high = generate.LIMITS[dtype]
    most = 3 * page_size
    rows = [0, -1, 1, 2, 0, low, 1, high]  # a bad row counts as one whatever its length
    lens = [most, most, most + 1, 10**6, -1, -1, 1, high]
    table = [generate.spread([1, 2, 3], page_size, form)] * 2
    read_table(subject, planned, table, rows, lens, V2P, width=3)


@every_spec
def test_counting_off_changes_no_value_and_no_counter(subject: Subject, planned: ReadTableSpec) -> None:
    table = generate.request_table(Random(2), 3, 12, planned.page_size, planned.form, range(1, 6), garbage=0.5)
    width = 12 if planned.granularity == planned.form else 12 // planned.page_size or 1
    starts = [0, 1, 0] if planned.windowed else None
    for how in (How(checks="off"), How(counted=False)):
        read_table(
            subject,
            planned,
            table,
            [2, 9, 0],
            [99, 3, -4],
            [0, 9, 4, 7, -1, 5, -1],
            width=width,
            starts=starts,
            how=how,
        )


@pytest.mark.parametrize("threads", [32, 64], ids="threads{}".format)
@pytest.mark.parametrize("programs", [1, 3], ids="programs{}".format)
def test_launch_sizes_change_no_result(subject: Subject, threads: int, programs: int) -> None:
    rng = Random(3)
    v2p, _ = generate.page_tables(rng, 100, 512, 90)
    table = generate.request_table(rng, 9, 150, 1, "token", range(1, 100))
    lens = [150, 0, 1, 64, 65, 149, 31, 32, 7]
    how = How(options=LaunchOptions(threads=threads, programs=programs))
    read_table(subject, spec(1), table, list(range(9)), lens, v2p, width=150, how=how)


@every_spec
def test_generated_tables_equal_the_oracle(subject: Subject, planned: ReadTableSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 9),
        requests=st.integers(1, 9),
        cells=st.integers(1, 70),
        extra=st.integers(0, 2),
        narrower=st.integers(0, 5),
        delta=st.integers(-3, 9),
        gaps=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    )
    def equal(
        rng: Random, bs: int, requests: int, cells: int, extra: int, narrower: int, delta: int, gaps: tuple[int, int]
    ) -> None:
        v2p, _ = generate.page_tables(rng, rng.randint(2, 80), 512, rng.randint(0, 80))
        table = generate.request_table(
            rng, requests, cells, planned.page_size, planned.form, range(1, len(v2p) - 1) or [0]
        )
        tokens = cells * (planned.page_size if planned.form == "page" else 1)
        unit = planned.page_size if planned.granularity == "page" else 1
        width = max(-(-tokens // unit) - narrower, 1)
        starts = generate.lengths(rng, bs, tokens, planned.length_dtype) if planned.windowed else None
        read_table(
            subject,
            planned,
            table,
            [rng.choice([-1, requests]) if rng.random() < 0.1 else rng.randrange(requests) for _ in range(bs)],
            generate.lengths(rng, bs, width * unit, planned.length_dtype),
            v2p,
            width=width,
            rows=bs + extra,
            starts=starts,
            seq_len_delta=delta,
            how=How(layouts={"request_table": Layout(row_gap=gaps[0]), "out": Layout(row_gap=gaps[1], shift=gaps[0])}),
        )

    equal()
