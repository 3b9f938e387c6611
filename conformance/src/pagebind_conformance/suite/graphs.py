"""CUDA graphs: replays equal eager calls, whatever moved on the device since the capture."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import pytest
import torch
from pagebind import LaunchOptions, Operation, ops
from pagebind.errors import CaptureError
from pagebind.ops.refresh_table import new_built
from pagebind.ops.touch import new_versions
from pagebind.plan import plan_with
from pagebind.words import EPOCH

from pagebind_conformance import generate, oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.advance import SPECS as ADVANCES
from pagebind_conformance.suite.advance import STEPS, first_step
from pagebind_conformance.suite.advance import identify as identify_advance
from pagebind_conformance.suite.read_table import SPECS, identify
from pagebind_conformance.suite.refreshing import SPECS as REFRESHES
from pagebind_conformance.suite.refreshing import identify as identify_refresh
from pagebind_conformance.trial.advance import expected_of
from pagebind_conformance.trial.call import GuardedPool, call, compare
from pagebind_conformance.trial.read_table import read_table_case
from pagebind_conformance.trial.refresh_table import expected_of as refreshed_of
from pagebind_conformance.trial.refresh_table import rewrite
from pagebind_conformance.trial.sample import CALL_PARAMS, same, sample
from pagebind_conformance.trial.scene import Scene

GROUP = "graphs"
CUDA: Any = torch.cuda  # parts of it have no types
LENGTHS = (1, 64, 999, 4096, 0, 4095, 33, 5000, 2)

every_call = pytest.mark.parametrize(("operation", "variant"), CALL_PARAMS)


def capture(subject: Subject, *calls: tuple[Any, Operation[Any, Any], dict[str, Any]]) -> torch.cuda.CUDAGraph:
    """Warm the plans and capture their calls in one graph."""
    for planned, _, _ in calls:
        planned.warmup()
    torch.cuda.synchronize(subject.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for planned, operation, arguments in calls:
            call(planned, operation, arguments)
    return graph


@pytest.mark.parametrize("planned", SPECS, ids=identify)
def test_a_replayed_table_follows_lengths_moved_on_the_device(subject: Subject, planned: Any) -> None:
    subject.need_mode("gpu", what="graph replay")
    wide = replace(planned, max_width=4096, max_bs=8)
    rng = Random(1)
    v2p, _ = generate.page_tables(rng, 500, 512, 450)
    unit = wide.page_size if wide.granularity == "page" else 1
    width = 4096 // unit
    cells = 4096 if wide.form == "token" else 4096 // wide.page_size
    width = min(width, cells * (wide.page_size if wide.form == "page" else 1) // unit)
    table = generate.request_table(rng, 8, cells, wide.page_size, wide.form, range(1, 500), garbage=0.01)
    starts = [0, 5, 60, 0, 900, 1, 2, 4000] if wide.windowed else None
    built, _ = read_table_case(
        subject.device, wide, table, [3, 1, 7, 0, 2, 6, 5, 4], [1] * 8, v2p, width, starts=starts
    )
    warm = subject.plan(ops.READ_TABLE, wide)
    graph = capture(subject, (warm, ops.READ_TABLE, built))
    for i in range(len(LENGTHS)):
        lens = [LENGTHS[(i + b * b) % len(LENGTHS)] for b in range(8)]
        eager, expected = read_table_case(
            subject.device, wide, table, [3, 1, 7, 0, 2, 6, 5, 4], lens, v2p, width, starts=starts
        )
        call(warm, ops.READ_TABLE, eager)
        built["seq_lens"].view.copy_(torch.tensor(lens))
        built["out"].view.fill_(POISON[wide.out_dtype])
        built["state"].view.copy_(eager["state"].before.as_strided(*eager["state"].geometry))
        graph.replay()
        torch.cuda.synchronize(subject.device)
        assert same(built, eager) is None
        compare(eager, expected)


@every_call
def test_replays_equal_eager_calls_on_the_same_tensors(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    subject.need_mode("gpu", what="graph replay")
    spec, replayed = sample(operation, subject.device, variant=variant)
    _, eager = sample(operation, subject.device, variant=variant)
    subject.need(operation, spec)
    planned = subject.plan(operation, spec)
    graph = capture(subject, (planned, operation, replayed))
    compare(replayed)  # a capture runs nothing
    for _ in range(4):  # the same call again: pages run out, ids are freed twice, rows are full
        graph.replay()
        call(planned, operation, eager)
        torch.cuda.synchronize(subject.device)
        assert same(replayed, eager) is None


@pytest.mark.extended
def test_a_graph_of_allocations_tables_and_frees_takes_positions_from_the_device(subject: Subject) -> None:
    subject.need_mode("gpu", what="graph replay")
    device, rows, each = subject.device, 4, 3
    model = generate.sub_pool(Random(2), 60, 50, 5, 7)
    pool = GuardedPool(model, torch.int32, device)
    table = [[-1] * 6 for _ in range(rows)]
    taken: dict[str, Any] = {
        "tables": pool,
        "ids": Guarded.poisoned((rows * each,), torch.int32, device),
        "pages": Guarded.poisoned((rows * each,), torch.int32, device),
    }
    request_table, req_rows = Guarded(table, torch.int32, device), Guarded([2, 0, 3, 1], torch.int32, device)
    assigned = {
        "request_table": request_table,
        "req_rows": req_rows,
        "ids": taken["ids"],
        "indptr": Guarded(list(range(0, rows * each + 1, each)), torch.int32, device),
        "state": None,
    }
    lens = Guarded([each] * rows, torch.int32, device)
    out = Guarded.poisoned((rows, 6), torch.int32, device)
    built = {"request_table": request_table, "req_rows": req_rows, "seq_lens": lens, "v2p": pool.parts["v2p"],
             "out": out, "seq_len_delta": 0, "state": None}  # fmt: skip
    some = Guarded.poisoned((7,), torch.int32, device)
    given = {"ids": taken["ids"].view[:7], "tables": pool, "freed": some}
    spec = ops.ReadTableSpec(max_bs=8, max_width=64, page_size=1, num_physical=50, form="page", fill="sink")
    plans: list[tuple[Any, Operation[Any, Any], dict[str, Any]]] = [
        (subject.plan(ops.ALLOC, ops.AllocSpec(max_items=64)), ops.ALLOC, taken),
        (subject.plan(ops.ASSIGN, ops.AssignSpec(max_bs=8, max_items=64)), ops.ASSIGN, assigned),
        (subject.plan(ops.READ_TABLE, spec), ops.READ_TABLE, built),
        (subject.plan(ops.FREE, ops.FreeSpec(max_items=64)), ops.FREE, given),
    ]
    graph = capture(subject, *plans)
    for replay in range(9):
        lengths = [(replay + b) % 5 for b in range(rows)]
        lens.view.copy_(torch.tensor(lengths))
        graph.replay()
        torch.cuda.synchronize(device)
        model, ids, pages, took = oracle.alloc(model, rows * each)
        table, _ = oracle.assign(table, [2, 0, 3, 1], ids, list(range(0, rows * each + 1, each)))
        shown, _ = oracle.read_table(
            table, [2, 0, 3, 1], lengths, model.v2p, [[0] * 6] * rows, page_size=1, form="page", fill="sink"
        )
        before = model
        model, freed, gave = oracle.free(model, ids[:7])
        assert taken["ids"].values() == ids, f"replay {replay}"
        assert taken["pages"].values() == pages
        assert request_table.values() == table
        assert out.values() == shown
        assert some.values() == freed
        compare({"tables": pool}, pool.expected(before, model, {**took, **gave}, pushes=True))


@pytest.mark.parametrize("place", [None, 1, 2], ids=["alone", "float", "down"])
@pytest.mark.parametrize("planned", ADVANCES, ids=identify_advance)
@pytest.mark.extended
def test_a_step_captured_once_replays_step_after_step(subject: Subject, planned: Any, place: int | None) -> None:
    subject.need_mode("gpu", what="graph replay")
    model, arguments = first_step(subject, planned, 8, place)
    graph = capture(subject, (subject.plan(ops.ADVANCE, planned), ops.ADVANCE, arguments))
    compare(arguments)  # a capture runs nothing
    for _ in range(STEPS):
        after, expected = expected_of(planned, arguments, model)
        graph.replay()
        torch.cuda.synchronize(subject.device)
        compare(arguments, expected)
        model = after.pool


@pytest.mark.parametrize("planned", REFRESHES, ids=identify_refresh)
@pytest.mark.extended
def test_a_refresh_captured_once_follows_whatever_moves_on_the_device(subject: Subject, planned: Any) -> None:
    subject.need_mode("gpu", what="graph replay")
    subject.need(ops.TOUCH)
    subject.need(ops.REFRESH_TABLE, planned)
    rng, device = Random(3), subject.device
    scene = Scene(subject, planned.page_size, planned.form, rows=6, pages=12)
    tokens = 12 * planned.page_size
    kinds: dict[str, Any] = {"row_dtype": planned.row_dtype, "length_dtype": planned.length_dtype}
    touches, warm = subject.plan(ops.TOUCH, ops.TouchSpec(max_bs=8, **kinds)), subject.plan(ops.REFRESH_TABLE, planned)

    def placed() -> tuple[dict[str, Any], dict[str, Any]]:
        table = scene.table(planned, 8)
        refreshed = table.arguments(
            scene.request_table, [0] * 7, [1] * 7, scene.v2p, scene.versions,
            first=scene.first if planned.borrowed else None, starts=[0] * 7 if planned.windowed else None,
        )  # fmt: skip
        touched = {"versions": refreshed["versions"], "state": None}
        touched["req_rows"] = Guarded([-1, -1], planned.row_dtype, device)
        touched["tokens"] = Guarded([0, 0], planned.length_dtype, device)
        return touched, refreshed

    (touched, replayed), (touched_now, eager) = placed(), placed()
    graph = capture(subject, (touches, ops.TOUCH, touched), (warm, ops.REFRESH_TABLE, replayed))
    compare(replayed)  # a capture runs nothing
    lens, rows = [rng.randint(0, tokens) for _ in range(6)], [3, 1, -1, 0, 2, 5, 4]
    for step in range(24):
        r, page = rng.randrange(6), rng.randrange(12)
        told = [-1, -1]
        if step % 3 == 1:
            scene.write(r, page, rng.randint(1, len(scene.v2p) - 2))
            told = [r, r] if step % 2 else [r, -1]
        if step % 7 == 6:
            scene.move(r, page)
            scene.epoch += 1
        if step % 5 == 4:
            rows = rng.sample(rows, 7)
            scene.first[r] = page
        lens = [min(n + 1, tokens) if rng.random() < 0.9 else rng.randint(0, tokens) for n in lens]
        words = replayed["state"].before_values()
        words[EPOCH] = scene.epoch
        now = {"request_table": scene.request_table, "req_rows": rows, "v2p": scene.v2p, "state": words}
        now |= {"seq_lens": [lens[lane] if lane >= 0 else 4 for lane in rows]}
        if planned.borrowed:
            now["first"] = scene.first
        if planned.windowed:
            now["starts"] = [max(lens[lane] - 3 * planned.page_size, 0) if lane >= 0 else 0 for lane in rows]
        for one, other in ((touched, replayed), (touched_now, eager)):
            rewrite(one["req_rows"], told)
            rewrite(one["tokens"], [page * planned.page_size] * 2)
            for name, values in now.items():
                rewrite(other[name], values)
            rewrite(other["out"], [[POISON[planned.out_dtype]] * len(row) for row in other["out"].before_values()])
        versions, _ = oracle.touch(touched["versions"].before_values(), told, [page * planned.page_size] * 2)
        after, _ = refreshed_of(planned, replayed | {"versions": Guarded(versions, torch.int32, device)})
        graph.replay()
        call(touches, ops.TOUCH, touched_now)
        call(warm, ops.REFRESH_TABLE, eager)
        torch.cuda.synchronize(device)
        assert same(replayed, eager) is None, f"replay {step}"
        for one, other in ((touched, replayed), (touched_now, eager)):
            compare(one | other, after | {"versions": versions})


@pytest.mark.extended
def test_a_steady_refresh_costs_the_same_at_a_million_columns(subject: Subject) -> None:
    subject.need_mode("gpu", what="graph replay")
    bs, width, num = 16, 1_048_576, 70_000
    device = subject.device
    spec = ops.RefreshTableSpec(max_bs=bs, max_width=width, page_size=1, num_physical=num)
    subject.need(ops.REFRESH_TABLE, spec)
    random = torch.Generator(device).manual_seed(6)
    v2p = torch.full((num + 1,), -1, dtype=torch.int32, device=device)
    v2p[1:num] = (torch.randperm(num - 1, generator=random, device=device) + 1).int()
    v2p[0] = 0
    table = torch.randint(0, num, (bs, width), generator=random, device=device, dtype=torch.int32)
    rows = torch.arange(bs - 1, -1, -1, dtype=torch.int32, device=device)
    lens = torch.ones(bs, dtype=torch.int32, device=device)
    out = torch.full((bs + 1, width), POISON[torch.int32], dtype=torch.int32, device=device)
    state = torch.zeros(32, dtype=torch.int64, device=device)
    built, versions = new_built(bs + 1, width, device), new_versions(bs, device)
    planned = subject.plan(ops.REFRESH_TABLE, spec)
    planned.warmup()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph):
        planned(table, rows, lens, v2p, out=out, built=built, versions=versions, state=state)
    took: dict[int, float] = {}
    expected = torch.full_like(out, POISON[torch.int32])
    for n in (1, 1000, 1001, width - 1, width, 65_537, 65_538):
        if n == 65_538:
            table[bs - 1, 60_000:] = table[bs - 1, 60_000:].flip(0)
            versions[bs - 1, 0], versions[bs - 1, 1] = 1, 60_000
        lens.fill_(n)
        graph.replay()
        expected[:bs, :n] = v2p[table.flip(0)[:, :n].long()]
        assert torch.equal(out, expected), f"length {n}"
        took[n] = _time(graph)
    assert not state.any()
    assert took[width] < 1.5 * took[1] + 1, f"a steady refresh takes {took[1]:.1f} us, then {took[width]:.1f}"


def test_case_06_a_table_captured_at_length_1_covers_a_million_columns_later(subject: Subject) -> None:
    subject.need_mode("gpu", what="graph replay")
    bs, width, num = 16, 1_048_576, 70_000
    device = subject.device
    spec = ops.ReadTableSpec(max_bs=bs, max_width=width, page_size=1, num_physical=num)
    random = torch.Generator(device).manual_seed(6)
    v2p = torch.full((num + 1,), -1, dtype=torch.int32, device=device)
    v2p[1:num] = (torch.randperm(num - 1, generator=random, device=device) + 1).int()
    v2p[0] = 0
    table = torch.randint(0, num, (bs, width), generator=random, device=device, dtype=torch.int32)
    rows = torch.arange(bs - 1, -1, -1, dtype=torch.int32, device=device)
    lens = torch.ones(bs, dtype=torch.int32, device=device)
    out = torch.full((bs + 1, width), POISON[torch.int32], dtype=torch.int32, device=device)
    state = torch.zeros(32, dtype=torch.int64, device=device)
    planned = subject.plan(ops.READ_TABLE, spec)
    planned.warmup()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph):
        planned(table, rows, lens, v2p, out=out, state=state)
    took: dict[int, float] = {}
    for n in (1, width, 999, width - 1, 65_537):
        lens.fill_(n)
        out.fill_(POISON[torch.int32])
        graph.replay()
        expected = torch.full_like(out, POISON[torch.int32])
        expected[:bs, :n] = v2p[table.flip(0)[:, :n].long()]
        assert torch.equal(out, expected), f"length {n}"
        del expected
        took[n] = _time(graph)
    assert not state.any()
    assert took[1] < took[width] / 5, f"a replay takes {took[1]:.1f} us at length 1 and {took[width]:.1f} at {width}"


def test_case_13_an_unwarmed_call_in_a_capture_is_refused_and_the_capture_stays_usable(subject: Subject) -> None:
    subject.need_mode("gpu", what="graph capture")
    spec, arguments = sample(ops.READ_TABLE, subject.device)
    _, eager = sample(ops.READ_TABLE, subject.device)
    warm = subject.plan(ops.READ_TABLE, spec)
    warm.warmup()
    call(warm, ops.READ_TABLE, eager)
    unwarmed = replace(spec, page_size=13, multiplier=11, form="page", fill="sink", index_dtype=torch.int64)
    cold = plan_with(subject.backend, ops.READ_TABLE, unwarmed, subject.device, "count", LaunchOptions())
    other, _ = read_table_case(subject.device, unwarmed, [[1, 2, 3]], [0], [39], [0, 9, 8, 7, -1], 3)
    compiled = subject.backend.compile_count()
    torch.cuda.synchronize(subject.device)
    graph = torch.cuda.CUDAGraph()
    refused = False
    with torch.cuda.graph(graph):
        call(warm, ops.READ_TABLE, arguments)
        try:
            call(cold, ops.READ_TABLE, other)
        except CaptureError:
            refused = True
    graph.replay()
    torch.cuda.synchronize(subject.device)
    assert same(arguments, eager) is None
    if refused:
        compare(other)
    else:
        assert subject.backend.compile_count() == compiled, "the call compiled inside the capture"
        assert other["out"].values() == [[99, 88, 77]]
    cold.warmup()
    call(cold, ops.READ_TABLE, other)
    assert other["out"].values() == [[99, 88, 77]]


def test_full_checks_are_refused_in_a_capture_and_the_capture_stays_usable(subject: Subject) -> None:
    subject.need_mode("gpu", what="graph capture")
    spec, arguments = sample(ops.UNBIND, subject.device)
    _, eager = sample(ops.UNBIND, subject.device)
    _, refused = sample(ops.UNBIND, subject.device)
    warm = subject.plan(ops.UNBIND, spec)
    full = subject.plan(ops.UNBIND, spec, "full")
    warm.warmup()
    full.warmup()
    call(warm, ops.UNBIND, eager)
    torch.cuda.synchronize(subject.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError):
            call(full, ops.UNBIND, refused)
        call(warm, ops.UNBIND, arguments)
    graph.replay()
    torch.cuda.synchronize(subject.device)
    compare(refused)
    assert same(arguments, eager) is None


def _time(graph: torch.cuda.CUDAGraph) -> float:
    times: list[float] = []
    for _ in range(20):
        CUDA._sleep(500_000)  # the host is ahead then, and its time is none of the replay's
        begin, end = (CUDA.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return median(times)
