"""Kernels that find where a span may grow do what the composed forms do, also where words of the chain are wrong."""

from random import Random

import pytest
import torch
from cuda_pools import CHAINS, POSITIONS, WORDS, assert_same, both, ids_for, pool_of
from pagebind import LaunchOptions
from pagebind.ops import AllocSpec, CompactSpec, ExtendSpec
from pagebind.ops import stacks as taking
from pagebind.ops.span import read_span
from pagebind.words import HOLE_TOP, WATERMARK
from pagebind_cuda import backend

DTYPES = (torch.int32, torch.int64)
OPTIONS = {"blocks": LaunchOptions(threads=32, programs=4), "block": LaunchOptions(threads=1024)}
ROUNDS = 6


def over_chains(test):
    """Run a test for both launch shapes, every chain, and with words that hold anything."""
    test = pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))(test)
    test = pytest.mark.parametrize("chain", CHAINS.values(), ids=list(CHAINS))(test)
    return pytest.mark.parametrize("spoiled", [False, True], ids=["sound", "spoiled"])(test)


@pytest.fixture(autouse=True)
def _compiler():
    reason = backend.reason_against("cpu")
    if reason is not None:
        pytest.skip(reason)


def takes_a_page_twice(pool, count):
    """A spoiled span may grow over its own holes: which lane of two gets such a page is open."""
    physical = taking.find(pool.copy(), count).physical.tolist()
    return len(set(physical)) < len(physical)


@over_chains
@pytest.mark.parametrize("index_dtype", DTYPES, ids=str)
def test_alloc(options, chain, spoiled, index_dtype):
    random = Random(f"{chain}{spoiled}")
    for _ in range(ROUNDS):
        pool = pool_of(chain, random, index_dtype, spoiled=spoiled)
        n = random.choice((1, 31, 33, 130, 300))
        if takes_a_page_twice(pool, n):
            continue
        spec = AllocSpec(max_items=300, index_dtype=index_dtype, id_dtype=random.choice(DTYPES))

        def call(launch, tables, n=n, spec=spec):
            outputs = torch.full((2, n), 77, dtype=spec.id_dtype).unbind()
            launch(tables, ids=outputs[0], pages=outputs[1])
            return outputs

        assert_same(both(spec, options, pool, call))


@pytest.mark.parametrize("word", POSITIONS)
def test_any_word_of_any_block_may_hold_anything(word):
    """Alone among sound ones, so that no other wrong word hides what it does."""
    random = Random(word)
    for value in WORDS:
        for block in range(3):
            pool = pool_of(CHAINS["float"], random, torch.int32)
            pool.tables.chain[block, word] = value
            if takes_a_page_twice(pool, 90):
                continue

            def call(launch, tables):
                outputs = torch.full((2, 90), 77, dtype=torch.int32).unbind()
                launch(tables, ids=outputs[0], pages=outputs[1])
                return outputs

            assert_same(both(AllocSpec(max_items=90), OPTIONS["block"], pool, call))


@over_chains
@pytest.mark.parametrize("form", ["token", "page"])
@pytest.mark.parametrize("emits", [False, True], ids=["plain", "emits"])
def test_extend(options, chain, spoiled, form, emits):
    random = Random(f"{chain}{spoiled}{form}")
    for _ in range(ROUNDS):
        index_dtype, id_dtype, out_dtype = random.choices(DTYPES, k=3)
        pool = pool_of(chain, random, index_dtype, spoiled=spoiled)
        ps, bs, columns = random.choice((1, 3, 4)), random.choice((1, 5, 33)), 40
        table = ids_for(pool, random, bs * columns, torch.int32, repeats=0.2).view(bs, columns)
        table = table if form == "page" else table.clamp(max=2**28) * ps
        req_rows = torch.tensor(random.sample(range(-1, bs), bs), dtype=torch.int32)
        prefix = torch.tensor([random.randint(-1, columns + 1) for _ in range(bs)], dtype=torch.int32)
        indptr = torch.tensor([0, *(random.choice((0, 1, 7)) for _ in range(bs))], dtype=torch.int32).cumsum(0)
        capacity = max(int(indptr[-1]) + random.choice((-5, 0, 9)), 0)
        told = random.choice((0, 3, 90))
        spec = ExtendSpec(
            max_bs=bs,
            max_tokens=300,
            page_size=ps,
            num_virtual=pool.tables.v2p.shape[0] - 1,
            num_physical=pool.tables.p2v.shape[0] - 1,
            form=form,
            emits=emits,
            index_dtype=index_dtype,
            indptr_dtype=indptr.dtype,
            out_dtype=out_dtype,
            id_dtype=id_dtype,
        )
        if takes_a_page_twice(pool, bs * 8):
            continue

        def call(launch, tables, spec=spec, lanes=(req_rows, prefix, indptr), table=table, sizes=(capacity, told)):
            slots = torch.full((sizes[0],), 88, dtype=spec.out_dtype)
            emitted = [torch.full((size,), 88, dtype=spec.id_dtype) for size in (sizes[0], sizes[1], sizes[1])]
            request_table = table.clone()
            names = dict(zip(("token_ids", "new_ids", "new_pages"), emitted, strict=True)) if spec.emits else {}
            launch(request_table, *lanes, tables, slots=slots, pages=4, **names)
            return request_table, slots, *emitted

        assert_same(both(spec, options, pool, call))


@over_chains
@pytest.mark.parametrize("side", ["low", "high"])
@pytest.mark.parametrize("page_bytes", [0, 48])
def test_compact(options, chain, spoiled, side, page_bytes):
    random = Random(f"{chain}{spoiled}{side}")
    moved = 0
    for _ in range(5 * ROUNDS):
        index_dtype, id_dtype = random.choices(DTYPES, k=2)
        pool = pool_of(chain, random, index_dtype, spoiled=spoiled)
        num_physical = pool.tables.p2v.shape[0] - 1
        holes, watermark = (min(max(int(pool.tables.state[w]), 0), num_physical) for w in (HOLE_TOP, WATERMARK))
        retreat = max(random.choice((1, holes, watermark, random.randint(0, watermark))), 1)
        fresh = random.choice((0, retreat - holes, retreat - holes, retreat))
        fresh = min(max(fresh, 0), retreat)
        span = read_span(pool.tables)
        free = max((span.above if side == "low" else span.below) - fresh, 0)
        skip = random.choice((0, 1, free, free + 1) if retreat == watermark else (0, 0, 0, 1))
        spec = CompactSpec(max_pages=num_physical, page_bytes=page_bytes, index_dtype=index_dtype, id_dtype=id_dtype)
        if retreat > num_physical:
            continue
        content = torch.arange(num_physical * page_bytes).to(torch.uint8)

        def call(launch, tables, spec=spec, how=(retreat, fresh, skip), content=content):
            outputs = [torch.full((how[0] + 5,), 77, dtype=spec.id_dtype) for _ in range(2)]
            buffer = content.clone()
            launch(
                tables,
                retreat=how[0],
                sources=outputs[0],
                targets=outputs[1],
                buffer=buffer if spec.page_bytes else None,
                side=side,
                fresh=how[1],
                skip=how[2],
            )
            return *outputs, buffer

        results = both(spec, options, pool, call)
        assert_same(results)
        moved += int(results[0][1][0][0] > 0)
    assert spoiled or moved > 0
