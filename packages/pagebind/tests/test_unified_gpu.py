"""A unified pool on a GPU: no call waits, launches are counted, replays are like eager calls, readers see old bytes."""

import pytest
import torch
from pagebind import available_backends
from pagebind.pool import SubPool, UnifiedPool
from torch.autograd import DeviceType

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")

USABLE = [c.name for c in available_backends("cuda") if c.reason is None] if torch.cuda.is_available() else []
STALL = 200_000_000  # cycles, about 0.1 s
PAGE = {"full": 4096, "window": 2048, "state": 8192}
BOTH = ("full", "window")


def make(backend, total_bytes=2**18, zero=False):
    sub_pools = [
        SubPool(name="full", page_size=4, page_bytes=PAGE["full"], grows="up"),
        SubPool(name="window", page_size=4, page_bytes=PAGE["window"], grows="float", ids_of="full"),
        SubPool(name="state", page_size=1, page_bytes=PAGE["state"], grows="down", zero_on_alloc=zero),
    ]
    pool = UnifiedPool(
        total_bytes, sub_pools, max_requests=8, max_context=64, max_bs=8, max_tokens=64, backend=backend, device="cuda"
    )
    pool.warmup()
    return pool


@pytest.fixture(params=USABLE)
def backend(request):
    return request.param


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def slots(tokens):
    return {name: torch.empty(tokens, dtype=torch.int32, device="cuda") for name in BOTH}


def kernels_of(call):
    """Return the names of the kernels that a call launches."""
    call()  # loads what is loaded once
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == DeviceType.CUDA]


def test_no_call_waits_for_the_device_relief_among_them(backend):
    pool = make(backend, zero=True)
    row = pool.open_row()
    rows, none, pair, forty, keep, begin = ints(row.index), ints(0), ints(0, 40), ints(40), ints(22), ints(9)
    out = slots(40)
    state = pool.alloc(4, name="state")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(STALL)
        pool.extend(rows, none, pair, slots=out, pages=10)
        pool.evict_window(rows, begin, pages=2)
        pool.truncate(rows, forty, keep, pages={"full": 4, "window": 4})
        ids = pool.alloc(pool.free_pages("full") // 2, also=["window"])
        pool.free(ids[2:], also={"window": ids.shape[0] - 2})
        pool.free(state[:3], name="state")
        lease = pool.reserve({"full": pool.free_pages("full")})  # the window and the state must retreat
        lease.settle(0)
        assert pool.compact(name="full") > 0
        pool.reading(torch.cuda.Event())
        pool.join_readers()
        pool.release([row], rows, keep, pages={"full": 6, "window": 4})
        pool.free(ids[:2], also={"window": 2})
        assert all(set(counters.values()) == {0} for counters in pool.poll().values())
        assert not torch.cuda.current_stream().query(), "the stream was still stalled when the last call returned"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pool.audit() == []
    pool.check()


def test_an_alloc_and_a_free_are_one_launch_for_each_sub_pool_and_a_compaction_is_constant(backend):
    pool = make(backend)
    state = torch.empty(3, dtype=torch.int32, device="cuda")
    assert len(kernels_of(lambda: pool.alloc(3, name="state", ids=state))) == 1
    pool.free(pool.alloc(2, name="state"), name="state")
    ids = [pool.alloc(4, also=BOTH[1:]) for _ in range(4)]
    taken = iter(ids)
    assert len(kernels_of(lambda: pool.free(next(taken), also={"window": 4}))) == 2
    more = [pool.alloc(12), pool.alloc(12)]
    for part in more:
        pool.free(part[::2].contiguous())
    launches = {len(kernels_of(lambda n=n: pool.compact(n))) for n in (1, 3)}
    assert len(launches) == 1, launches
    assert launches.pop() <= 2
    assert pool.audit() == []


def drive(pool, replays, run):
    """Extend four rows by three tokens, cut one and evict from another, `replays` times; `run(step)` makes a step."""
    rows = [pool.open_row() for _ in range(4)]
    index = ints(*(row.index for row in rows))
    lens = torch.full((4,), 5, dtype=torch.int32, device="cuda")
    indptr, out = ints(0, 3, 6, 9, 12), slots(12)
    pool.extend(index, ints(0, 0, 0, 0), ints(0, 5, 10, 15, 20), slots=slots(20), pages=8)
    state = torch.empty(1, dtype=torch.int32, device="cuda")
    seen = []
    starts = torch.zeros(4, dtype=torch.int32, device="cuda")
    kept = {
        "full": pool.read_table(16, name="full", fill="sink"),
        "window": pool.read_table(16, name="window", fill="sink", windowed=True),
    }
    fresh = {
        "full": pool.plan_read_table(16, name="full", fill="sink"),
        "window": pool.plan_read_table(16, name="window", fill="sink", windowed=True),
    }
    for planned in (*kept.values(), *fresh.values()):
        planned.warmup()

    def step():
        pool.extend(index, lens, indptr, slots=out)
        lens.add_(3)
        pool.alloc(1, name="state", ids=state, on_lease=True)
        pool.free(state, name="state", on_lease=True)
        pool.evict_window(index[:2], lens[:2] - 6)
        pool.truncate(index[3:], lens[3:], lens[3:] - 2)
        lens[3:].sub_(2)
        starts[:2].copy_(lens[:2] - 6)
        kept["full"].refresh(index, lens)
        kept["window"].refresh(index, lens, starts=starts)

    lease = pool.reserve({"full": 24, "window": 24, "state": 1})
    repeat = run(step)
    for _ in range(replays):
        repeat()
        for name, told in (("full", {}), ("window", {"starts": starts})):
            want = torch.full_like(kept[name].cells, -7)  # sink fill writes rows past the batch too
            fresh[name](pool.requests.table, index, lens, pool.tables[name].v2p, out=want, **told)
            assert torch.equal(kept[name].cells, want)
        seen.append([*out["full"].tolist(), *out["window"].tolist(), *pool.requests.table.flatten().tolist()])
    before = {name: s.live for name, s in pool.stats().sub_pools.items()}
    device = {name: int((t.v2p[1:-1] >= 0).sum()) for name, t in pool.tables.items()}
    used = {name: device[name] - before[name] for name in device}
    spans = {name: int(t.state[2]) for name, t in pool.tables.items()}
    peak = {name: max(spans[name] - before[name], used[name], 0) for name in device}
    lease.settle(used, peak)
    assert pool.audit() == []
    pool.check()
    return seen, pool.digest(), pool.stats()


def test_captured_calls_replay_under_a_lease_like_eager_ones(backend):
    def captured(step):  # a capture runs nothing, so replays do what eager steps do
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    assert drive(make(backend), 6, captured) == drive(make(backend), 6, lambda step: step)


def test_a_frontier_is_never_crossed_by_a_lease_that_was_too_small(backend):
    pool = make(backend, total_bytes=2**16)
    held = pool.alloc(pool.free_pages("full") - 1)
    state = torch.empty(4, dtype=torch.int32, device="cuda")
    ids = torch.empty(6, dtype=torch.int32, device="cuda")
    before = pool.buffer.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.alloc(6, ids=ids)
        pool.alloc(4, name="state", ids=state)
    lease = pool.reserve({"full": 1})
    graph.replay()
    assert ids.tolist()[1:] == [0] * 5
    assert state.tolist() == [0] * 4
    lease.settle(1)
    assert pool.audit() == []
    assert torch.equal(pool.buffer, before)
    pool.poll()
    torch.cuda.synchronize()
    told = pool.poll()
    assert (told["full"]["starved"], told["state"]["starved"]) == (5, 4)
    assert held.unique().shape == held.shape


def test_a_stalled_reader_sees_the_bytes_from_before_relief_moved_them(backend):
    pool = make(backend)
    full = pool.view("full", torch.uint8, (PAGE["full"],))
    ids = pool.alloc(20)
    where = pool.tables["full"].v2p[ids.long()].long()
    full[where] = torch.arange(1, 21, dtype=torch.uint8, device="cuda")[:, None]
    side, copy = torch.cuda.Stream(), torch.empty_like(pool.buffer)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(STALL)
        copy.copy_(pool.buffer)
        read = torch.cuda.Event()
        read.record()
    before = pool.buffer.clone()
    pool.reading(read)
    pool.free(ids[:10])
    pool.alloc(pool.free_pages("state"), name="state")  # full must give up its holes
    assert pool.stats().sub_pools["full"].span < 20, "nothing had to move"
    now = pool.tables["full"].v2p[ids[10:].long()].long()
    assert full[now, 0].tolist() == list(range(11, 21)), "bytes follow their pages"
    torch.cuda.synchronize()
    assert torch.equal(copy, before), "the reader was overtaken"
    assert pool.audit() == []


def test_zero_on_alloc_clears_pages_and_leaves_the_sink_finite(backend):  # vLLM 35219, SGLang 33974
    pool = make(backend, zero=True)
    cells = pool.view("state", torch.float32, (PAGE["state"] // 4,))
    first = pool.alloc(3, name="state")
    cells[pool.tables["state"].v2p[first.long()].long()] = float("nan")
    pool.free(first, name="state")
    again = pool.alloc(3, name="state")
    assert torch.equal(cells[pool.tables["state"].v2p[again.long()].long()], torch.zeros_like(cells[:3]))
    assert bool(cells[0].isfinite().all())
