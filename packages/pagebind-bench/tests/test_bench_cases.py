"""The cases as data, their inputs, and the peers' work against ours."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pagebind import get_backend
from pagebind.errors import Unsupported
from pagebind.ops import ALLOC as ALLOC_OPERATION
from pagebind.ops import OPERATIONS, AllocSpec
from pagebind.pool.audit import audit_tables
from pagebind.words import HOLE_TOP, VIRTUAL_TOP, WATERMARK
from pagebind_bench.bench import inputs
from pagebind_bench.bench.cases import (
    ADVANCE,
    ALLOC,
    CASES,
    COMPACT,
    FREE,
    REFRESH,
    SKEWED,
    TABLE,
    UNSKEWED,
    chosen,
    merged,
)
from pagebind_bench.bench.kinds import KIB, MIB, SERVER, SKEW, AllocCase, Case, TableCase
from pagebind_bench.bench.lab import Fault, Lab, Work
from pagebind_bench.bench.makers import MAKERS, advance, refresh_table
from pagebind_bench.bench.promises import ITSELF, PROMISES
from pagebind_bench.bench.sglang import PeerUnavailable, load

CPU = torch.device("cpu")
EVERY = [case for cases in CASES.values() for case in cases]

SMALL = [
    *(
        TableCase(
            bs=bs, length=length, width=300, page_size=size, form=form, layout=layout, lengths=lengths, memory=999
        )
        for bs, length, size, form, layout, lengths in [
            (1, 1, 1, "token", "scattered", "even"),
            (5, 257, 1, "token", "scattered", "skewed"),
            (4, 300, 3, "page", "contiguous", "even"),
            (3, 97, 16, "token", "scattered", "even"),
            (6, 300, 16, "page", "scattered", "trace"),
        ]
    ),
    replace(TABLE, bs=3, length=100, width=128, dtype="int64", memory=0),
    *(
        replace(REFRESH, bs=bs, length=n, width=300, page_size=ps, form=form, lengths=lengths, refresh=how, memory=0)
        for how in ("steady", "all")
        for bs, n, ps, form, lengths in [
            (1, 1, 1, "token", "even"),
            (5, 300, 1, "token", "even"),
            (4, 257, 1, "token", "skewed"),
            (3, 200, 16, "page", "even"),
        ]
    ),
    replace(REFRESH, bs=2, length=200, width=256, layout="contiguous", dtype="int64", memory=0),
    *(
        replace(ADVANCE, bs=bs, length=n, width=300, page_size=ps, form=form, appends=appends, memory=0)
        for bs, n, ps, form, appends in [
            (1, 1, 1, "token", True),
            (5, 200, 1, "token", True),
            (3, 300, 1, "page", False),
            (18, 257, 16, "token", True),
            (16, 144, 16, "page", True),
            (4, 200, 3, "page", False),
        ]
    ),
    replace(ADVANCE, bs=3, length=200, width=256, layout="contiguous", dtype="int64", memory=999),
    *(AllocCase(pages=n, holes=holes, pool=64) for n, holes in [(1, 0), (8, 0), (8, 4), (8, 8), (8, 20)]),
    replace(ALLOC, pages=8, holes=4, pool=64, layout="contiguous", dtype="int64"),
    replace(FREE, pages=1, holes=0, pool=64),
    replace(FREE, pages=32, holes=9, pool=64),
    replace(FREE, pages=7, holes=9, pool=64, layout="contiguous", dtype="int64"),
    replace(COMPACT, page_bytes=64, moved_bytes=640),
    replace(COMPACT, page_bytes=16, moved_bytes=16, dtype="int64"),
]


@pytest.fixture(scope="module")
def sglang():
    """SGLang's launchers, from the wheel or folder that SGLANG names, or from where it is installed."""
    given = os.environ.get("SGLANG")
    try:
        return load(Path(given) if given else None)
    except PeerUnavailable as error:
        pytest.skip(f"{error} (the variable SGLANG names it)")


@pytest.mark.parametrize("op", CASES)
def test_an_operation_has_different_cases_and_at_most_sixty(op):
    cases = CASES[op]
    assert 0 < len(cases) <= 60
    assert len({case.id for case in cases}) == len(set(cases)) == len(cases)
    assert all(case.op == op and case.groups for case in cases)
    assert any("quick" in case.groups for case in cases)
    assert op in OPERATIONS
    assert op in MAKERS


def test_decode_steps_have_their_axes_and_at_most_twenty_cases():
    cases = CASES["advance"]
    assert len(cases) <= 20
    assert {case.bs for case in cases if "bs" in case.groups} == {1, 4, 16, 64, 256, 1_024}
    assert {case.page_size for case in cases if "page_size" in case.groups} == {1, 16}
    assert ADVANCE.pool == TABLE.pool == SERVER
    assert (ADVANCE.bs, ADVANCE.length, ADVANCE.page_size, ADVANCE.form) == (256, 8_224, 1, "token")


def test_every_axis_has_its_points():
    table = {name: {getattr(c, name) for c in CASES["read_table"] if name in c.groups} for name in TABLE.parameters()}
    assert table["bs"] == {1, 4, 16, 64, 256, 1024}
    assert min(table["length"]) == 1024
    assert max(table["length"]) == 2**20
    assert table["page_size"] == {1, 3, 16, 64, 256}
    assert table["layout"] == {"contiguous", "scattered"}
    assert table["lengths"] == {"even", "skewed", "trace"}
    assert table["l2"] == {"warm", "cold"}
    assert table["dtype"] == {"int32", "int64"}
    assert table["pool"] == {64 * 8_224 * 5 // 4 + 64, 2**20, 2**22, 2**24}
    refresh = {(case.bs, case.length) for case in CASES["refresh_table"] if case.refresh == "steady"}
    assert refresh >= {(bs, length) for bs in (1, 16, 64, 256) for length in (1_024, 8_224, 131_072, 2**20)}
    assert refresh >= {(1_024, length) for length in (1_024, 8_224, 131_072)}


def test_along_an_axis_only_the_axis_moves():
    for op, centre in (("read_table", TABLE), ("refresh_table", REFRESH)):
        for name in ("bs", "dtype", "l2", "pool"):
            for case in CASES[op]:
                if name in case.groups and len(case.groups) == 1 and case.bs != 256:
                    apart = [k for k, v in case.parameters().items() if v != centre.parameters()[k]]
                    follows = {"layout"} if name != "bs" else {"layout", "pool"}
                    assert set(apart) <= {name} | follows, case


def test_a_pool_is_that_of_a_server_whatever_the_batch_and_larger_where_it_has_to_be():
    assert TABLE.pool == replace(TABLE, bs=1).pool == SERVER == 2**22
    assert replace(TABLE, page_size=16).pool == 2**22 // 16
    for case in CASES["read_table"] + CASES["refresh_table"]:
        assert case.pool >= case.used * 5 // 4
        assert case.pool >= case.memory // case.page_size
        assert 8 * case.pool < 2**32  # ids are int32
    assert replace(TABLE, memory=0).pool == TABLE.used * 5 // 4 + 64


def test_the_unskewed_batch_has_the_tokens_of_the_skewed_one():
    skewed, even = sum(SKEWED["scattered"].seq_lens()), sum(UNSKEWED.seq_lens())
    assert 0 <= skewed - even < UNSKEWED.bs


def test_promises_are_about_cases_that_are_measured():
    for promise in PROMISES:
        for held in (*promise.cases, *([promise.than] if promise.than else [])):
            listed = [case for case in CASES[held.op] if case == held]
            assert listed, promise.what
            assert {"promise", "published"} & set(listed[0].groups), promise.what
        assert promise.most > 0
        assert (promise.against == ITSELF) <= (promise.than is not None)


def test_mentions_of_one_case_are_merged_and_keep_all_groups():
    twice = merged([replace(TABLE, groups=("a",)), replace(TABLE, bs=3, groups=("b",)), replace(TABLE, groups=("b",))])
    assert [case.groups for case in twice] == [("a", "b"), ("b",)]


def test_cases_are_chosen_by_operation_group_and_name_and_promised_ones_come_first():
    assert {case.op for case in chosen(["free"])} == {"free"}
    assert all("quick" in case.groups for case in chosen(CASES, group="quick"))
    named = chosen(CASES, named="alloc/n256-holes0-")
    assert [(case.op, case.holes) for case in named] == [("alloc", 0)]
    ranked = ["promise" in case.groups for case in chosen(CASES)]
    assert ranked == sorted(ranked, reverse=True)


def test_a_label_says_what_is_off_the_centre():
    assert TABLE.label == "64 x 8,224"
    assert replace(TABLE, bs=1, layout="contiguous", l2="cold").label == "1 x 8,224 contiguous cold"
    assert ALLOC.label == "centre"
    assert replace(ADVANCE, appends=False).label == "256 x 8,224 appendsFalse"
    assert replace(COMPACT, moved_bytes=16 * MIB, page_bytes=4 * KIB).label == "page4KiB moved16MiB"
    assert replace(TABLE, bs=256, length=131_072).label == "256 x 131,072"
    assert replace(TABLE, memory=2**24).label == "64 x 8,224 pool16,777,216"
    assert replace(REFRESH, refresh="all").label == "64 x 8,224 all"


def test_a_kind_of_case_has_to_say_what_memory_it_takes():
    with pytest.raises(TypeError, match="footprint"):
        Case()


@pytest.mark.parametrize("case", EVERY, ids=lambda case: f"{case.op}/{case.id}")
def test_a_case_can_be_served_by_its_pool(case):
    if case.op in {"alloc", "free"}:
        live = case.pool // 2
        assert live + case.holes <= case.pool
        assert case.pages <= (live if case.op == "free" else case.pool - live)
    elif case.op == "compact":
        assert case.moved_bytes % case.page_bytes == 0
        assert case.page_bytes % 16 == 0
    else:
        assert min(case.seq_lens()) > 0
        assert case.length <= case.width
    assert 0 < case.footprint < 32 * 2**30


def test_skewed_lengths_are_one_long_row_among_short_ones():
    lengths = replace(TABLE, bs=256, length=131_072, lengths="skewed").seq_lens()
    assert sorted(lengths) == [131_072 // SKEW] * 255 + [131_072]
    assert 131_072 // SKEW == 1_024
    traced = replace(TABLE, lengths="trace").seq_lens()
    assert len(traced) == 64
    assert len(set(traced)) > 32
    assert max(traced) <= TABLE.width


def test_inputs_follow_from_the_case_alone_and_are_no_identity():
    case = replace(TABLE, bs=4, length=50, width=64, memory=9_999)
    first, again = inputs.batch(case, CPU), inputs.batch(case, CPU)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.v2p, again.v2p)
    assert first.ids.unique().numel() == first.entries == 200
    assert (first.v2p[first.ids] != first.ids).any()
    assert not torch.equal(first.ids, inputs.batch(replace(case, l2="cold"), CPU).ids)
    dense = inputs.batch(replace(case, layout="contiguous"), CPU)
    assert torch.equal(dense.ids.diff().unique(), torch.tensor([1]))
    assert (dense.v2p[dense.ids] != dense.ids).all()
    for made in (first, dense):
        assert torch.equal(made.v2p[1:-1].sort().values, torch.arange(1, 10_000))
    assert first.ids.max() > 9_000, "scattered ids are drawn from the whole pool"


@pytest.mark.parametrize("holes", [0, 9])
def test_a_pools_tables_are_sound(holes):
    random = torch.Generator().manual_seed(1)
    arena = inputs.half_live(64, holes, scattered=True, random=random).arena(CPU, torch.int32)
    tables = inputs.page_tables(arena)
    words = tables.state.tolist()
    assert (words[WATERMARK], words[HOLE_TOP]) == (32 + holes, holes)
    assert not audit_tables(tables, 32, 32 + holes)


def test_an_arena_brings_back_everything():
    arena = inputs.Arena({"a": torch.arange(5, dtype=torch.int32), "b": torch.arange(33)}, CPU)
    arena["a"].zero_()
    arena["b"].fill_(-1)
    arena.restore()
    assert arena["a"].tolist() == [0, 1, 2, 3, 4]
    assert arena["b"].tolist() == list(range(33))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.op}/{case.id}")
def test_contenders_do_the_same_work_and_again_after_a_restore(case):
    [contender, *_] = MAKERS[case.op](case, Lab(CPU, (get_backend("cpu"),)))
    work = contender.make()
    work.call()
    work.need_sound()
    first = work.result().clone()
    assert (first != -7).any()
    for back in (work.restore, work.turns and work.turns.rewind):
        if back is not None:
            back()
    work.call()
    work.need_sound()
    assert torch.equal(work.result(), first)
    assert work.bytes > 0


def spoiled(monkeypatch, wrong):
    """Make the CPU backend's planned refreshes go wrong as `wrong(out, built)` says, after each call."""
    plan = Lab.plan

    def planning(self, *args):
        planned = plan(self, *args)

        def call(*args, out, built, **more):
            planned(*args, out=out, built=built, **more)
            wrong(out, built)

        return call

    monkeypatch.setattr(Lab, "plan", planning)


def of_refresh(how):
    case = replace(REFRESH, bs=2, length=200, width=256, memory=0, refresh=how)
    [contender] = MAKERS["refresh_table"](case, Lab(CPU, (get_backend("cpu"),)))
    return contender.make()


def cells_written(work, rounds):
    """Return how many cells each call of some rounds writes, by what it leaves of a table of no entries."""
    out = work.result()
    right, found = out.clone(), []
    for _ in range(rounds):
        if work.turns.rewind is not None:
            work.turns.rewind()
        for call in work.turns.calls:
            out.fill_(inputs.WORN)
            call()
            written = out != inputs.WORN
            assert torch.equal(out[written], right[written])
            found.append(int(written.sum()))
    return found


def test_every_call_of_a_steady_round_writes_one_new_column_a_lane_and_again_after_a_rewind():
    work = of_refresh("steady")
    assert len(work.turns.calls) == refresh_table.ROUND
    assert cells_written(work, 2) == [2] * 2 * refresh_table.ROUND


def test_every_call_that_rebuilds_writes_all_of_the_table_round_after_round():
    work = of_refresh("all")
    assert work.turns.rewind is None
    assert cells_written(work, 3) == [400, 400] * 3


@pytest.mark.parametrize("how", ["steady", "all"])
def test_a_refresh_that_leaves_a_cell_out_is_not_timed(how, monkeypatch):
    spoiled(monkeypatch, lambda out, built: out[1, 199:].fill_(inputs.WORN))
    with pytest.raises(Fault, match="lane 1 of its table is wrong"):
        of_refresh(how)


def of_advance(**changes):
    case = replace(ADVANCE, bs=32, length=200, width=256, memory=0, **changes)
    [contender] = MAKERS["advance"](case, Lab(CPU, (get_backend("cpu"),)))
    return contender.make()


@pytest.mark.parametrize(("page_size", "form", "taken"), [(1, "token", 32), (1, "page", 32), (16, "token", 2)])
def test_every_step_of_a_round_takes_pages_and_as_many_after_a_rewind(page_size, form, taken):
    work = of_advance(page_size=page_size, form=form)
    assert len(work.turns.calls) == advance.ROUND
    found = []
    for _ in range(2):
        work.turns.rewind()
        marks = [work.state[WATERMARK].item()]
        for call in work.turns.calls:
            call()
            marks.append(work.state[WATERMARK].item())
        found += torch.tensor(marks).diff().tolist()
        assert work.state[VIRTUAL_TOP] == 0
        work.need_sound()
    assert found == [taken] * 2 * advance.ROUND


def test_what_a_round_begins_and_ends_with_is_sound_and_no_identity():
    case = replace(ADVANCE, bs=32, length=200, width=256, page_size=16, memory=9_999)
    made = advance.steps(case, CPU)
    tables = inputs.page_tables(made.before.arena(CPU, torch.int32))
    taken = 32 * advance.ROUND // 16
    assert not audit_tables(tables, case.pool - taken, case.pool - taken)
    assert torch.equal(made.after.v2p[1:-1].sort().values, torch.arange(1, case.pool + 1))
    assert (made.after.v2p[made.after.ids] != made.after.ids).any()
    assert set(made.after.lengths) == set(range(185, 201))
    assert torch.equal(made.starts + advance.ROUND, torch.tensor(made.after.lengths))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda table, lens, tables, slots, read: slots[3].add_(1), "its slots of step 0 are wrong"),
        (lambda table, lens, tables, slots, read: table[1, 199].fill_(5), "its request table is wrong"),
        (lambda table, lens, tables, slots, read: read[1, 199].fill_(-7), "lane 1 of its table is wrong"),
        (lambda table, lens, tables, slots, read: tables.v2p[-1].fill_(3), "its page table is wrong"),
        (lambda table, lens, tables, slots, read: tables.p2v[9].fill_(-1), "its page tables are not inverse"),
    ],
)
def test_a_step_that_writes_something_else_is_not_timed(spoil, wrong, monkeypatch):
    plan = Lab.plan

    def planning(self, *args):
        planned = plan(self, *args)

        def call(request_table, rows, lens, tables, *, slots, table):
            planned(request_table, rows, lens, tables, slots=slots, table=table)
            spoil(request_table, lens, tables, slots, table)

        return call

    monkeypatch.setattr(Lab, "plan", planning)
    with pytest.raises(Fault, match=wrong):
        of_advance()


def test_what_waits_is_not_captured_and_so_not_timed_on_a_gpu(monkeypatch):
    backend = get_backend("cpu")
    backend = replace(backend, planners={k: v for k, v in backend.planners.items() if k != "alloc"})
    lab = Lab(CPU, (backend,))
    assert lab.plan(backend, ALLOC_OPERATION, AllocSpec(max_items=1)).composed
    monkeypatch.setattr(lab, "device", torch.device("cuda"))
    with pytest.raises(Unsupported, match="'cpu' composes alloc, which waits: no graph can hold it"):
        lab.plan(backend, ALLOC_OPERATION, AllocSpec(max_items=1))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.op}/{case.id}")
def test_sglang_does_what_ours_does(case, sglang):
    found = {}
    for name, make in MAKERS[case.op](case, Lab(CPU, (get_backend("cpu"),), sglang)):
        if name == "sglang" and case.op == "advance" and case.page_size > 1:
            with pytest.raises(Unsupported, match="in a module that is not loaded"):
                make()
            continue
        work = make()
        work.call()
        found[name] = work.result()
    if case.op in {"compact", "refresh_table"} or (case.op == "advance" and case.page_size > 1):
        assert list(found) == ["cpu"]
    else:
        assert torch.equal(found["cpu"], found["sglang"])


def test_a_contender_that_counts_faults_is_not_timed():
    state = torch.zeros(32, dtype=torch.int64)
    work = Work(lambda: None, 1, state=state)
    work.need_sound()
    state[11] = 2
    with pytest.raises(Fault, match=r"double_free.*2"):
        work.need_sound()
