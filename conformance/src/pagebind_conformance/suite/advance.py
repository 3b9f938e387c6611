"""advance: a token more for every row, its page where it begins one, its slot, its column of a table, its length."""

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
from pagebind.ops import ADVANCE, AdvanceSpec, AllocSpec

from pagebind_conformance import generate, oracle
from pagebind_conformance.guarded import POISON, Guarded, Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.extend import held_rows, pool_of
from pagebind_conformance.suite.span import SHIFTED, spoiled, three
from pagebind_conformance.trial.advance import advance, advance_case
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import GuardedPool, How, call, compare

OPERATION = ADVANCE
LONG = torch.int64
STEPS = 50


def spec(page_size: int, **fields: Any) -> AdvanceSpec:
    """Return a spec of the sizes all cases share."""
    return AdvanceSpec(**{"max_bs": 80, "num_virtual": 512, "num_physical": 512, "page_size": page_size, **fields})


SPECS = [
    spec(1),
    spec(1, form="page", length_dtype=LONG, appends=True),
    spec(16, index_dtype=LONG, row_dtype=LONG, appends=True, granularity="token", table_dtype=LONG),
    spec(16, form="page", emits=True, out_dtype=LONG),
    spec(3, length_dtype=LONG, appends=True, emits=True, id_dtype=LONG, multiplier=7),
    spec(3, form="page", appends=True, granularity="token", out_dtype=LONG, multiplier=5),
    spec(4, emits=True, index_dtype=LONG, row_dtype=LONG, appends=True, table_dtype=LONG),
    spec(1, appends=True, granularity="token", emits=True, multiplier=3),
]


def identify(value: AdvanceSpec) -> str:
    """Spell a spec: `ps4-token-x3-page-emits-i64i32i32i64i32i32` (index, row, length, out, table, id)."""
    parts = [f"ps{value.page_size}", value.form] + ([f"x{value.multiplier}"] if value.multiplier > 1 else [])
    parts += [f"append-{value.granularity}"] * value.appends + ["emits"] * value.emits
    dtypes = [
        value.index_dtype,
        value.row_dtype,
        value.length_dtype,
        value.out_dtype,
        value.table_dtype,
        value.id_dtype,
    ]
    return "-".join([*parts, "".join(f"i{8 * dtype.itemsize}" for dtype in dtypes)])


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
paged = pytest.mark.parametrize("planned", [one for one in SPECS if one.page_size > 1], ids=identify)
appending = pytest.mark.parametrize("planned", [one for one in SPECS if one.appends], ids=identify)
emitting = pytest.mark.parametrize("planned", [one for one in SPECS if one.emits], ids=identify)
forms = pytest.mark.parametrize("form", ["token", "page"])


def tokens_of(planned: AdvanceSpec, cells: int) -> int:
    """Return the tokens a row of that many cells has room for."""
    return cells * (1 if planned.form == "token" else planned.page_size)


def blank(planned: AdvanceSpec, rows: int, width: int) -> list[list[int]] | None:
    """Return a table that holds nothing yet, where the plan appends to one."""
    return [[POISON[planned.table_dtype]] * width for _ in range(rows)] if planned.appends else None


def empty_rows(planned: AdvanceSpec, rows: int, pages: int) -> list[list[int]]:
    """Return rows that hold nothing, with room for that many pages."""
    return [generate.spread([-1] * pages, planned.page_size, planned.form) for _ in range(rows)]


# ---- what a step does ----


@forms
def test_a_token_goes_on_in_the_last_page_or_begins_a_new_one(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5, 4: 1}, [2], [1, 9, 8], 5)
    rows = [generate.spread([3, -1], 3, form), generate.spread([4, -1], 3, form), generate.spread([-1, -1], 3, form)]
    if form == "token":
        rows[0][2] = -1  # behind the last token stands nothing
    step = advance(subject, spec(3, form=form), rows, [2, 0, 1], [0, 2, 3], pool, pages=2)
    # Row 2 begins id 8 in page 2, row 0 goes on in page 5, row 1 begins id 9 in the first page past the span.
    assert step.slots == [6, 17, 18]
    assert step.seq_lens == [1, 3, 4]
    wanted = [[9, 10, 11, -1, -1, -1], [12, 13, 14, 27, -1, -1], [24, -1, -1, -1, -1, -1]]
    assert step.request_table == (wanted if form == "token" else [[3, -1], [4, 9], [8, -1]])
    assert (step.pool.virtual_top, step.pool.hole_top, step.pool.watermark) == (1, 0, 6)
    assert not any(step.counters.values())


@pytest.mark.parametrize("granularity", ["page", "token"])
@forms
def test_the_new_tokens_column_is_appended_to_a_table(subject: Subject, form: str, granularity: str) -> None:
    pool = pool_of({3: 5, 4: 1}, [2], [1, 9, 8], 5)
    rows = [generate.spread([3, -1], 3, form), generate.spread([4, -1], 3, form)]
    planned = spec(3, form=form, appends=True, granularity=granularity, multiplier=2)
    step = advance(subject, planned, rows, [1, 0], [3, 2], pool, table=blank(planned, 3, 6))
    free = POISON[torch.int32]
    wanted = {
        "page": [[free, 4, *[free] * 4], [free] * 6, [free] * 6],
        "token": [[*[free] * 3, 12, free, free], [free, free, 32, *[free] * 3], [free] * 6],
    }
    assert step.table == wanted[granularity]


@forms
def test_pages_that_are_not_found_are_the_sink_and_their_lanes_keep_their_length(subject: Subject, form: str) -> None:
    planned = spec(3, form=form, appends=True, emits=True)
    rows = Guarded(empty_rows(planned, 4, 2), torch.int32, subject.device)
    lens = Guarded([0, 0, 0, 3], torch.int32, subject.device)
    table = Guarded(blank(planned, 4, 2) or [], torch.int32, subject.device)
    pool = pool_of({3: 5}, [2], [9, 8, 7], 11)
    step = advance(subject, planned, rows, [2, 1, 0, 3], lens, pool, table=table, pages=4)
    assert (step.slots, step.seq_lens) == ([6, 0, 0, 0], [1, 0, 0, 3])
    assert step.counters["starved"] == 3
    assert step.emitted is not None
    assert (step.emitted.new_ids, step.emitted.token_ids) == ([7, 0, 0, 0], [21, 0, 0, 0])
    # Two pages came back: two of the three lanes get the token they asked for, and the first goes on.
    pool = step.pool._replace(
        hole_top=2, hole_stack=[6, 4, *[0] * 10], virtual_top=3, virtual_stack=[2, 10, 11] + [0] * 9
    )
    step = advance(subject, planned, rows, [2, 1, 0, 3], lens, pool, table=table)
    assert (step.slots, step.seq_lens) == ([7, 12, 18, 0], [2, 1, 1, 3])
    free = POISON[torch.int32]
    assert step.table == [[2, free], [4, free], [6, free], [free, free]]


@every_spec
def test_a_page_or_an_id_bound_by_hand_is_refused_and_its_lane_asks_again(
    subject: Subject, planned: AdvanceSpec
) -> None:
    pool = pool_of({3: 5}, [2, 4], [1, 9, 8, 7], 5)
    pool.v2p[8], pool.p2v[11] = 11, 8  # id 8 is the second that lanes get
    table = blank(planned, 3, 2 if planned.granularity == "page" else 2 * planned.page_size)
    step = advance(subject, planned, empty_rows(planned, 3, 2), [0, 1, 2], [0, 0, 0], pool, table=table)
    assert step.seq_lens == [1, 0, 1]
    assert step.counters["bad_bind"] == 1
    again = advance(subject, planned, step.request_table, [0, 1, 2], step.seq_lens, step.pool, table=step.table)
    assert again.seq_lens == ([2, 1, 2] if planned.page_size > 1 else [2, 0, 1])


@every_spec
def test_full_rows_bad_rows_and_wild_lengths(subject: Subject, planned: AdvanceSpec) -> None:
    least, most = generate.LIMITS[planned.length_dtype]
    cells = 2 * planned.page_size if planned.form == "token" else 2
    room = 2 * planned.page_size
    pool = generate.sub_pool(Random(3), 60, 60, 30, 8)
    lens = [least, -1, 0, room - 1, room, room + 1, most - 1, most, 0, 0, 1, 1, -1]
    rows = held_rows(Random(4), pool, [0, 0, 0, room - 1, *[room] * 4], cells, planned.page_size, planned.form)
    low, high = generate.LIMITS[planned.row_dtype]
    req_rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, -1, low, high, len(rows)]
    table = blank(planned, len(lens) + 1, 2 if planned.granularity == "page" else room)
    step = advance(subject, planned, rows, req_rows, lens, pool, table=table)
    assert step.seq_lens == [1, 1, 1, room, *lens[4:]]
    assert (step.counters["bad_row"], step.counters["clipped"]) == (5, 6)


@every_spec
def test_a_request_table_without_rows_or_columns(subject: Subject, planned: AdvanceSpec) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    cases: list[tuple[list[list[int]], str]] = [([], "bad_row"), ([[], []], "clipped")]
    for rows, counted in cases:
        table = blank(planned, 2, 0 if planned.appends else 4)
        step = advance(subject, planned, rows, [0, 1], [0, 3], pool, table=table)
        assert (step.seq_lens, step.counters[counted]) == ([0, 3], 2)


@pytest.mark.parametrize("appends", [False, True], ids=["", "append"])
def test_a_row_has_no_room_past_the_largest_length(subject: Subject, appends: bool) -> None:
    most = 2**31 - 1
    planned = spec(2**20, form="page", num_physical=30, num_virtual=30, appends=appends, index_dtype=LONG)
    pool = pool_of({3: 5}, [2], [9, 8, 7], 11)
    rows = [[3] * 2050 for _ in range(4)]
    table = blank(planned, 4, 2050)
    step = advance(
        subject, planned, rows, [0, 1, 2, 3], [most, most - 1, most - 2**20, most + 1 - 2**20], pool, table=table
    )
    assert step.seq_lens == [most, most, most + 1 - 2**20, most + 2 - 2**20]
    assert step.counters["clipped"] == 1
    assert step.slots == [0, 6 * 2**20 - 2, 6 * 2**20 - 1, 2 * 2**20]


@paged
def test_a_last_page_that_is_a_hole_past_the_table_unbound_or_the_sink(subject: Subject, planned: AdvanceSpec) -> None:
    ps, named = planned.page_size, [-1, -5, 12, 400, 4, 0, 3]
    pool = pool_of({3: 5}, [], [1, 2], 5)
    rows = [[page, -7] for page in named]
    if planned.form == "token":
        rows = [[page * ps + i if page >= 0 else page for i in range(ps)] + [-7] * ps for page in named]
    order = list(range(len(rows)))
    table = blank(planned, len(rows), 2 if planned.granularity == "page" else 2 * ps)
    step = advance(subject, planned, rows, order, [ps - 1 for _ in order], pool, table=table)
    assert step.counters["bad_id"] == 2
    assert step.seq_lens == [ps for _ in order], "what has no page goes on: only a new page is asked for again"
    assert step.slots == [*[0] * 5, ps - 1, 5 * planned.multiplier * ps + ps - 1]


@forms
def test_a_last_page_is_read_as_it_was_before_the_call_bound_its_id(subject: Subject, form: str) -> None:
    pool = pool_of({3: 5}, [2], [1, 9, 8], 5)
    rows = [generate.spread([8, -1], 3, form), generate.spread([-1, -1], 3, form), generate.spread([8, -1], 3, form)]
    planned = spec(3, form=form, appends=True, granularity="token")
    step = advance(subject, planned, rows, [0, 1, 2], [1, 0, 2], pool, table=blank(planned, 3, 6))
    assert step.pool.v2p[8] == 2
    assert step.slots == [0, 6, 0]


@every_spec
def test_empty_batches_write_nothing(subject: Subject, planned: AdvanceSpec) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    advance(subject, planned, [[-1] * 4], [], [], pool, table=blank(planned, 2, 4), told=3)


@every_spec
def test_the_hosts_page_count_is_held_against_the_devices(subject: Subject, planned: AdvanceSpec) -> None:
    pool = generate.sub_pool(Random(2), 40, 40, 6, 5)
    rows = held_rows(Random(3), pool, [0, 1, 0], 2 * planned.page_size, planned.page_size, planned.form)
    pages = 2 + (planned.page_size == 1)
    for claimed in (pages, pages + 1, 0):
        table = blank(planned, 3, 2)
        step = advance(subject, planned, rows, [0, 1, 2], [0, 1, 0], pool, table=table, pages=claimed)
        assert step.counters["count_mismatch"] == (claimed != pages)


@every_spec
def test_counting_off_moves_positions_and_lengths_and_no_counter(subject: Subject, planned: AdvanceSpec) -> None:
    pool = generate.sub_pool(Random(5), 4, 9, 2, 2)
    table = blank(planned, 4, 1)
    rows = empty_rows(planned, 3, 2)
    advance(subject, planned, rows, [0, 7, 1, 2], [0, 0, -1, 0], pool, table=table, pages=1, how=How(checks="off"))


def test_case_17_full_checks_refuse_a_starved_step_and_write_nothing(subject: Subject) -> None:
    pool = generate.sub_pool(Random(6), 20, 9, 3, 2)
    rows, how = [[-1] * 4 for _ in range(6)], How(checks="full")
    with pytest.raises(FaultError, match="starved") as caught:
        advance(subject, SPECS[0], rows, list(range(6)), [0] * 6, pool, how=how)
    assert caught.value.counters == {"starved": 1}
    advance(subject, SPECS[0], rows, list(range(5)), [0] * 5, pool, how=how)


def test_case_10_slots_and_entries_past_32_bits_are_exact_or_refused(subject: Subject) -> None:
    big: dict[str, Any] = {"num_physical": 2001, "multiplier": 1_500_000, "appends": True}
    pool = SubPool([0, -1, -1], [0] + [-1] * 2001, [1, 0], [0] * 2001, 1, 0, 1999)
    for granularity in ("page", "token"):
        planned = spec(1, out_dtype=LONG, table_dtype=LONG, granularity=granularity, **big)
        step = advance(subject, planned, [[-1]], [0], [0], pool, table=[[7]])
        assert (step.slots, step.table) == ([3_000_000_000], [[3_000_000_000]])
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, table_dtype=LONG, **big)
    with pytest.raises(InvalidArgument, match="3000000000"):
        spec(1, out_dtype=LONG, **big)


# ---- step after step ----


def decoding(
    planned: AdvanceSpec, seed: int, place: int | None, bs: int = 5
) -> tuple[SubPool, list[list[int]], list[int]]:
    """Return a sub-pool that runs out of pages on the way, and rows of which some are full before the last step."""
    rng, ps = Random(seed), planned.page_size
    pages = STEPS // ps + 3
    if place is None:
        pool = generate.sub_pool(rng, 400, bs * pages - 4, 12, 6)
    else:
        total = min(3 * bs * pages + 9, 500)
        blocks = generate.empty_blocks((1, 1, 1), total)
        seats = {0: blocks[0].seat, 1: total // 2, 2: blocks[2].seat - 18}
        blocks[place] = blocks[place]._replace(seat=seats[place], watermark=18)
        if place != 1:  # the float stands in the way of an end
            blocks[1] = blocks[1]._replace(seat=total // 2, watermark=4)
        pool = generate.member(rng, blocks, place, total, 400, 12)
    lens = [rng.randint(0, 2 * ps) for _ in range(bs)]
    width = STEPS + 2 if planned.form == "token" else -(-(STEPS + 2) // ps)
    return pool, held_rows(rng, pool, lens, width, ps, planned.form), lens


def first_step(subject: Subject, planned: AdvanceSpec, seed: int, place: int | None) -> tuple[SubPool, dict[str, Any]]:
    """Return the sub-pool and the arguments of a step that is to be repeated; tables and rows lie apart in memory."""
    pool, rows, lens = decoding(planned, seed, place)
    width = tokens_of(planned, len(rows[0])) - 2
    table = blank(planned, len(rows), -(-width // planned.page_size) if planned.granularity == "page" else width)
    how = How(layouts={"request_table": Layout(row_gap=3, shift=1), "table": Layout(row_gap=1, shift=1)})
    order = Random(seed).sample(range(len(rows)), len(rows))
    args = advance_case(subject, planned, rows, order, [lens[r] for r in order], pool, table, how=how)
    return pool, args


@pytest.mark.parametrize("place", [None, 0, 1, 2], ids=["alone", "up", "float", "down"])
@every_spec
def test_repeated_steps_equal_the_oracle(subject: Subject, planned: AdvanceSpec, place: int | None) -> None:
    pool, args = first_step(subject, planned, 7, place)
    kept = {name: args[name] for name in ("request_table", "seq_lens", "table") if name in args}
    order = args["req_rows"].before_values()
    for _ in range(12 if subject.slow else STEPS):
        pool = advance(subject, planned, kept["request_table"], order, kept["seq_lens"], pool,
                       table=kept.get("table"), placed=args["tables"]).pool  # fmt: skip


@appending
def test_a_table_that_was_built_before_stays_what_a_fresh_build_is(subject: Subject, planned: AdvanceSpec) -> None:
    pool, rows, lens = decoding(planned, 9, None)
    width = tokens_of(planned, len(rows[0]))
    width = -(-width // planned.page_size) if planned.granularity == "page" else width
    kinds: dict[str, Any] = {"page_size": planned.page_size, "form": planned.form, "multiplier": planned.multiplier,
                             "granularity": planned.granularity}  # fmt: skip
    order = [3, 0, 4, 1, 2]
    in_order = [lens[r] for r in order]
    poisoned = blank(planned, len(rows), width) or []
    shown, _ = oracle.read_table(rows, order, in_order, pool.v2p, poisoned, **kinds)
    kept = [Guarded(rows, torch.int32, subject.device), Guarded(in_order, planned.length_dtype, subject.device)]
    table = Guarded(shown, planned.table_dtype, subject.device)
    placed = GuardedPool(pool, planned.index_dtype, subject.device)
    for _ in range(6 if subject.slow else 20):
        step = advance(subject, planned, kept[0], order, kept[1], pool, table=table, placed=placed)
        pool = step.pool
        fresh, _ = oracle.read_table(step.request_table, order, step.seq_lens, pool.v2p, poisoned, **kinds)
        assert table.values() == fresh


@appending
@pytest.mark.parametrize("width", [0, 1, 2], ids="w{}".format)
def test_a_column_past_a_tables_width_is_counted_and_not_written(
    subject: Subject, planned: AdvanceSpec, width: int
) -> None:
    ps = planned.page_size
    unit = ps if planned.granularity == "page" else 1
    pool = generate.sub_pool(Random(2), 60, 60, 30, 4)
    lens = [0, 1 * unit, 2 * unit, 3 * unit - 1, 3 * unit]
    rows = held_rows(Random(1), pool, lens, 4 * unit, ps, planned.form)
    table = Guarded(blank(planned, 6, width) or [], planned.table_dtype, subject.device, Layout(row_gap=2), (6, width))
    step = advance(subject, planned, rows, [0, 1, 2, 3, 4], lens, pool, table=table)
    assert step.counters["clipped"] == sum(n // unit >= width for n in lens)
    assert step.seq_lens == [n + 1 for n in lens]


# ---- calls that tell what they took ----


@emitting
@pytest.mark.parametrize("told", [0, 2, 3, 9], ids="told{}".format)
def test_pages_that_have_no_room_are_not_told_and_room_past_them_is_padded(
    subject: Subject, planned: AdvanceSpec, told: int
) -> None:
    pool = generate.sub_pool(Random(2), 40, 40, 6, 2)
    rows = held_rows(Random(1), pool, [0, 0, 1, 0], 2 * planned.page_size, planned.page_size, planned.form)
    lens = [0, 0, planned.page_size, 0]
    step = advance(subject, planned, rows, [3, 7, 2, 0], lens, pool, told=told, table=blank(planned, 4, 2))
    assert step.emitted is not None
    assert step.emitted.new_ids[3:] == [-1] * max(told - 3, 0)
    assert step.emitted.token_ids[1] == -1
    assert all(v > 0 for v in step.emitted.new_ids[:3])


@emitting
def test_ids_that_a_step_tells_go_to_a_borrower(subject: Subject, planned: AdvanceSpec) -> None:
    pool = pool_of({3: 5}, [2, 4], [1, 9, 8], 11)
    window = SubPool([0, *[-1] * 12], [0, *[-1] * 6], [0] * 12, [0] * 6, 0, 0, 0)
    rows = empty_rows(planned, 4, 2)
    step = advance(subject, planned, rows, [0, 1, 2, 3], [0] * 4, pool, told=6, table=blank(planned, 4, 2))
    assert step.emitted is not None
    assert step.emitted.new_ids == [8, 9, 0, 0, -1, -1]
    borrow = AllocSpec(max_items=512, borrowed=True, index_dtype=planned.index_dtype, id_dtype=planned.id_dtype)
    window, _, pages = alloc(subject, borrow, window, step.emitted.new_ids)
    assert pages == [1, 2, 0, 0, 0, 0]
    assert (window.v2p[8], window.v2p[9]) == (1, 2)


@pytest.mark.parametrize("flag", ["emits", "appends"])
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "not-planned"])
def test_what_is_told_or_appended_is_given_exactly_where_it_is_planned(
    subject: Subject, flag: str, planned: bool
) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    one, other = spec(1, **{flag: planned}), spec(1, **{flag: not planned})
    table = blank(other, 2, 4)
    arguments = advance_case(subject, other, [[-1] * 4] * 2, [0, 1], [0, 0], pool, table)
    with pytest.raises(InvalidArgument, match="token_ids" if flag == "emits" else "table is"):
        call(subject.plan(ADVANCE, one), ADVANCE, arguments)
    compare(arguments)


def test_outputs_that_share_memory_are_refused(subject: Subject) -> None:
    pool = generate.sub_pool(Random(1), 12, 12, 3, 2)
    planned = spec(1, emits=True, appends=True)
    arguments = advance_case(subject, planned, [[-1] * 4] * 2, [0, 1], [0, 0], pool, [[7, 7], [7, 7]])
    for name, other in (("slots", "seq_lens"), ("slots", "token_ids"), ("new_ids", "new_pages")):
        with pytest.raises(InvalidArgument, match="shares memory"):
            call(subject.plan(ADVANCE, planned), ADVANCE, arguments | {name: arguments[other].view})
    folded = arguments["table"].view.as_strided((2, 2), (1, 1))
    with pytest.raises(InvalidArgument, match="overlap"):
        call(subject.plan(ADVANCE, planned), ADVANCE, arguments | {"table": folded})
    with pytest.raises(InvalidArgument, match="1 rows"):
        call(subject.plan(ADVANCE, planned), ADVANCE, arguments | {"table": arguments["table"].view[:1]})
    compare(arguments)


# ---- sizes, positions, generated cases ----


def batch(planned: AdvanceSpec, bs: int, num: int = 500) -> tuple[list[list[int]], list[int], list[int], SubPool]:
    """Return rows, their order, lengths and a sub-pool that has a page too few for them."""
    rng = Random(bs)
    lens = [rng.choice([0, planned.page_size, rng.randint(0, 2 * planned.page_size)]) for _ in range(bs)]
    held = sum(-(-n // planned.page_size) for n in lens)
    taking = sum(n % planned.page_size == 0 for n in lens)
    spare = max(taking - 1, 0)
    pool = generate.sub_pool(rng, num, min(num, held + spare + 1), held, spare // 3)
    rows = held_rows(rng, pool, lens, 3 * planned.page_size, planned.page_size, planned.form)
    order = rng.sample(range(bs), bs)
    return rows, order, [lens[r] for r in order], pool


@pytest.mark.parametrize("bs", [1, 31, 32, 33, 63, 80], ids="bs{}".format)
@every_spec
def test_awkward_batches(subject: Subject, planned: AdvanceSpec, bs: int) -> None:
    rows, order, lens, pool = batch(planned, bs)
    step = advance(subject, planned, rows, order, lens, pool, table=blank(planned, bs + 1, 3 * planned.page_size))
    assert step.counters["starved"] == any(n % planned.page_size == 0 for n in lens)


@pytest.mark.parametrize("bs", [255, 1023, 1024, 1025, 3000], ids="bs{}".format)
@every_spec
def test_batches_of_about_a_block_and_of_several(subject: Subject, planned: AdvanceSpec, bs: int) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 80")
    wide = replace(planned, max_bs=3000, num_virtual=9000, num_physical=9000)
    rows, order, lens, pool = batch(wide, bs, num=8000)
    advance(subject, wide, rows, order, lens, pool, table=blank(wide, bs, 3))


def test_more_than_65535_lanes(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    bs = 65_600
    planned = AdvanceSpec(
        max_bs=bs, page_size=2, num_virtual=2 * bs, num_physical=2 * bs, form="page", appends=True, emits=True
    )
    pool = generate.sub_pool(Random(1), 2 * bs, 2 * bs, bs // 2 + 5, 300)
    lens = [b % 2 for b in range(bs)]
    rows = held_rows(Random(2), pool, lens, 1, 2, "page")
    order = Random(3).sample(range(bs), bs)
    advance(subject, planned, rows, order, [lens[r] for r in order], pool, table=[[7]] * bs)


@every_spec
def test_launch_sizes_change_nothing(subject: Subject, planned: AdvanceSpec) -> None:
    rows, order, lens, pool = batch(planned, 75)
    for threads, programs in ((32, 2),) if subject.slow else ((32, 2), (64, 1), (32, 16)):
        how = How(options=LaunchOptions(threads=threads, programs=programs))
        advance(subject, planned, rows, order, lens, pool, table=blank(planned, 75, 3), how=how)


@every_spec
@pytest.mark.parametrize("place", [0, 1, 2], ids=["up", "float", "down"])
def test_pages_are_taken_by_the_rule_of_an_allocation(subject: Subject, planned: AdvanceSpec, place: int) -> None:
    rows, order = empty_rows(planned, 11, 1), [4, 0, 10, 1, 2, 3, 9, 8, 7, 6, 5]
    pool, table = three(place), blank(planned, 11, 1)
    advance(subject, planned, rows, order, [0] * 11, pool, table=table, pages=11)
    for word, value in (
        ("watermark", 2**63 - 1),
        ("seat", -(2**63)),
        ("growth", 2**40),
        ("base", -1),
        ("hole_top", -3),
    ):
        if word == "watermark" or not subject.slow:
            wild = spoiled(pool, word, value)
            advance(subject, planned, rows, order, [0] * 11, wild, table=table, how=SHIFTED)
            advance(subject, planned, rows, order, [10**6] * 11, wild, table=table, how=SHIFTED)


@every_spec
def test_generated_steps_equal_the_oracle(subject: Subject, planned: AdvanceSpec) -> None:
    @subject.generated(0.6)
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 9),
        cells=st.integers(1, 40),
        width=st.integers(0, 40),
        num=st.integers(4, 120),
        wild=st.sampled_from([0.0, 0.0, 0.15]),
        gap=st.integers(0, 3),
        steps=st.integers(1, 3),
    )
    def equal(rng: Random, bs: int, cells: int, width: int, num: int, wild: float, gap: int, steps: int) -> None:
        ps, device = planned.page_size, subject.device
        tokens = tokens_of(planned, cells)
        pool = generate.sub_pool(rng, num, rng.randint(4, 120), rng.randint(0, 60), rng.randint(0, 20))
        lens = generate.lengths(rng, bs, min(tokens, 3 * ps), planned.length_dtype, wild)
        rows = held_rows(rng, pool, [min(max(n, 0), tokens) for n in lens], cells, ps, planned.form)
        for row in rows if wild else ():
            row[rng.randrange(cells)] = rng.choice([-3, 10**6, rng.randint(0, 400)])
        rows = rows or [[-1] * cells]
        req_rows = [r if rng.random() >= wild else rng.choice([-1, bs]) for r in range(bs)]
        layout = Layout(row_gap=gap, shift=gap)
        kept = Guarded(rows, torch.int32, device, layout)
        counted = Guarded(lens, planned.length_dtype, device)
        table = blank(planned, bs + gap, width)
        shown = None
        if table is not None:
            shown = Guarded(table, planned.table_dtype, device, layout, (bs + gap, width))
        placed = GuardedPool(pool, planned.index_dtype, device)
        for _ in range(steps):
            pool = advance(
                subject, planned, kept, req_rows, counted, pool, table=shown, told=rng.choice([0, 3, 60]),
                pages=rng.choice([None, 3]), placed=placed,
            ).pool  # fmt: skip

    equal()
