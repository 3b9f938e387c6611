"""A pool of one kind of page on a GPU: nothing waits, captures run under leases, readers are not overtaken."""

import pytest
import torch
from pagebind import available_backends
from pagebind.errors import CaptureError
from pagebind.pool import page_pool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")

USABLE = [c.name for c in available_backends("cuda") if c.reason is None] if torch.cuda.is_available() else []
STALL = 200_000_000  # cycles, about 0.1 s


@pytest.fixture(params=USABLE)
def pool(request):
    made = page_pool(
        60,
        4,
        max_requests=4,
        max_context=64,
        max_bs=4,
        max_tokens=64,
        page_bytes=4096,
        backend=request.param,
        device="cuda",
    )
    made.warmup()
    return made


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def marks(pool):
    return pool.view("pages", torch.uint8, (4096,))


def test_no_call_waits_for_the_device(pool):
    row = pool.open_row()
    rows, prefix, indptr, lens, keep = ints([row.index]), ints([0]), ints([0, 9]), ints([9]), ints([2])
    slots = torch.empty(9, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(STALL)
        ids = pool.alloc(8)
        pool.extend(rows, prefix, indptr, slots=slots, pages=3)
        pool.truncate(rows, lens, keep, pages=2)
        pool.free(ids[2:5])
        assert pool.compact(3) == 3
        pool.release([row], rows, keep, pages=1)
        assert set(pool.poll()["pages"].values()) == {0}
        assert not torch.cuda.current_stream().query(), "the stream was still stalled when the last call returned"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pool.audit() == []
    pool.check()


def test_captured_calls_replay_under_a_lease_like_eager_ones(pool):
    ids = pool.alloc(5)
    eager = page_pool(
        60,
        4,
        max_requests=4,
        max_context=64,
        max_bs=4,
        max_tokens=64,
        page_bytes=4096,
        backend=pool.backend,
        device="cuda",
    )
    eager.free(eager.alloc(5)[:2])
    pool.free(ids[:2])
    taken = torch.empty(3, dtype=torch.int32, device="cuda")
    lease = pool.reserve(9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.alloc(3, ids=taken)
    got = []
    for _ in range(3):
        graph.replay()
        got.append(taken.tolist())
    lease.settle(9)
    assert got == [eager.alloc(3).tolist() for _ in range(3)]
    assert pool.audit() == []
    assert (pool.stats(), pool.digest()) == (eager.stats(), eager.digest())


def test_a_lease_too_small_starves_lanes_and_touches_only_the_sink(pool):
    pool.alloc(58)
    taken = torch.empty(3, dtype=torch.int32, device="cuda")
    lease = pool.reserve(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.alloc(3, ids=taken)
    graph.replay()
    assert taken.tolist()[2] == 0
    lease.settle(2)
    assert pool.audit() == []
    assert pool.poll() is not None
    torch.cuda.synchronize()
    assert pool.poll()["pages"]["starved"] == 1


def test_what_decides_on_the_host_is_refused_inside_a_capture_which_stays_usable(pool):
    row = pool.open_row()
    rows, lens = ints([row.index]), ints([0])
    pool.free(pool.alloc(3))
    taken = torch.empty(1, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in (pool.compact, pool.poll, lambda: pool.release([row], rows, lens, pages=0)):
            with pytest.raises(CaptureError):
                call()
        pool.alloc(1, ids=taken)
    lease = pool.reserve(1)
    graph.replay()
    lease.settle(1)
    assert pool.audit() == []


def test_a_stalled_reader_sees_the_bytes_from_before_the_move(pool):
    ids = pool.alloc(20)
    for v in range(1, 21):
        marks(pool)[v] = v
    side = torch.cuda.Stream()
    copy = torch.empty_like(pool.buffer)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(STALL)
        copy.copy_(pool.buffer)
        read = torch.cuda.Event()
        read.record()
    pool.reading(read)
    pool.free(ids[:10])
    assert pool.compact() == 10
    moved = marks(pool)[pool.tables["pages"].v2p[ids[10:].long()].long(), 0].tolist()
    assert copy.view(-1, 4096)[1:21, 0].tolist() == list(range(1, 21)), "the reader was overtaken"
    assert moved == list(range(11, 21)), "bytes follow their pages"
    assert pool.audit() == []


def test_a_transfer_under_the_gate_comes_after_moves_on_another_stream(pool):
    ids = pool.alloc(20)
    for v in range(1, 21):
        marks(pool)[v] = v
    pool.free(ids[:10])
    torch.cuda._sleep(STALL)
    pool.compact()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), pool.hold_moves():
        assert pool.compact() == 0
        where = pool.tables["pages"].v2p[ids[10:].long()].long()
        seen = marks(pool)[where, 0].tolist()
    assert seen == list(range(11, 21))
