"""read_stream: the entries packed end to end, alone and together with the table."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind.errors import InvalidArgument
from pagebind.ops import READ_STREAM, ReadStreamSpec

from pagebind_conformance import generate, oracle
from pagebind_conformance.guarded import POISON, Guarded, Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How, counted, hold, state_words
from pagebind_conformance.trial.read_stream import read_stream

OPERATION = READ_STREAM
LONG = torch.int64


def spec(page_size: int, **fields: Any) -> ReadStreamSpec:
    """Return a spec of the sizes all cases share."""
    sizes = {"max_bs": 80, "max_items": 4096, "max_width": 400 if fields.get("with_table") else 0}
    return ReadStreamSpec(**{**sizes, "num_physical": 512, "page_size": page_size, **fields})


SPECS = [
    spec(1),
    spec(1, form="page", windowed=True, with_table=True, length_dtype=LONG),
    spec(4, granularity="token", multiplier=3, index_dtype=LONG, windowed=True, indptr_dtype=LONG),
    spec(3, form="page", granularity="token", out_dtype=LONG, row_dtype=LONG, with_table=True),
    spec(3, windowed=True, with_table=True, multiplier=7, length_dtype=LONG, indptr_dtype=LONG),
    spec(16, form="page", windowed=True, out_dtype=LONG, index_dtype=LONG),
]


def identify(value: ReadStreamSpec) -> str:
    """Spell a spec: `ps3-token-page-window-table-x7-i32i32i64i64i32` (index, row, length, indptr, out)."""
    parts = [f"ps{value.page_size}", value.form, value.granularity]
    parts += ["window"] if value.windowed else []
    parts += ["table"] if value.with_table else []
    parts += [f"x{value.multiplier}"] if value.multiplier > 1 else []
    dtypes = (value.index_dtype, value.row_dtype, value.length_dtype, value.indptr_dtype, value.out_dtype)
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
page_sizes = pytest.mark.parametrize("page_size", [1, 2, 3], ids="ps{}".format)

V2P = [0, 30, 20, 10, 50, 40, -1]


@page_sizes
def test_case_01_a_hole_reads_page_0_in_a_stream_too(subject: Subject, page_size: int) -> None:
    row = generate.spread([1, -1, 3], page_size, "token")
    out, _ = read_stream(subject, spec(page_size), [row], [0], [3 * page_size], V2P, [0, 3], capacity=3)
    assert out == [30, 0, 10]


@page_sizes
def test_case_02_a_lane_longer_than_its_part_stays_in_its_part(subject: Subject, page_size: int) -> None:
    rows = [generate.spread(pages, page_size, "token") for pages in ([1, 2, 3], [4, 5, 1])]
    lens = [3 * page_size, 3 * page_size]
    out, _ = read_stream(subject, spec(page_size), rows, [0, 1], lens, V2P, [0, 2, 5], capacity=5)
    assert out == [30, 20, 50, 40, 30]
    read_stream(subject, spec(page_size), rows, [1, 0], lens, V2P, [1, 3, 99], capacity=5)


def test_case_10_an_entry_past_32_bits_is_exact_or_refused(subject: Subject) -> None:
    planned = spec(1, num_physical=1_500_001, multiplier=2000, out_dtype=LONG)
    out, _ = read_stream(subject, planned, [[1]], [0], [1], [0, 1_500_000, -1], [0, 1], capacity=1)
    assert out == [3_000_000_000]
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, num_physical=1_500_001, multiplier=2000)


@page_sizes
def test_case_20_two_groups_of_one_shape_keep_their_own_streams(subject: Subject, page_size: int) -> None:
    row = generate.spread([1, 2], page_size, "token")
    for v2p, expected in (([0, 1, 2, -1], [1, 2]), ([0, 2, 1, -1], [2, 1]), ([0, 1, 2, -1], [1, 2])):
        out, _ = read_stream(subject, spec(page_size), [row], [0], [2 * page_size], v2p, [0, 2], capacity=2)
        assert out == expected


def test_a_window_ends_in_the_stream_with_its_own_length(subject: Subject) -> None:
    planned = spec(3, windowed=True, with_table=True, multiplier=7, length_dtype=LONG, indptr_dtype=LONG)
    row = generate.spread([1, 2, 3, 4], 3, "token")
    # Tokens 4 to 7: pages 1 and 2, at columns 1 and 2 of the table.
    out, table = read_stream(subject, planned, [row], [0], [4], V2P, [0, 2], capacity=2, width=4, starts=[4])
    assert out == [140, 70]
    assert table is not None
    assert table[0][1:3] == [140, 70]


@pytest.mark.parametrize("room", [1, 2, 4], ids="room{}".format)
@pytest.mark.parametrize("width", [1, 2, 4], ids="width{}".format)
def test_table_and_stream_of_one_call_are_each_cut_to_their_own_room(subject: Subject, width: int, room: int) -> None:
    planned = spec(3, form="page", granularity="token", out_dtype=LONG, row_dtype=LONG, with_table=True)
    entries = [90, 91, 92, 60]
    out, table = read_stream(subject, planned, [[1, 2]], [0], [4], V2P, [0, room], capacity=room, width=width)
    assert out == entries[:room]
    assert table == [entries[:width]]


@every_spec
@pytest.mark.parametrize("checks", ["count", "full"])
def test_a_call_that_leaves_out_the_delta_widens_no_lane(
    subject: Subject, planned: ReadStreamSpec, checks: str
) -> None:
    # Full checks hand arguments on as they are given: there a backend's own default counts. A token more, or one less,
    # changes how many items one of the two lanes has; both have room for more.
    room = 3 * (planned.page_size if planned.granularity == "token" else 1)
    rows, lens = (
        [generate.spread([3, 1, 2], planned.page_size, planned.form)],
        [planned.page_size, planned.page_size + 1],
    )
    v2p, indptr, starts = [0, 9, 4, 7, -1], [0, room, 2 * room], [0, 0] if planned.windowed else None
    poison, words = POISON[planned.out_dtype], state_words()
    out, table = [poison] * (2 * room), [[poison] * room] * 2 if planned.with_table else None
    values: dict[str, tuple[Sequence[Any] | None, torch.dtype]] = {
        "request_table": (rows, torch.int32),
        "req_rows": ([0, 0], planned.row_dtype),
        "seq_lens": (lens, planned.length_dtype),
        "v2p": (v2p, planned.index_dtype),
        "indptr": (indptr, planned.indptr_dtype),
        "out": (out, planned.out_dtype),
        "starts": (starts, planned.length_dtype),
        "table": (table, planned.out_dtype),
        "state": (words, torch.int64),
    }
    arguments = {name: Guarded(one, dtype, subject.device) for name, (one, dtype) in values.items() if one is not None}
    unit = {name: getattr(planned, name) for name in ("page_size", "form", "granularity", "multiplier")}
    stream, shown, counters = oracle.read_stream(
        rows, [0, 0], lens, v2p, indptr, out, starts=starts, table=table, seq_len_delta=0, **unit
    )
    expected = {"out": stream, "table": shown, "state": counted(words, counters)}
    hold(subject, READ_STREAM, planned, arguments, expected, How(checks=checks))


@every_spec
def test_an_empty_batch_writes_nothing(subject: Subject, planned: ReadStreamSpec) -> None:
    starts: list[int] | None = [] if planned.windowed else None
    width = 1 if planned.with_table else 0
    read_stream(subject, planned, [[4, 5]], [], [], V2P, [0], capacity=3, width=width, starts=starts)


@pytest.mark.parametrize("bs", [1, 31, 33, 63, 80], ids="bs{}".format)
@pytest.mark.parametrize("planned", [SPECS[0], SPECS[4]], ids=identify)
def test_awkward_batches(subject: Subject, planned: ReadStreamSpec, bs: int) -> None:
    rng = Random(bs)
    width = 9 if subject.slow else 33
    v2p, _ = generate.page_tables(rng, 200, 512, 180)
    table = generate.request_table(rng, bs, width * planned.page_size, planned.page_size, "token", range(1, 200))
    lens = [rng.choice([0, 1, width * planned.page_size]) for _ in range(bs)]
    starts = [0] * bs if planned.windowed else None
    indptr = generate.offsets(rng, [-(-n // planned.page_size) for n in lens], planned.indptr_dtype)
    shown = width if planned.with_table else 0
    read_stream(
        subject, planned, table, list(range(bs)), lens, v2p, indptr, capacity=indptr[-1], width=shown, starts=starts
    )


@every_spec
def test_bad_lengths_rows_ids_and_parts_are_clipped_sunk_and_counted(subject: Subject, planned: ReadStreamSpec) -> None:
    table = generate.request_table(Random(1), 4, 20, planned.page_size, planned.form, range(1, 6), garbage=0.6)
    least, most = generate.LIMITS[planned.length_dtype]
    lens = [least, -1, 0, 1, 20, 10**6, most, 5, 5, 5]
    rows = [0, 1, 2, 3, 0, 1, 2, *generate.LIMITS[planned.row_dtype], 4]
    starts = [0, 0, most, least, 1, -1, 3, 0, 0, 0] if planned.windowed else None
    width = 4 if planned.with_table else 0
    low, high = generate.LIMITS[planned.indptr_dtype]
    for indptr in (
        list(range(0, 55, 5)),
        [0, 0, 0, 0, 3, 9, 10**6, high, high, high, high],
        [low, low, -1, 0, 2, 2, 8, 9, 9, 30, high],
        [9, 3, 30, 7, 40, high, low, 5, 1, 60, -1],
    ):
        read_stream(subject, planned, table, rows, lens, V2P, indptr, capacity=48, width=width, starts=starts)


@every_spec
def test_counting_off_changes_no_value_and_no_counter(subject: Subject, planned: ReadStreamSpec) -> None:
    table = generate.request_table(Random(2), 3, 12, planned.page_size, planned.form, range(1, 6), garbage=0.5)
    starts = [0, 1, 0] if planned.windowed else None
    width = 3 if planned.with_table else 0
    for how in (How(checks="off"), How(counted=False)):
        read_stream(
            subject, planned, table, [2, 9, 0], [99, 3, -4], V2P, [0, 7, 9, 12],
            capacity=12, width=width, starts=starts, how=how,
        )  # fmt: skip


@every_spec
def test_generated_streams_equal_the_oracle(subject: Subject, planned: ReadStreamSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 9),
        requests=st.integers(1, 9),
        cells=st.integers(1, 60),
        narrower=st.integers(0, 5),
        delta=st.integers(-3, 9),
        wild=st.sampled_from([0.0, 0.1]),
        gap=st.integers(0, 3),
    )
    def equal(
        rng: Random, bs: int, requests: int, cells: int, narrower: int, delta: int, wild: float, gap: int
    ) -> None:
        v2p, _ = generate.page_tables(rng, rng.randint(2, 80), 512, rng.randint(0, 80))
        table = generate.request_table(rng, requests, cells, planned.page_size, planned.form, range(1, len(v2p) - 1))
        tokens = cells * (planned.page_size if planned.form == "page" else 1)
        unit = planned.page_size if planned.granularity == "page" else 1
        lens = generate.lengths(rng, bs, tokens, planned.length_dtype, wild)
        items = [-(-min(max(n, 0), tokens) // unit) + rng.randint(-1, 2) for n in lens]
        indptr = generate.offsets(rng, [max(n, 0) for n in items], planned.indptr_dtype, wild, slack=1)
        inside = max(min(indptr[-1], 4096), 0)
        read_stream(
            subject,
            planned,
            table,
            [rng.choice([-1, requests]) if rng.random() < 0.1 else rng.randrange(requests) for _ in range(bs)],
            lens,
            v2p,
            indptr,
            capacity=max(inside - rng.choice([0, 0, 0, 5]), 0),
            width=max(-(-tokens // unit) - narrower, 1) if planned.with_table else 0,
            starts=generate.lengths(rng, bs, tokens, planned.length_dtype) if planned.windowed else None,
            seq_len_delta=delta,
            how=How(layouts={"request_table": Layout(row_gap=gap), "table": Layout(row_gap=3 - gap, shift=gap)}),
        )

    equal()
