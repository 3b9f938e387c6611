"""read_table with a second table beside the first: each is what a call of its own would make of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError, InvalidArgument
from pagebind.ops import READ_TABLE, Beside, ReadTableSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import POISON, Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.graphs import capture
from pagebind_conformance.suite.launching import launches
from pagebind_conformance.suite.read_table import identify, spec
from pagebind_conformance.trial.call import How, call, compare
from pagebind_conformance.trial.read_table import Second, read_tables, read_tables_case
from pagebind_conformance.trial.sample import same, sample

OPERATION = READ_TABLE
LONG = torch.int64

pytestmark = pytest.mark.extended


def pair(page_size: int, second: Beside, **fields: Any) -> ReadTableSpec:
    """Return a spec of the sizes that cases of read_table share, with a second table."""
    return spec(page_size, beside=second, **fields)


WINDOW = Beside(512, windowed=True)

# A window beside full attention, with either fill, and every other pair of what the two may differ in.
SPECS = [
    pair(1, WINDOW),
    pair(16, Beside(200, 3, windowed=True), form="page", fill="sink", row_dtype=LONG),
    pair(3, Beside(300, 7), granularity="token", length_dtype=LONG, out_dtype=LONG),
    pair(4, Beside(512), form="page", granularity="token", fill="sink", multiplier=5, index_dtype=LONG),
    pair(2, Beside(100, 9), windowed=True, multiplier=2),
    pair(3, WINDOW, windowed=True, fill="sink", length_dtype=LONG),
]


def spelled(value: ReadTableSpec) -> str:
    """Spell a spec, its second table too: `...-beside-window-x3`."""
    second = value.second()
    return "-".join([identify(value), "beside", *["window"] * second.windowed, f"x{second.multiplier}"])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=spelled)
fills = pytest.mark.parametrize("fill", ["prefix", "sink"])


def unit_of(planned: ReadTableSpec) -> int:
    """Return the tokens of a column."""
    return planned.page_size if planned.granularity == "page" else 1


def starts_of(planned: ReadTableSpec, starts: list[int]) -> tuple[list[int] | None, list[int] | None]:
    """Return the starts that the first and the second table of a plan take."""
    return starts if planned.windowed else None, starts if planned.second().windowed else None


def drawn(planned: ReadTableSpec, rng: Random, bs: int, width: int, *, most: int | None = None) -> dict[str, Any]:
    """Return random arguments of a call on `bs` lanes whose tables are `width` columns wide, or one less."""
    unit = unit_of(planned)
    tokens = width * unit
    cells = tokens if planned.form == "token" else -(-tokens // planned.page_size)
    v2p, w2p = (generate.page_tables(rng, 200, n, 180)[0] for n in (512, planned.second().num_physical))
    lens = generate.lengths(rng, bs, tokens if most is None else most, planned.length_dtype)
    starts = generate.lengths(rng, bs, tokens, planned.length_dtype)
    first, second = starts_of(planned, starts)
    return {
        "request_table": generate.request_table(rng, bs or 1, cells, planned.page_size, planned.form, range(1, 200)),
        "req_rows": generate.row_indices(rng, bs, bs or 1, planned.row_dtype),
        "seq_lens": lens,
        "v2p": v2p,
        "second": Second(w2p, max(width - rng.randint(0, 1), 1), bs + rng.randint(0, 2), starts=second),
        "width": width,
        "rows": bs + rng.randint(0, 2),
        "starts": first,
    }


@fills
def test_a_window_beside_full_attention_reads_its_own_pages_from_its_start_on(subject: Subject, fill: str) -> None:
    planned = pair(2, Beside(512, 10, windowed=True), fill=fill, multiplier=3)
    row = generate.spread([1, 2, 3, 4], 2, "token")
    second = Second([0, 9, 8, -1, 7, -1], 4, 2, 6, [5])
    out, other = read_tables(
        subject, planned, [row], [0], [7], [0, 11, 12, 13, 14, -1], second, width=4, rows=2, before=6
    )
    rest = 6 if fill == "prefix" else 0
    assert out == [[33, 36, 39, 42], [rest] * 4]
    assert other == [[rest, rest, 0, 70], [rest] * 4]


def test_a_second_table_may_reach_less_far_and_counts_what_it_cuts(subject: Subject) -> None:
    planned = pair(1, Beside(512))
    for widths in ((4, 2), (2, 4), (4, 0), (0, 4), (0, 0)):
        second = Second([0, 3, 1, 2, 4, -1], widths[1])
        read_tables(subject, planned, [[4, 3, 2, 9]], [0, 0], [4, 3], [0, 5, 6, 7, 8, -1], second, width=widths[0])


@fills
def test_two_state_blocks_or_one_count_what_each_table_reads(subject: Subject, fill: str) -> None:
    planned = pair(1, Beside(512), fill=fill)
    for second in (
        Second([0, 1, -1], 3),
        Second([0, 1, -1], 3, counted=False),
        Second([0, 1, -1], 3, counts_in_first=True),
    ):
        # An id past the table of the second alone, one past both, a clipped lane, a bad row.
        table, v2p = [[1, 2, 9], [2, 1, 1]], [0, 3, 2, -1]
        read_tables(subject, planned, table, [0, 1, 1, 2], [3, 2, 4, 3], v2p, second, width=3)
        read_tables(subject, planned, table, [0, 1], [3, 2], v2p, second, width=3, how=How(counted=False))
        read_tables(subject, planned, table, [0, 1], [4, 2], v2p, second, width=3, how=How(checks="off"))


@every_spec
def test_empty_batches_and_empty_rows_write_what_single_calls_write(subject: Subject, planned: ReadTableSpec) -> None:
    for lanes in (0, 3):
        first, other = starts_of(planned, [0] * lanes)
        second = Second([0, 2, 1, -1], 1, lanes + 2, starts=other)
        table, rows = [[4 * planned.page_size] * planned.page_size], [0] * lanes
        read_tables(
            subject, planned, table, rows, [0] * lanes, [0, 2, 1, -1], second, width=1, rows=lanes + 1, starts=first
        )


@pytest.mark.parametrize("gap", [0, 1, 16, 1000], ids="gap{}".format)
@every_spec
def test_rows_of_both_tables_lie_apart_by_strides_of_their_own(
    subject: Subject, planned: ReadTableSpec, gap: int
) -> None:
    layouts = {"out": Layout(row_gap=gap), "beside.out": Layout(row_gap=3 * gap + 1, shift=gap % 2)}
    layouts |= {"beside.v2p": Layout(shift=1), "request_table": Layout(row_gap=gap)}
    read_tables(subject, planned, **drawn(planned, Random(gap), 5, 12), how=How(layouts=layouts))


@every_spec
@pytest.mark.parametrize("size", [1, 31, 33, 63, 80], ids="size{}".format)
def test_awkward_batches_and_widths_of_two_tables(subject: Subject, planned: ReadTableSpec, size: int) -> None:
    bs, width = (min(size, 7), size) if subject.slow else (size, size + 1)
    read_tables(subject, planned, **drawn(planned, Random(size), bs, width))


@every_spec
def test_one_long_row_among_short_ones_is_shared_out_by_each_table(subject: Subject, planned: ReadTableSpec) -> None:
    bs, width = 6, 400
    case = drawn(planned, Random(9), bs, width, most=9)
    for long in range(2):
        case["seq_lens"][long] = width * unit_of(planned)
        case["req_rows"][long] = long
        read_tables(subject, planned, **case, seq_len_delta=-long)


@pytest.mark.parametrize("programs", [1, 3, 4], ids="programs{}".format)
def test_launch_sizes_change_no_result_of_either(subject: Subject, programs: int) -> None:
    for threads, planned in ((32, SPECS[0]), (64, SPECS[1])):
        how = How(options=LaunchOptions(threads=threads, programs=programs))
        read_tables(subject, planned, **drawn(planned, Random(3), 9, 150), how=how)


@every_spec
def test_generated_pairs_equal_the_oracle(subject: Subject, planned: ReadTableSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 9),
        width=st.integers(1, 40),
        delta=st.integers(-3, 9),
        gap=st.integers(0, 3),
    )
    def equal(rng: Random, bs: int, width: int, delta: int, gap: int) -> None:
        layouts = {"out": Layout(row_gap=gap), "beside.out": Layout(shift=gap), "beside.state": Layout(shift=gap)}
        read_tables(subject, planned, **drawn(planned, rng, bs, width), seq_len_delta=delta, how=How(layouts=layouts))

    equal()


def test_tables_that_share_cells_are_refused_and_rows_that_alternate_are_not(subject: Subject) -> None:
    planned, arguments = sample(READ_TABLE, subject.device, variant="beside")
    plan = subject.plan(READ_TABLE, planned)
    second = arguments["beside"].tables
    buffer = torch.zeros((12, 12), dtype=torch.int32, device=subject.device)
    for first, other in (
        (buffer[:6, :6], buffer[5:11, :6]),
        (buffer[:6, :6], buffer[:6, 5:11]),
        (buffer[:6, :6], buffer[:6, :6]),
        (buffer[:6, 6:], buffer.view(-1)[8:].as_strided((6, 6), (12, 1))),
    ):
        with pytest.raises(InvalidArgument, match=r"beside\.out shares memory with out"):
            call(plan, READ_TABLE, {**arguments, "out": first, "beside": second._replace(out=other)})
        compare(arguments)
        assert not buffer.any()
    call(plan, READ_TABLE, {**arguments, "out": buffer[:6, :6], "beside": second._replace(out=buffer[1:7, 6:])})
    once = {**sample(READ_TABLE, subject.device, variant="beside")[1]}
    call(plan, READ_TABLE, once)
    wanted = torch.where(once["out"].view == POISON[torch.int32], 0, once["out"].view)
    assert torch.equal(buffer[:5, :6], wanted)
    # Rows apart by a half: the second table of 5 columns lies behind the 6 of the first.
    assert buffer[1:7, 6:].any()


def test_a_second_table_comes_with_a_plan_for_one_and_only_then(subject: Subject) -> None:
    planned, arguments = sample(READ_TABLE, subject.device, variant="beside")
    alone = {name: value for name, value in arguments.items() if name != "beside"}
    for one, given_ in ((planned, alone), (replace(planned, beside=None), arguments)):
        with pytest.raises(InvalidArgument, match="beside is"):
            call(subject.plan(READ_TABLE, one), READ_TABLE, given_)
        compare(arguments)


@pytest.mark.parametrize("field", ["v2p", "out", "starts", "state"])
def test_what_is_wrong_with_the_second_table_is_named(subject: Subject, field: str) -> None:
    planned, arguments = sample(READ_TABLE, subject.device, variant="beside")
    second = arguments["beside"].tables
    wrong: dict[str, Any] = {field: getattr(second, field).to(torch.int16)}
    with pytest.raises(InvalidArgument, match=rf"beside\.{field}"):
        call(subject.plan(READ_TABLE, planned), READ_TABLE, {**arguments, "beside": second._replace(**wrong)})
    compare(arguments)


@pytest.mark.parametrize("flaw", [{"num_physical": 0}, {"num_physical": 9, "multiplier": 0}, {"num_physical": 2**40}])
def test_a_flawed_second_table_is_refused_when_planned(flaw: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="beside"):
        replace(spec(1), beside=Beside(**flaw))


def test_full_checks_name_the_ids_of_the_second_table_and_write_nothing(subject: Subject) -> None:
    planned = pair(1, Beside(512))
    second = Second([0, 1, -1], 3)
    arguments, _ = read_tables_case(subject.device, planned, [[1, 2, 9]], [0], [3], [0, 1, 2, -1], second, width=3)
    with pytest.raises(FaultError, match=r"bad_id: 9; beside\.bad_id: 2, 9"):
        call(subject.plan(READ_TABLE, planned, "full"), READ_TABLE, arguments)
    compare(arguments)


@pytest.mark.parametrize("bs", [1, 6], ids="bs{}".format)
@pytest.mark.parametrize("variant", ["beside", "beside-sink"])
def test_both_tables_are_one_launch(subject: Subject, variant: str, bs: int) -> None:
    subject.need(READ_TABLE, sample(READ_TABLE, subject.device, variant=variant)[0])
    assert launches(subject, READ_TABLE, variant, bs) == 1


@every_spec
def test_replayed_tables_follow_lengths_moved_on_the_device(subject: Subject, planned: ReadTableSpec) -> None:
    subject.need_mode("gpu", what="graph replay")
    wide = replace(planned, max_width=4096, max_bs=8)
    rng = Random(1)
    width = 4096 // wide.page_size if wide.granularity == "page" else 4096
    case = drawn(wide, rng, 8, width)
    plan = subject.plan(READ_TABLE, wide)
    replayed, _ = read_tables_case(subject.device, wide, **{**case, "seq_lens": [1] * 8})
    graph = capture(subject, (plan, READ_TABLE, replayed))
    compare(replayed)  # a capture runs nothing
    for turn in range(6):
        lens = [(rng.choice((1, 64, 999, 4096, 0, 5000)) + turn * b) % 5001 for b in range(8)]
        eager, expected = read_tables_case(subject.device, wide, **{**case, "seq_lens": lens})
        call(plan, READ_TABLE, eager)
        replayed["seq_lens"].view.copy_(torch.tensor(lens))
        fields = replayed["beside"].fields
        for tensor, fresh in (
            (replayed["out"], eager["out"]),
            (replayed["state"], eager["state"]),
            (fields["out"], eager["beside"].fields["out"]),
            (fields["state"], eager["beside"].fields["state"]),
        ):
            tensor.view.copy_(fresh.before.as_strided(*fresh.geometry))
        graph.replay()
        torch.cuda.synchronize(subject.device)
        assert same(replayed, eager) is None
        compare(eager, expected)
