"""The arithmetic of times, against a device whose calls take as long as they say."""

import math
from types import SimpleNamespace

import pytest
import torch
from pagebind_bench.bench import limits, timing
from pagebind_bench.bench.cases import COMPACT, FREE, PUBLISHED, REFRESH, REFRESHED, TABLE
from pagebind_bench.bench.limits import Limit, Limits, judged
from pagebind_bench.bench.promises import BARE, EMPTY, ITSELF, PROMISES, Promise, Verdict, verdicts
from pagebind_bench.bench.timing import CpuTimer, GpuTimer, Round, Times, fitting, summary

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


def growing(device, length, rewound):
    """A round of calls that take 1 us, 2 us and so on, and count where they stand; a rewind takes 1,000."""
    rewind = device.call(1000.0)

    def back():
        rewound.append(device.now)
        rewind()

    return Round(tuple(device.call(1.0 + n) for n in range(length)), back)


def test_a_round_is_taken_in_order_and_its_rewind_is_outside_of_the_time(device):
    rewound = []
    times = GpuTimer(CPU, 5).measure(growing(device, 10, rewound))
    assert (times.method, times.calls) == ("graph", 10)
    assert times.p50 == pytest.approx((sum(range(1, 11)) + 1.5) / 10)
    assert len(rewound) == 2 + 1 + 5  # before a first replay of each graph, the probe and each sample


def test_host_times_of_a_round_begin_with_its_rewind(device, monkeypatch):
    seen, now = [], [0]
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now[0])

    def taking(name, ns):
        def run():
            seen.append(name)
            now[0] += ns

        return run

    steps = Round((taking("a", 1_000), taking("b", 3_000)), taking("back", 10**9))
    found = GpuTimer(CPU, 3).host([steps, taking("plain", 5_000)], times=4)
    assert [times.p50 for times in found] == [2.0, 5.0]
    assert seen == ["back", "a", "b", "a", "b", *["plain"] * 4] * 4


def test_a_round_that_needs_no_rewind_is_taken_whole_as_often_as_fits(device):
    times = GpuTimer(CPU, 5).measure(Round((device.call(1.0), device.call(2.0), device.call(6.0))))
    assert times.calls % 3 == 0
    assert times.p50 == pytest.approx(3.0, abs=0.1)
    cold = GpuTimer(CPU, 5).measure(Round((device.call(1.0), device.call(5.0))), cold=True)
    assert (cold.method, cold.p50) == ("graph-difference", pytest.approx(3.0))


@pytest.mark.parametrize(("length", "rewind", "n", "taken"), [(3, None, 4, 6), (3, print, 4, 3), (3, print, 2, 2)])
def test_calls_of_a_round_fit_into_one_or_into_whole_ones(length, rewind, n, taken):
    calls = tuple((lambda i=i: i) for i in range(length))
    one = Round(calls, rewind)
    assert one.fitting(n) == taken
    assert [call() for call in one.first(taken)] == [i % length for i in range(taken)]


def test_on_the_cpu_a_round_is_rewound_before_each_sample_outside_of_the_time(monkeypatch):
    now = [0]
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now[0])
    seen = []

    def call(n):
        def run():
            seen.append(n)
            now[0] += 600_000

        return run

    def rewind():
        seen.append("back")
        now[0] += 9_000_000

    times = CpuTimer(repeats=3).measure(Round((call(0), call(1), call(2)), rewind))
    assert (times.p50, times.calls) == (600.0, 2)
    assert seen == [0, *["back", 0, 1] * 3]


def test_a_drift_of_the_device_cancels_between_the_two_graphs(device):
    timer = GpuTimer(CPU, 9)
    replay = timer._replay_us

    def slower(graph, rewind=None):
        device.drift += 0.001
        return replay(graph, rewind)

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
    both = GpuTimer(CPU, 5).host([lambda: called.append(1), lambda: called.append(2)], times=32)
    for times in both:
        assert (times.p50, times.repeats, times.method) == (2.0, 5, "host-loop")
    assert called == ([1] * 32 + [2] * 32) * 6, "they take turns"


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
    assert found == Limits({"warm": 0.7, "cold": 0.9}, 4e12)


def test_limits_of_the_cpu_have_a_ceiling_and_no_floor(monkeypatch):
    monkeypatch.setitem(limits.COPIED, "cpu", 4096)
    found = list(limits.measured(CpuTimer(3, 0.0), CPU, {}, triton=False))
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
    promise = Promise(what="x", cases=(FREE,), most=most, slack_us=slack)
    verdict = Verdict(promise, FREE, "cuda", own, 100.0)
    assert verdict.kept is kept
    assert verdict.ratio == own / 100


RATES = {"kernel": 4e12, "copy": 2e12}


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
    copies = [{"op": "ceiling", "contender": name, "p50": 1.0, "bytes_per_s": rate} for name, rate in RATES.items()]
    assert [v.case for v in verdicts(rows, ["cuda"], "cuda")] == [FREE]
    rows += copies
    found = list(verdicts(rows, ["cuda", "triton"], "cuda"))
    assert [(v.case, v.contender, v.kept) for v in found] == [(FREE, "cuda", True), (COMPACT, "cuda", True)]
    assert found[1].other_us == pytest.approx(1000.0)
    assert not list(verdicts(rows, ["cuda"], "cpu"))
    assert math.isinf(Verdict(PROMISES[0], PUBLISHED[0], "cuda", 1.0, 0.0).ratio)


def row(case, who, p50, metric="time", **more):
    return {"op": case.op, "case": case.id, "contender": who, "metric": metric, "p50": p50, "threads": None, **more}


def kept(rows, **wanted):
    found = verdicts(rows, ["cuda"], "cuda")
    return [v for v in found if all(getattr(v.promise, name) == value for name, value in wanted.items())]


def test_a_promise_may_hold_a_refresh_against_another_case():
    [everything, *_] = [p for p in PROMISES if p.against == ITSELF and p.device_type == "cuda"]
    [case] = everything.cases
    rows = [row(case, "cuda", 15.0), row(everything.than, "cuda", 7.0), row(everything.than, "sglang", 90.0)]
    [verdict] = kept(rows, against=ITSELF)
    assert (verdict.own_us, verdict.other_us, verdict.kept) == (15.0, 7.0, False)
    [verdict] = kept([row(REFRESH, "cuda", 1.0), row(TABLE, "sglang", 4.5)], than=TABLE, against="sglang")
    assert (verdict.other_us, verdict.kept) == (4.5, True)
    assert not kept([row(REFRESH, "cuda", 1.0), row(TABLE, "cuda", 4.5)], than=TABLE, against="sglang")


def test_a_promise_over_many_shapes_is_told_by_its_worst():
    rows = [row(case, "cuda", 1.0, floor_us=0.5) for case in REFRESHED[:-1]]
    [verdict] = kept(rows, cases=REFRESHED)
    assert (verdict.ratio, verdict.kept, verdict.measured) == (2.0, True, 15)
    rows[4]["p50"] = 1.6
    [verdict] = kept(rows, cases=REFRESHED)
    assert (verdict.case, verdict.kept) == (REFRESHED[4], False)
    assert verdict.what.endswith(f"15 of 16 shapes, the worst: {REFRESHED[4].label}")
    assert verdict.promise.against == EMPTY


def test_host_time_is_held_against_a_bare_launch_of_the_same_turns():
    rows = [row(TABLE, "cuda", 7.0, "host", bare_us=6.0), row(TABLE, "sglang", 37.0, "host")]
    [verdict] = kept(rows, against=BARE)
    assert (verdict.other_us, verdict.kept) == (6.0, True)
    rows[0]["bare_us"] = None
    assert not kept(rows, against=BARE)
