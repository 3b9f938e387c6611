"""The cases as data, their inputs, and the peers' work against ours."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pagebind import get_backend
from pagebind.ops import OPERATIONS
from pagebind.pool.audit import audit_tables
from pagebind.words import HOLE_TOP, WATERMARK
from pagebind_bench.bench import inputs
from pagebind_bench.bench.cases import (
    ALLOC,
    CASES,
    COMPACT,
    FREE,
    KIB,
    MIB,
    SKEW,
    TABLE,
    AllocCase,
    TableCase,
    chosen,
    merged,
)
from pagebind_bench.bench.lab import Fault, Lab, Work
from pagebind_bench.bench.makers import MAKERS
from pagebind_bench.bench.promises import PROMISES
from pagebind_bench.bench.sglang import PeerUnavailable, load

CPU = torch.device("cpu")
EVERY = [case for cases in CASES.values() for case in cases]

SMALL = [
    *(
        TableCase(bs=bs, length=length, width=300, page_size=size, form=form, layout=layout, lengths=lengths)
        for bs, length, size, form, layout, lengths in [
            (1, 1, 1, "token", "scattered", "even"),
            (5, 257, 1, "token", "scattered", "skewed"),
            (4, 300, 3, "page", "contiguous", "even"),
            (3, 97, 16, "token", "scattered", "even"),
            (6, 300, 16, "page", "scattered", "trace"),
        ]
    ),
    replace(TABLE, bs=3, length=100, width=128, dtype="int64"),
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


def test_along_an_axis_only_the_axis_moves():
    for name in ("bs", "dtype", "l2"):
        for case in CASES["read_table"]:
            if name in case.groups and len(case.groups) == 1 and case.bs != 256:
                apart = [k for k, v in case.parameters().items() if v != TABLE.parameters()[k]]
                assert set(apart) <= {name, "layout"}, case


def test_promises_are_about_cases_that_are_measured():
    for promise in PROMISES:
        listed = [case for case in CASES[promise.case.op] if case == promise.case]
        assert listed, promise.what
        assert {"promise", "published"} & set(listed[0].groups), promise.what
        assert promise.most > 0


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
    assert replace(COMPACT, moved_bytes=16 * MIB, page_bytes=4 * KIB).label == "page4KiB moved16MiB"


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
        assert case.length <= case.width
    assert 0 < case.footprint < 8 * 2**30


def test_skewed_lengths_are_one_long_row_among_short_ones():
    lengths = inputs.lane_lengths(replace(TABLE, bs=256, length=131_072, lengths="skewed"))
    assert sorted(lengths) == [131_072 // SKEW] * 255 + [131_072]
    assert 131_072 // SKEW == 1_024
    traced = inputs.lane_lengths(replace(TABLE, lengths="trace"))
    assert len(traced) == 64
    assert len(set(traced)) > 32
    assert max(traced) <= TABLE.width


def test_inputs_follow_from_the_case_alone_and_are_no_identity():
    case = replace(TABLE, bs=4, length=50, width=64)
    first, again = inputs.batch(case, CPU), inputs.batch(case, CPU)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.v2p, again.v2p)
    assert first.ids.unique().numel() == first.entries == 200
    assert (first.v2p[first.ids] != first.ids).any()
    assert not torch.equal(first.ids, inputs.batch(replace(case, l2="cold"), CPU).ids)
    dense = inputs.batch(replace(case, layout="contiguous"), CPU)
    assert torch.equal(dense.ids.diff().unique(), torch.tensor([1]))
    assert (dense.v2p[dense.ids] != dense.ids).all()


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
    if work.restore is not None:
        work.restore()
    work.call()
    work.need_sound()
    assert torch.equal(work.result(), first)
    assert work.bytes > 0


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.op}/{case.id}")
def test_sglang_does_what_ours_does(case, sglang):
    found = {}
    for name, make in MAKERS[case.op](case, Lab(CPU, (get_backend("cpu"),), sglang)):
        work = make()
        work.call()
        found[name] = work.result()
    if case.op == "compact":
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
