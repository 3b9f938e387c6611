"""The arithmetic of times, against a device whose calls take as long as they say."""

import math
from types import SimpleNamespace

import pytest
import torch
from pagebind_bench.bench import limits, timing
from pagebind_bench.bench.cases import COMPACT, FREE, PUBLISHED, TABLE
from pagebind_bench.bench.limits import Limit, Limits, judged
from pagebind_bench.bench.promises import PROMISES, Promise, Verdict, verdicts
from pagebind_bench.bench.timing import CpuTimer, GpuTimer, Times, fitting, summary

CPU = torch.device("cpu")


class Device:
    """A device on which time passes as calls say; a replay also takes `overhead`."""

    def __init__(self, overhead=1.5):
        self.now = 0.0  # microseconds
        self.recorded = None
        self.overhead = overhead
        self.drift = 0.0  # microseconds a replay that every call takes longer

    def call(self, cost):
        def run():
            if self.recorded is None:
                self.now += cost
            else:
                self.recorded.append(cost)

        return run

    def event(self, enable_timing):
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda other: (other.at - event.at) / 1e3
        return event

    def graph(self):
        graph = SimpleNamespace(costs=[])

        def begin(capture_error_mode):
            self.recorded = graph.costs

        def end():
            self.recorded = None

        def replay():
            self.now += self.overhead + sum(cost + self.drift for cost in graph.costs)

        graph.capture_begin, graph.capture_end, graph.replay = begin, end, replay
        return graph


@pytest.fixture
def device(monkeypatch):
    fake = Device()
    flush = fake.call(40.0)
    names = {
        "Stream": lambda _: None,
        "CUDAGraph": fake.graph,
        "Event": fake.event,
        "_sleep": lambda _: None,
    }
    monkeypatch.setattr(timing, "CUDA", SimpleNamespace(**names))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=64))

    class Stream:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(torch.cuda, "stream", lambda _: Stream())
    monkeypatch.setattr(GpuTimer, "_flush", lambda self: flush())
    return fake


def test_a_summary_is_the_median_of_a_call_between_two_quantiles():
    times = summary([10.0, 30.0, 20.0, 50.0, 40.0], 10, "wall")
    assert times == Times(p10=1.4, p50=3.0, p90=4.6, repeats=5, calls=10, method="wall")


@pytest.mark.parametrize(
    ("once", "n"), [(1.0, 400), (0.1, 400), (0.0, 400), (40.0, 10), (399.0, 2), (10_000.0, 2), (100.0, 4)]
)
def test_a_sample_has_as_many_calls_as_fit(once, n):
    assert fitting(once, 400.0, 400, fewest=2) == n


def test_a_plain_call_is_timed_by_a_graph_of_many(device):
    times = GpuTimer(CPU, 5).measure(device.call(2.0))
    # The replay's own overhead is spread over the calls: the more of them, the less it is.
    assert times.method == "graph"
    assert times.calls == pytest.approx(400 / (2.0 + 1.5 / 8), abs=1)
    assert times.p50 == pytest.approx(2.0 + 1.5 / times.calls)
    assert times.repeats == 5


def test_what_restores_and_flushes_is_subtracted(device):
    timer = GpuTimer(CPU, 5)
    restored = timer.measure(device.call(2.0), device.call(3.0))
    cold = timer.measure(device.call(2.0), cold=True)
    both = timer.measure(device.call(2.0), device.call(3.0), cold=True)
    for times in (restored, cold, both):
        assert times.method == "graph-difference"
        assert times.p50 == pytest.approx(2.0)
        assert times.p90 - times.p10 == pytest.approx(0.0, abs=1e-6)
    assert cold.calls < restored.calls


def test_a_drift_of_the_device_cancels_between_the_two_graphs(device):
    timer = GpuTimer(CPU, 9)
    replay = timer._replay_us

    def slower(graph):
        device.drift += 0.001
        return replay(graph)

    timer._replay_us = slower
    times = timer.measure(device.call(2.0), device.call(3.0))
    assert times.p50 == pytest.approx(2.0, abs=0.2)
    assert times.p90 - times.p10 < 0.1


def test_a_capture_ends_though_a_call_in_it_fails(device):
    timer = GpuTimer(CPU, 3)

    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        timer.measure(fail)
    assert device.recorded is None


def test_host_time_is_that_of_the_calls_alone(device, monkeypatch):
    clock = iter(range(0, 10**9, 64_000))
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: next(clock))
    called = []
    times = GpuTimer(CPU, 5).host(lambda: called.append(1), calls=32)
    assert (times.p50, times.repeats, times.method) == (2.0, 5, "host-loop")
    assert len(called) == 6 * 32


def test_on_the_cpu_what_restores_is_outside_of_the_time(monkeypatch):
    now = [0]
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now[0])

    def call():
        now[0] += 300_000

    def restore():
        now[0] += 7_000_000

    times = CpuTimer(repeats=7).measure(call, restore)
    assert (times.p50, times.calls, times.repeats) == (300.0, 1, 7)
    plain = CpuTimer(repeats=7).measure(call)
    assert (plain.p50, plain.calls) == (300.0, 3)


def test_limits_are_the_empty_kernel_of_one_program_and_the_fastest_copy():
    def times(p50):
        return Times(p50, p50, p50, 3, 1, "graph")

    found = judged(
        [
            Limit("floor", "empty", "warm", times(0.7)),
            Limit("floor", "empty", "cold", times(0.9)),
            Limit("floor", "empty-1024", "warm", times(1.4)),
            Limit("ceiling", "copy", "warm", times(1000.0), bytes=2 * 10**9),
            Limit("ceiling", "kernel", "warm", times(500.0), bytes=2 * 10**9),
        ]
    )
    assert found == Limits({"warm": 0.7, "cold": 0.9}, 4e12, 2e12)


def test_limits_of_the_cpu_have_a_ceiling_and_no_floor(monkeypatch):
    monkeypatch.setitem(limits.COPIED, "cpu", 4096)
    found = list(limits.measured(CpuTimer(3, 0.0), CPU, triton=False))
    assert [(limit.op, limit.contender, limit.bytes) for limit in found] == [
        ("ceiling", "copy", 8192),
        ("ceiling", "kernel", 8192),
    ]
    assert judged(found).floor_us == {}


@pytest.mark.parametrize(
    ("most", "slack", "own", "kept"),
    [
        (0.5, 0.0, 50.0, True),
        (0.5, 0.0, 50.1, False),
        (1.0, 0.0, 100.0, True),
        (1.05, 0.1, 105.0, True),
        (1.05, 0.1, 105.2, False),
        (1.05, 20.0, 120.0, True),
    ],
)
def test_a_promise_is_a_ratio_with_slack_where_that_allows_more(most, slack, own, kept):
    promise = Promise(what="x", case=FREE, most=most, slack_us=slack)
    verdict = Verdict(promise, "cuda", own, 100.0)
    assert verdict.kept is kept
    assert verdict.ratio == own / 100


def test_verdicts_come_from_rows_of_one_run_and_leave_out_what_was_not_measured():
    rows = [
        {"op": c.op, "case": c.id, "contender": who, "metric": "time", "p50": p50, "threads": None, "bytes": 2 * 10**9}
        for c, who, p50 in [
            (FREE, "cuda", 2.0),
            (FREE, "sglang", 4.0),
            (COMPACT, "cuda", 1111.0),
            (PUBLISHED[0], "cuda", 3.0),
        ]
    ]
    rows.append({**rows[0], "case": TABLE.id, "op": "read_table", "p50": None})
    found = list(verdicts(rows, ["cuda", "triton"], "cuda", Limits({}, 4e12, 2e12)))
    assert [(v.promise.case, v.contender, v.kept) for v in found] == [(FREE, "cuda", True), (COMPACT, "cuda", True)]
    assert found[1].other_us == pytest.approx(1000.0)
    assert not list(verdicts(rows, ["cuda"], "cpu", Limits({}, 4e12, 2e12)))
    assert math.isinf(Verdict(PROMISES[0], "cuda", 1.0, 0.0).ratio)
