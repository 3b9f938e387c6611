"""Calls with another sub-pool's ids: which lanes get a page, and what tells a hole from an id that is freed twice."""

from random import Random

import pytest
import torch
from cuda_pools import CHAINS, assert_same, both, ids_for, pool_of
from pagebind import LaunchOptions
from pagebind.errors import InvalidArgument
from pagebind.operation import INT32_MAX
from pagebind.ops import AllocSpec, EvictSpec, FreeSpec, TruncateSpec
from pagebind.words import (
    BAD_BIND,
    COUNT_MISMATCH,
    DOUBLE_FREE,
    HOLE_TOP,
    SINK,
    TOMBSTONE,
    VIRTUAL_TOP,
    new_tables,
)
from pagebind_cuda import backend

CPU = torch.device("cpu")
DTYPES = (torch.int32, torch.int64)
OPTIONS = {
    "blocks": LaunchOptions(threads=32, programs=4),
    "trips": LaunchOptions(threads=32, programs=1),
    "block": LaunchOptions(threads=1024),
}
ROUNDS = 12


@pytest.fixture(autouse=True)
def _compiler():
    reason = backend.reason_against("cpu")
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=OPTIONS.values(), ids=list(OPTIONS))
def options(request):
    return request.param


@pytest.mark.parametrize("index_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_alloc_gives_the_kth_lane_that_asks_page_k(options, chain, index_dtype):
    random = Random(f"{chain}")
    for _ in range(ROUNDS):
        pool = pool_of(chain, random, index_dtype, borrowed=True)
        spec = AllocSpec(max_items=300, borrowed=True, index_dtype=index_dtype, id_dtype=random.choice(DTYPES))
        given = ids_for(pool, random, random.choice((1, 31, 33, 130, 300)), spec.id_dtype)

        def call(launch, tables, given=given):
            ids, pages = given.clone(), torch.full_like(given, 77)
            launch(tables, ids=ids, pages=pages)
            return ids, pages

        assert_same(both(spec, options, pool, call))


def test_alloc_serves_one_lane_of_those_that_repeat_an_id(options):
    tables = new_tables(200, 300, CPU, borrows=True)
    given = torch.arange(200, dtype=torch.int32) % 50
    pages = torch.full_like(given, 77)
    spec = AllocSpec(max_items=200, borrowed=True)
    backend.planners["alloc"](spec, CPU, options)(tables, ids=given, pages=pages)
    assert torch.equal(given, torch.arange(200, dtype=torch.int32) % 50)
    served = pages > SINK
    assert sorted(given[served].tolist()) == list(range(1, 50))
    assert torch.equal(tables.v2p[given[served].long()], pages[served])
    assert torch.equal(tables.p2v[pages[served].long()], given[served])
    assert tables.state[BAD_BIND] == 4 * 49 - 49


@pytest.mark.parametrize("index_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
def test_free_pushes_what_came_back_and_counts_it(options, borrowed, index_dtype):
    random = Random("free")
    for _ in range(ROUNDS):
        pool = pool_of(random.choice(list(CHAINS.values())), random, index_dtype, borrowed=borrowed)
        spec = FreeSpec(max_items=300, borrowed=borrowed, index_dtype=index_dtype, id_dtype=random.choice(DTYPES))
        given = ids_for(pool, random, random.choice((1, 31, 33, 130, 300)), spec.id_dtype)
        served = len(set(given.tolist()) & set(pool.bound))
        asked = random.choice((None, served, served + 1))

        def call(launch, tables, given=given, asked=asked):
            freed = torch.full_like(given, 77)
            launch(given, tables, freed=freed, pages=asked)
            return (freed,)

        results = both(spec, options, pool, call)
        assert_same(results)
        assert results[0][0].state[COUNT_MISMATCH] == (asked == served + 1)


@pytest.mark.parametrize("index_dtype", DTYPES, ids=str)
def test_a_borrowed_id_without_a_page_is_a_hole_and_one_freed_twice_is_not(options, index_dtype):
    """Rows of v2p that hold numbers a lane could have left there are holes as well, and stay."""
    tables = new_tables(300, 300, CPU, index_dtype, borrows=True)
    bound = torch.arange(1, 101)
    tables.v2p[bound] = tables.p2v[bound] = bound.to(index_dtype)
    holes = torch.arange(101, 201)
    # Numbers of their own lanes, of every twelfth lane, whoever has it, and of lanes that are not there.
    lanes = torch.cat((torch.arange(40), torch.arange(0, 600, 12), torch.arange(600, 609)))
    rows = torch.cat((TOMBSTONE - 1 - lanes, torch.tensor([torch.iinfo(index_dtype).min]))).to(index_dtype)
    tables.v2p[holes] = rows
    given = torch.cat((holes, bound, holes, bound, bound, holes)).to(torch.int32)
    freed = torch.full_like(given, 77)
    launch = backend.planners["free"](FreeSpec(max_items=600, borrowed=True, index_dtype=index_dtype), CPU, options)
    launch(given, tables, freed=freed, pages=100)
    assert torch.equal(tables.v2p[bound], torch.full_like(tables.v2p[bound], TOMBSTONE))
    assert torch.equal(tables.v2p[holes], rows)
    assert torch.equal(tables.p2v[1:], torch.full_like(tables.p2v[1:], TOMBSTONE))
    served = freed != TOMBSTONE
    assert sorted(freed[served].tolist()) == bound.tolist()
    assert torch.equal(given[served], freed[served])
    assert tables.hole_stack[:100].tolist() == freed[served].tolist()
    assert tables.state[[HOLE_TOP, DOUBLE_FREE, COUNT_MISMATCH]].tolist() == [100, 200, 0]


def test_more_borrowed_ids_than_rows_have_numbers_for_are_refused():
    FreeSpec(max_items=INT32_MAX + 1)
    with pytest.raises(InvalidArgument, match="max_items of a plan for borrowed ids is 2147483648"):
        backend.planners["free"](FreeSpec(max_items=INT32_MAX + 1, borrowed=True), CPU, LaunchOptions())


@pytest.mark.parametrize("part", ["head", "tail", "row"])
@pytest.mark.parametrize("form", ["token", "page"])
def test_evict(options, part, form):
    random = Random(f"{part}{form}")
    for number in range(2 * ROUNDS):
        index_dtype, id_dtype, row_dtype, length_dtype = random.choices(DTYPES, k=4)
        pool = pool_of(
            random.choice(list(CHAINS.values())), random, index_dtype, borrowed=True, spoiled=number % 4 == 3
        )
        ps, bs, columns = random.choice((1, 3, 4)), random.choice((1, 5, 40)), random.choice((7, 24))
        table = ids_for(pool, random, bs * columns, torch.int32).view(bs, columns)
        if form == "token":
            table = (table.clamp(-1, 2**28) * ps).repeat_interleave(ps, dim=1)[:, : columns * ps - random.randrange(ps)]
        req_rows = torch.tensor(random.sample(range(-1, bs + 1), bs), dtype=row_dtype)
        lanes = torch.tensor([[random.randint(-1, columns * ps + 1) for _ in range(bs)] for _ in range(2)])
        starts, lens = (lanes // torch.tensor([[random.choice((1, 50))], [1]])).to(length_dtype)
        first = torch.tensor([random.choice((0, 2, columns, -1, INT32_MAX)) for _ in range(bs)], dtype=torch.int32)
        capacity, asked = random.choice((0, 3, 64, 300)), random.choice((None, 0, 5))
        spec = EvictSpec(
            part=part,
            max_bs=bs,
            max_pages=300,
            page_size=ps,
            form=form,
            index_dtype=index_dtype,
            row_dtype=row_dtype,
            length_dtype=length_dtype,
            id_dtype=id_dtype,
        )

        def call(launch, tables, spec=spec, lanes=(table, req_rows, starts, lens), how=(first, capacity, asked)):
            moved, freed = how[0].clone(), torch.full((how[1],), 77, dtype=spec.id_dtype)
            launch(*lanes, tables, first=moved, freed=freed, pages=how[2])
            return moved, freed

        assert_same(both(spec, options, pool, call))


@pytest.mark.parametrize("operation", ["evict", "truncate"])
def test_a_call_that_frees_no_page_moves_no_position(options, operation):
    """Not even one that is wrong."""
    tables = new_tables(9, 9, CPU)
    tables.state[HOLE_TOP], tables.state[VIRTUAL_TOP] = -5, 70
    before = [t.clone() for t in tables[:5]]
    zeros, table = torch.zeros(2, dtype=torch.int32), torch.full((2, 4), -1, dtype=torch.int32)
    sizes = {"max_bs": 2, "max_pages": 5, "page_size": 1}
    freed = torch.full((5,), 77, dtype=torch.int32)
    rows = torch.arange(2, dtype=torch.int32)
    spec = EvictSpec(part="row", **sizes) if operation == "evict" else TruncateSpec(**sizes)
    more = {"first": zeros.clone()} if operation == "evict" else {}
    backend.planners[operation](spec, CPU, options)(table, rows, zeros, zeros, tables, freed=freed, pages=0, **more)
    assert all(torch.equal(a, b) for a, b in zip(before, tables[:5], strict=True))
    assert freed.tolist() == [TOMBSTONE] * 5
