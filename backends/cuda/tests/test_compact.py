"""compact by kernels does what its composed form does, to the byte, also in pools whose words and cells are wrong."""

import itertools

import pytest
import torch
from pagebind import LaunchOptions
from pagebind.ops import COMPACT, CompactSpec
from pagebind.words import (
    COUNT_MISMATCH,
    HOLE_TOP,
    SEAT,
    SINK,
    TOMBSTONE,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
    new_tables,
)
from pagebind_cuda import backend
from pagebind_cuda.compact import MOVE
from pagebind_cuda.launch import plan_kernel

CPU = torch.device("cpu")
DTYPES = list(itertools.product((torch.int32, torch.int64), repeat=2))
# The first two take further trips through the loops of the kernel: of one warp, and of 64 threads in 4 blocks.
OPTIONS = {"warp": LaunchOptions(threads=32, programs=1), "few": LaunchOptions(), "block": LaunchOptions(threads=1024)}
SIZES = (2, 3, 33, 65, 1100)


@pytest.fixture(autouse=True)
def _compiler():
    reason = backend.reason_against("cpu")
    if reason is not None:
        pytest.skip(reason)


def pool_of(num, holes, index_dtype, random, room=0):
    """Return a sub-pool of `num` pages, `room` of them above the frontier, `holes` of the others freed at random."""
    tables = new_tables(num + 3, num, CPU, index_dtype)
    span = num - 1 - room
    pages = torch.randperm(span, generator=random) + 1
    virtual = torch.randperm(num + 2, generator=random) + 1
    live, holes_at = pages[holes:], pages[:holes]
    tables.p2v[live] = virtual[: len(live)].to(index_dtype)
    tables.v2p[virtual[: len(live)]] = live.to(index_dtype)
    tables.hole_stack[:holes] = holes_at.to(index_dtype)
    free = virtual[len(live) :]
    tables.virtual_stack[: len(free)] = free.to(index_dtype)
    tables.state[VIRTUAL_TOP], tables.state[HOLE_TOP], tables.state[WATERMARK] = len(free), holes, span
    return tables


def outcome(launch, spec, tables, retreat, random_bytes):
    """Run a call on copies; return everything it could write, with what lies behind its outputs."""
    tables = PageTables(*(t.clone() for t in tables[:5]))
    outputs = [torch.full((retreat + 5,), 77, dtype=spec.id_dtype) for _ in range(2)]
    buffer = random_bytes.clone() if spec.page_bytes else None
    launch(tables, retreat=retreat, sources=outputs[0], targets=outputs[1], buffer=buffer)
    return {
        **dict(zip(PageTables._fields[:5], tables, strict=False)),
        "sources": outputs[0],
        "targets": outputs[1],
        "buffer": buffer if buffer is not None else random_bytes,
    }


def assert_same(spec, options, tables, retreat, random):
    assert COMPACT.compose is not None
    num_bytes = (tables.p2v.shape[0] - 1) * spec.page_bytes
    random_bytes = torch.randint(0, 256, (num_bytes,), generator=random, dtype=torch.uint8)
    expected = outcome(COMPACT.compose(spec, CPU, backend.planners, options), spec, tables, retreat, random_bytes)
    got = outcome(backend.planners["compact"](spec, CPU, options), spec, tables, retreat, random_bytes)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), f"{name}: {got[name]} instead of {tensor}"
    return expected


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("index_dtype", "id_dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("page_bytes", [0, 16, 2048 + 16, 3 * 2048])
def test_random_pools(options, index_dtype, id_dtype, page_bytes):
    random = torch.Generator().manual_seed(page_bytes)
    for num in SIZES if page_bytes <= 16 else SIZES[:4]:
        spec = CompactSpec(max_pages=num, page_bytes=page_bytes, index_dtype=index_dtype, id_dtype=id_dtype)
        for holes in sorted({1, num // 7 or 1, num // 2, num - 1}):
            room = (num - 1 - holes) // 3
            tables = pool_of(num, holes, index_dtype, random, room)
            for retreat in sorted({1, (holes + 1) // 2, holes}):
                after = assert_same(spec, options, tables, retreat, random)
                assert after["state"][COUNT_MISMATCH] == 0
                assert after["state"][WATERMARK] == num - 1 - room - retreat


SPOILS = {
    "few-holes": lambda tables: tables.state[HOLE_TOP].fill_(3),
    "no-span": lambda tables: tables.state[WATERMARK].fill_(2),
    "no-holes": lambda tables: tables.state[HOLE_TOP].fill_(-5),
    "holes-past-stack": lambda tables: tables.state[HOLE_TOP].fill_(tables.p2v.shape[0]),
    "span-past-pages": lambda tables: tables.state[WATERMARK].fill_(tables.p2v.shape[0] - 1),
    "huge": lambda tables: tables.state[WATERMARK].fill_(2**62),
    "stack-of-nothing": lambda tables: tables.hole_stack.fill_(TOMBSTONE),
    "stack-of-sinks": lambda tables: tables.hole_stack.fill_(SINK),
    "stack-past-pages": lambda tables: tables.hole_stack.fill_(torch.iinfo(tables.hole_stack.dtype).max),
    "stack-mixed": lambda tables: tables.hole_stack[::3].fill_(torch.iinfo(tables.hole_stack.dtype).min),
    "band-past-ids": lambda tables: tables.p2v[-20:].fill_(torch.iinfo(tables.p2v.dtype).max),
    "band-negative": lambda tables: tables.p2v[-20:].fill_(-9),
    "band-sinks": lambda tables: tables.p2v[-20:].fill_(SINK),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("page_bytes", [0, 48])
@pytest.mark.parametrize("count", [True, False], ids=["count", "off"])
def test_spoiled_pools(spoil, index_dtype, page_bytes, count):
    random = torch.Generator().manual_seed(5)
    for num, retreat in itertools.product((70, 600), (5, 30)):
        tables = pool_of(num, 40, index_dtype, random)
        spoil(tables)
        spec = CompactSpec(max_pages=num, page_bytes=page_bytes, index_dtype=index_dtype)
        after = assert_same(spec, LaunchOptions(count=count), tables, retreat, random)
        assert after["state"][COUNT_MISMATCH] <= count


def test_a_page_bound_by_hand_leaves_too_few_holes_and_nothing_moves():
    tables = pool_of(12, 4, torch.int32, torch.Generator().manual_seed(1))
    for page in tables.hole_stack[:3].tolist():
        tables.p2v[page] = tables.v2p.shape[0] - 2
    after = assert_same(CompactSpec(max_pages=4), LaunchOptions(), tables, 4, torch.Generator())
    assert after["state"][COUNT_MISMATCH] == 1
    assert after["sources"].tolist() == [TOMBSTONE] * 4 + [77] * 5


def assert_inverse(tables):
    bound = (tables.v2p > SINK).nonzero().flatten()
    assert torch.equal(tables.p2v[tables.v2p[bound].long()].long(), bound)
    assert (tables.p2v > SINK).sum() == len(bound)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("fault", ["hole-twice", "fresh-page-bound"])
def test_two_pages_that_would_meet_leave_the_tables_inverse(options, fault):
    """Pages 11 to 70, seven of them holes of which one is twice on the stack; or all full, and page 8 bound below."""
    twice = fault == "hole-twice"
    tables = new_tables(90, 80, CPU)
    live = torch.arange(18 if twice else 11, 71)
    tables.p2v[live] = tables.v2p[live] = live.int()
    tables.hole_stack[:7] = torch.tensor([11, 12, 13, 14, 15, 16, 15])
    tables.state[SEAT], tables.state[WATERMARK], tables.state[HOLE_TOP] = 10, 60, 7 * twice
    if not twice:
        tables.p2v[8] = tables.v2p[8] = 8
    assert_inverse(tables)
    outputs = torch.full((2, 5), 77, dtype=torch.int32).unbind()
    launch = backend.planners["compact"](CompactSpec(max_pages=5), CPU, options)
    launch(tables, retreat=5, sources=outputs[0], targets=outputs[1], fresh=0 if twice else 5)
    assert outputs[0].tolist() == [66, 67, 68, 69, 70]
    assert outputs[1].tolist() == ([15, 16, 15, 14, 13] if twice else [10, 9, 8, 7, 6])
    assert_inverse(tables)
    assert (tables.v2p[66:71] == TOMBSTONE).sum() == 1


@pytest.mark.parametrize("moved", [(5, 10**9), (10**9, 5), (-3, 2), (5, 0), (0, 5), (5, 12), (12, 5)])
def test_moves_outside_the_tables_touch_nothing(moved):
    """The second launch believes no cell of what the first one left."""
    tables = pool_of(12, 4, torch.int32, torch.Generator().manual_seed(1))
    before = [t.clone() for t in tables[:5]]
    moves = [torch.tensor([page], dtype=torch.int32) for page in moved]
    buffer = torch.arange(12 * 16, dtype=torch.uint8)
    lengths = tables.v2p.shape[0] - 1, tables.p2v.shape[0] - 1
    v2p, p2v, _, hole_stack, state, source, target, pages = (t.data_ptr() for t in (*tables[:5], *moves, buffer))
    # No chain; one page leaves the high end, without fresh ones.
    how = (0, 0, 0), (1, 0, 0, 0)
    arguments = (v2p, lengths[0], p2v, lengths[1], hole_stack, state, *how[0], *how[1], source, target, pages, 1, 0)
    plan_kernel("compact", CPU)(1, 32, *arguments, MOVE)
    assert all(torch.equal(a, b) for a, b in zip(before, tables[:5], strict=True))
    assert torch.equal(buffer, torch.arange(12 * 16, dtype=torch.uint8))
