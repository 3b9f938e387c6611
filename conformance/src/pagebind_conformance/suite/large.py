"""Sizes past 16 and 32 bits: batches over 65,535 lanes, a million columns, offsets over 2**31 elements."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from pagebind import LaunchOptions, ops
from pagebind.ops.refresh_table import new_built
from pagebind.ops.touch import new_versions
from pagebind.words import HOLE_TOP, WATERMARK, Fill, Form, new_tables

from pagebind_conformance import generate
from pagebind_conformance.guarded import POISON
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.extend import held_rows
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.assign import assign
from pagebind_conformance.trial.bind import bind
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.compact import compact
from pagebind_conformance.trial.evict import evict
from pagebind_conformance.trial.extend import extend
from pagebind_conformance.trial.free import free
from pagebind_conformance.trial.read_stream import read_stream
from pagebind_conformance.trial.read_table import read_table
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.release import release
from pagebind_conformance.trial.touch import touch
from pagebind_conformance.trial.translate import translate
from pagebind_conformance.trial.truncate import truncate
from pagebind_conformance.trial.unbind import unbind

GROUP = "large"
MANY = 65_600
BLOCKS = How(options=LaunchOptions(threads=32, programs=65_537))
"""More blocks than 16 bits count, where a launch has work for as many."""
STRIDE = 1_048_576
ROWS = 2_049


@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_a_table_of_more_than_65535_lanes(subject: Subject, fill: Fill) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    rng = Random(1)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    table = generate.request_table(rng, 1000, 4, 2, "token", range(1, 400))
    spec = ops.ReadTableSpec(max_bs=MANY, max_width=2, page_size=2, num_physical=512, fill=fill)
    rows = [rng.randrange(-1, 1001) for _ in range(MANY)]
    lens = [rng.randrange(-1, 6) for _ in range(MANY)]
    read_table(subject, spec, table, rows, lens, v2p, width=2, rows=MANY + 1)


@pytest.mark.parametrize("fill", ["prefix", "sink"])
@pytest.mark.parametrize("width", [2, 3], ids="width{}".format)
def test_a_table_by_more_than_65536_blocks(subject: Subject, fill: Fill, width: int) -> None:
    subject.need_mode("gpu", "cpu", what="a launch of 65,537 blocks")
    rng = Random(11)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    table = generate.request_table(rng, 1000, 3, 1, "page", range(1, 400))
    spec = ops.ReadTableSpec(max_bs=MANY, max_width=width, page_size=1, num_physical=512, form="page", fill=fill)
    rows = [rng.randrange(-1, 1001) for _ in range(MANY)]
    lens = [rng.randrange(-1, 5) for _ in range(MANY)]
    read_table(subject, spec, table, rows, lens, v2p, width=width, rows=MANY + 1, how=BLOCKS)


@pytest.mark.extended
def test_a_stream_and_ids_of_rows_by_more_than_65536_blocks(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a launch of 65,537 blocks")
    rng = Random(12)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    ids = [rng.randrange(-1, 400) for _ in range(2 * MANY)]
    sizes = [rng.randrange(3) for _ in range(MANY)]
    indptr = generate.offsets(rng, sizes, torch.int32)
    order = rng.sample(range(MANY), MANY)
    assigned = ops.AssignSpec(max_bs=MANY, max_items=2 * MANY)
    rows = assign(subject, assigned, [[7, 7] for _ in range(MANY)], order, ids[: indptr[-1]], indptr, BLOCKS)
    streamed = ops.ReadStreamSpec(max_bs=MANY, max_items=2 * MANY, page_size=1, num_physical=512, form="page")
    read_stream(subject, streamed, rows, order, sizes, v2p, indptr, capacity=indptr[-1], how=BLOCKS)


@pytest.mark.extended
def test_a_table_is_refreshed_by_more_than_65536_blocks(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a launch of 65,537 blocks")
    rng = Random(13)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    table = generate.request_table(rng, MANY, 3, 1, "page", range(1, 400))
    spec = ops.RefreshTableSpec(max_bs=MANY, max_width=3, page_size=1, num_physical=512, form="page", fill="sink")
    refreshed = Refreshed(subject, spec, MANY + 1, 3, BLOCKS)
    versions = [[0, 0] for _ in range(MANY)]
    rows = rng.sample(range(-1, MANY + 1), MANY)
    lens = [rng.randrange(-1, 4) for _ in range(MANY)]
    for grown in (lens, [n + 1 for n in lens]):
        refreshed.refresh(table, rows, grown, v2p, versions)


@pytest.mark.extended
def test_a_table_of_more_than_65535_lanes_is_refreshed(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    rng = Random(9)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    rows_held = 66_000
    table = generate.request_table(rng, rows_held, 4, 2, "token", range(1, 400))
    spec = ops.RefreshTableSpec(max_bs=MANY, max_width=2, page_size=2, num_physical=512, fill="sink")
    subject.need(ops.REFRESH_TABLE, spec)
    refreshed = Refreshed(subject, spec, MANY + 1, 2)
    versions = [[0, 0] for _ in range(rows_held)]
    rows = rng.sample(range(-1, rows_held + 1), MANY)
    lens = [rng.randrange(-1, 4) for _ in range(MANY)]
    refreshed.refresh(table, rows, lens, v2p, versions)
    lens = [n + 1 for n in lens]
    told = rng.sample(range(rows_held), 500)
    for r in told:
        table[r][2:] = [6, 7]
    versions = touch(replace(subject, composed=True), ops.TouchSpec(max_bs=500), versions, told, [2] * 500)
    rows[7], rows[65_590] = rows[65_590], rows[7]
    refreshed.refresh(table, rows[:-3], lens[:-3], v2p, versions)


@pytest.mark.extended
def test_more_than_65535_rows_are_touched(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    subject.need(ops.TOUCH)
    rng = Random(10)
    rows = [rng.randrange(-1, MANY) for _ in range(MANY)]
    versions = [[rng.choice([0, 2**31 - 1]), 0] for _ in range(MANY - 5)]
    planned = ops.TouchSpec(max_bs=MANY)
    touch(subject, planned, versions, rng.sample(range(-1, MANY), MANY), list(range(MANY)))
    touch(subject, planned, versions[:99], [r if r < 99 else -1 for r in rows], list(range(MANY)))
    touch(subject, planned, versions[:3], [1] * MANY, [5] * MANY)


@pytest.mark.extended
def test_a_stream_of_more_than_65535_lanes(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    rng = Random(2)
    v2p, _ = generate.page_tables(rng, 400, 512, 390)
    table = generate.request_table(rng, 1000, 2, 1, "page", range(1, 400))
    spec = ops.ReadStreamSpec(max_bs=MANY, max_items=2 * MANY, page_size=1, num_physical=512, form="page")
    lens = [rng.randrange(3) for _ in range(MANY)]
    indptr = generate.offsets(rng, lens, torch.int32)
    rows = [rng.randrange(1000) for _ in range(MANY)]
    read_stream(subject, spec, table, rows, lens, v2p, indptr, capacity=indptr[-1])


def test_more_than_65535_ids_are_bound_translated_and_unbound(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 65,535")
    rng = Random(3)
    num = MANY + 7
    virtual, physical = rng.sample(range(1, num), MANY), rng.sample(range(1, num), MANY)
    v2p, p2v = bind(subject, ops.BindSpec(max_items=MANY), virtual, physical, [0, *[-1] * num], [0, *[-1] * num])
    spec = ops.TranslateSpec(max_items=MANY, page_size=3, num_physical=num)
    translate(subject, spec, [rng.randrange(-1, 3 * num + 9) for _ in range(MANY)], v2p)
    rng.shuffle(virtual)
    unbind(subject, ops.UnbindSpec(max_items=MANY), virtual, v2p, p2v)


@pytest.mark.extended
def test_more_than_65535_pages_are_taken_and_given_back(subject: Subject) -> None:
    subject.need_mode("gpu", what="a batch over 65,535, in lists that cost minutes of a CPU,")
    rng = Random(4)
    pool = generate.sub_pool(rng, MANY + 100, MANY + 50, 20, 500)
    pool, ids, _ = alloc(subject, ops.AllocSpec(max_items=MANY), pool, MANY)
    ids = [v for v in ids if v]
    rng.shuffle(ids)
    pool, _ = free(subject, ops.FreeSpec(max_items=MANY), pool, [*ids[:60_000], -1, 0, ids[3], ids[4]])
    free(subject, ops.FreeSpec(max_items=MANY), pool, ids[60_000:])


@pytest.mark.extended
def test_more_than_65535_ids_are_borrowed_and_more_rows_evicted(subject: Subject) -> None:
    subject.need_mode("gpu", what="a batch over 65,535, in lists that cost minutes of a CPU,")
    rng = Random(8)
    num = MANY + 900
    pool = generate.borrower(generate.sub_pool(rng, num, num, 30, 300))
    ids = [v for v in range(1, num) if pool.v2p[v] < 0][:MANY]
    rng.shuffle(ids)
    asked = [v if rng.random() < 0.9 else rng.choice([0, -1]) for v in ids]
    pool, _, _ = alloc(subject, ops.AllocSpec(max_items=MANY, borrowed=True), pool, asked)
    rows, order = [[v] for v in ids], rng.sample(range(MANY), MANY)
    for part, capacity in (("head", 60_000), ("tail", MANY)):
        spec = ops.EvictSpec(part=part, max_bs=MANY, max_pages=MANY, page_size=1, form="page")  # type: ignore[arg-type]
        pool, _, _ = evict(subject, spec, rows, order, [0] * MANY, [1] * MANY, pool, [0] * MANY, capacity=capacity)


@pytest.mark.extended
def test_more_than_65535_rows_are_extended_cut_assigned_and_emptied(subject: Subject) -> None:
    subject.need_mode("gpu", what="a batch over 65,535, in lists that cost minutes of a CPU,")
    rng = Random(5)
    num = 2 * MANY + 1000
    pool = generate.sub_pool(rng, num, num, MANY + 5, 300)
    order = rng.sample(range(MANY), MANY)
    lens = [1] * MANY
    rows = held_rows(rng, pool, lens, 3, 1, "page")
    sizes = [rng.randrange(3) for _ in range(MANY)]
    indptr = generate.offsets(rng, sizes, torch.int32)
    spec = ops.ExtendSpec(max_bs=MANY, max_tokens=2 * MANY, page_size=1, num_virtual=num, num_physical=num, form="page")
    rows, pool, _ = extend(subject, spec, rows, order, lens, indptr, pool, capacity=indptr[-1])
    grown = [1 + n for n in sizes]
    cut = ops.TruncateSpec(max_bs=MANY, max_pages=2 * MANY, page_size=1, form="page")
    rows, pool, _ = truncate(subject, cut, rows, order, grown, [2] * MANY, pool, capacity=MANY)
    ids = [rng.randrange(1, num) for _ in range(MANY)]
    assign(
        subject, ops.AssignSpec(max_bs=MANY, max_items=MANY), rows, order, ids, generate.offsets(rng, lens, torch.int32)
    )
    spec_out = ops.ReleaseSpec(max_bs=MANY, max_pages=2 * MANY, page_size=1, form="page")
    release(subject, spec_out, rows, order, [min(n, 2) for n in grown], pool, capacity=2 * MANY)


@pytest.mark.extended
def test_more_than_65535_pages_move_into_holes(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a retreat over 65,535")
    pool = generate.sub_pool(Random(6), 2 * MANY + 500, 3 * MANY, MANY + 400, MANY + 30)
    compact(subject, ops.CompactSpec(max_pages=2 * MANY, page_bytes=16), pool, MANY + 29)


@pytest.mark.extended
def test_more_than_65535_pages_of_the_low_end_move_into_fresh_ones(subject: Subject) -> None:
    subject.need_mode("gpu", what="a retreat over 65,535, in lists that cost seconds of a CPU,")
    pool = generate.sub_pool(Random(7), 2 * MANY + 500, 4 * MANY, MANY + 400, 30, seat=MANY)
    compact(subject, ops.CompactSpec(max_pages=2 * MANY), pool, MANY, side="low", fresh=MANY - 30)


@pytest.mark.extended
def test_case_10_bytes_beyond_2_to_32_move_to_where_they_belong(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="a buffer of 4.4 GB, on the CPU untouched but for a few pages,")
    device, num, page_bytes = subject.device, 4200, 2**20
    try:
        buffer = torch.empty(num * page_bytes, dtype=torch.uint8, device=device)
    except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
        pytest.skip(f"a buffer of 4.4 GB is needed: {str(error).splitlines()[0]}")
    tables = new_tables(8, num, device)
    for v, p in ((3, 4190), (5, 4189)):
        tables.v2p[v], tables.p2v[p] = p, v
    tables.hole_stack[:2] = torch.tensor([2, 4098], device=device)
    tables.state[HOLE_TOP], tables.state[WATERMARK] = 2, 4190
    pages = buffer.view(num, page_bytes)
    for p, seed in ((4190, 1), (4189, 2), (4098, 3), (2, 4), (4097, 5), (4099, 6)):
        pages[p] = torch.randint(0, 256, (page_bytes,), generator=torch.Generator().manual_seed(seed)).to(device)
    first, second, low, high = (pages[p].clone() for p in (4189, 4190, 4097, 4099))
    sources, targets = (torch.zeros(2, dtype=torch.int32, device=device) for _ in range(2))
    spec = ops.CompactSpec(max_pages=8, page_bytes=page_bytes)
    subject.plan(ops.COMPACT, spec)(tables, retreat=2, sources=sources, targets=targets, buffer=buffer)
    assert (sources.tolist(), targets.tolist()) == ([4189, 4190], [4098, 2])
    for p, wanted in ((4098, first), (2, second), (4097, low), (4099, high), (4189, first), (4190, second)):
        assert torch.equal(pages[p], wanted), f"page {p}"


@pytest.mark.parametrize("form", ["token", "page"])
def test_a_table_a_million_columns_wide(subject: Subject, form: Form) -> None:
    subject.need_mode("gpu", "cpu", what="a million columns")
    bs, num, device = 3, 5000, subject.device
    random = torch.Generator().manual_seed(7)
    v2p = torch.full((num + 1,), -1, dtype=torch.int32)
    v2p[1:num] = (torch.randperm(num - 1, generator=random) + 1).int()
    v2p[0] = 0
    table = torch.randint(0, num, (bs, STRIDE), generator=random, dtype=torch.int32)
    lens = torch.tensor([STRIDE, 1, STRIDE - 1], dtype=torch.int32)
    expected = v2p[table.long()]
    for b in range(bs):
        expected[b, int(lens[b]) :] = POISON[torch.int32]
    out = torch.full((bs, STRIDE), POISON[torch.int32], dtype=torch.int32, device=device)
    spec = ops.ReadTableSpec(max_bs=4, max_width=STRIDE, page_size=1, num_physical=num, form=form)
    rows = torch.arange(bs, dtype=torch.int32, device=device)
    subject.plan(ops.READ_TABLE, spec)(table.to(device), rows, lens.to(device), v2p.to(device), out=out)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("form", ["token", "page"])
@pytest.mark.extended
def test_a_table_a_million_columns_wide_is_refreshed(subject: Subject, form: Form) -> None:
    subject.need_mode("gpu", "cpu", what="a million columns")
    bs, num, device = 3, 5000, subject.device
    spec = ops.RefreshTableSpec(max_bs=4, max_width=STRIDE, page_size=1, num_physical=num, form=form, fill="sink")
    subject.need(ops.REFRESH_TABLE, spec)
    random = torch.Generator().manual_seed(8)
    v2p = torch.full((num + 1,), -1, dtype=torch.int32)
    v2p[1:num] = (torch.randperm(num - 1, generator=random) + 1).int()
    v2p[0] = 0
    table = torch.randint(0, num, (bs, STRIDE), generator=random, dtype=torch.int32)
    built, versions = new_built(bs + 1, STRIDE, device), new_versions(bs, device)
    out = torch.full((bs + 1, STRIDE), POISON[torch.int32], dtype=torch.int32, device=device)
    rows, state = torch.arange(bs, dtype=torch.int32, device=device), torch.zeros(32, dtype=torch.int64, device=device)
    planned, held, expected = subject.plan(ops.REFRESH_TABLE, spec), table.to(device), torch.zeros_like(out).cpu()
    for lens, changed in (
        ([STRIDE - 1, 1, STRIDE - 2], None),
        ([STRIDE, 2, STRIDE - 1], None),
        ([STRIDE, 3, 5], 700_001),
        ([9, STRIDE, STRIDE - 3], 3),
    ):
        if changed is not None:
            table[0, changed:] = (table[0, changed:] + 1) % num
            held.copy_(table)
            versions[0, 0] += 1
            versions[0, 1] = changed
        lengths = torch.tensor(lens, dtype=torch.int32, device=device)
        planned(held, rows, lengths, v2p.to(device), out=out, built=built, versions=versions, state=state)
        for b in range(bs):
            expected[b] = 0
            expected[b, : lens[b]] = v2p[table[b, : lens[b]].long()]
        assert torch.equal(out.cpu(), expected), f"lengths {lens}"
    assert not state.any()


def test_case_10_rows_beyond_2_to_31_elements_land_where_they_belong(subject: Subject) -> None:
    subject.need_mode("gpu", "cpu", what="two buffers of 8.6 GB, on the CPU untouched but for a few cells,")
    device = subject.device
    try:
        source, target = (torch.empty(ROWS * STRIDE, dtype=torch.int32, device=device) for _ in range(2))
    except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
        pytest.skip(f"two buffers of 8.6 GB are needed: {str(error).splitlines()[0]}")
    table, shown = (buffer.as_strided((ROWS, 8), (STRIDE, 1)) for buffer in (source, target))
    ids = (torch.arange(ROWS * 8, device=device, dtype=torch.int32) * 7 % 500).view(ROWS, 8)
    table.copy_(ids)
    shown.fill_(POISON[torch.int32])
    v2p = torch.full((501,), -1, dtype=torch.int32, device=device)
    v2p[1:500] = torch.arange(499, 0, -1, dtype=torch.int32, device=device)
    v2p[0] = 0
    rows = torch.arange(ROWS - 1, -1, -1, dtype=torch.int32, device=device)
    lens = torch.full((ROWS,), 5, dtype=torch.int32, device=device)
    spec = ops.ReadTableSpec(max_bs=ROWS, max_width=8, page_size=1, num_physical=501)
    subject.plan(ops.READ_TABLE, spec)(table, rows, lens, v2p, out=shown)
    expected = torch.full((ROWS, 8), POISON[torch.int32], dtype=torch.int32, device=device)
    expected[:, :5] = v2p[ids.flip(0)[:, :5].long()]
    assert torch.equal(shown, expected)

    if ops.REFRESH_TABLE.name in subject.backend.planners:
        words = {"built": new_built(ROWS, 8, device), "versions": new_versions(ROWS, device)}
        refreshed = ops.RefreshTableSpec(max_bs=ROWS, max_width=8, page_size=1, num_physical=501)
        state = torch.zeros(32, dtype=torch.int64, device=device)
        refresh = subject.plan(ops.REFRESH_TABLE, refreshed)
        shown.fill_(POISON[torch.int32])
        for n in (3, 5):
            refresh(table, rows, lens.fill_(n), v2p, out=shown, state=state, **words)
        assert torch.equal(shown, expected)

    shown.fill_(POISON[torch.int32])
    translated = ops.TranslateSpec(max_items=ROWS * 8, page_size=1, num_physical=501)
    subject.plan(ops.TRANSLATE, translated)(table, v2p, out=shown)
    assert torch.equal(shown, v2p[ids.long()])
    assert torch.equal(table, ids)
