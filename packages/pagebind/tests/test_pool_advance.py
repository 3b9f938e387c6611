"""Decode steps of a pool: counted by the host, on a lease, captured once and replayed, or refused."""

from dataclasses import replace

import pytest
import torch
from pagebind import available_backends, get_backend
from pagebind.errors import InvalidArgument, OutOfPages, Unsupported
from pagebind.pool import SubPool, UnifiedPool, page_pool

SIZES = {"max_requests": 6, "max_context": 60, "max_bs": 5, "max_tokens": 64}
ON_CUDA = [c.name for c in available_backends("cuda") if c.reason is None] if torch.cuda.is_available() else []
FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
WINDOW = SubPool(name="window", page_size=4, page_bytes=32, grows="float", ids_of="full")
STATE = SubPool(name="state", page_size=1, page_bytes=128, grows="down")
LENS = [9, 3, 4, 16]


def composite(backend="cpu", device="cpu", **settings):
    return UnifiedPool(8192, [FULL, WINDOW, STATE], **SIZES, backend=backend, device=device, **settings)


def ints(pool, *values):
    return torch.tensor(values, dtype=torch.int32, device=pool.device)


def blank(pool, *shape):
    return torch.full(shape, -7, dtype=torch.int32, device=pool.device)


def prefilled(pool, also=(), lens=LENS):
    """Open a row for each length and extend it; return the rows and the lengths, on the device."""
    rows = ints(pool, *(pool.open_row().index for _ in lens))
    ends = [sum(lens[:b]) for b in range(len(lens) + 1)]
    slots = {name: blank(pool, ends[-1]) for name in (pool.rows_of, *also)}
    pages = sum(pool.new_pages(0, n) for n in lens)
    pool.extend(rows, torch.zeros_like(rows), ints(pool, *ends), slots=slots, pages=pages)
    return rows, ints(pool, *lens)


def crossing(pool, lens):
    return sum(n % pool.page_size == 0 for n in lens)


@pytest.mark.parametrize("form", ["token", "page"])
@pytest.mark.parametrize("also", [(), ("window",)], ids=["alone", "borrowed"])
def test_steps_are_extensions_of_a_token_a_lane(form, also):
    stepping, extending = composite(form=form), composite(form=form)
    (rows, lens), (same, held) = prefilled(stepping, also), prefilled(extending, also)
    names = ("full", *also)
    for step in range(25):
        told = [n + step for n in LENS]
        slots, right = ({name: blank(stepping, 4) for name in names} for _ in range(2))
        stepping.advance(rows, lens, slots=slots, pages=crossing(stepping, told))
        extending.extend(same, held, ints(extending, 0, 1, 2, 3, 4), slots=right, pages=crossing(extending, told))
        held += 1
        for name in names:
            assert torch.equal(slots[name], right[name])
        assert torch.equal(lens, held)
        assert stepping.stats() == extending.stats()
        assert stepping.digest() == extending.digest()
    assert stepping.audit() == []
    stepping.check()


@pytest.mark.parametrize("granularity", ["page", "token"])
@pytest.mark.parametrize("form", ["token", "page"])
def test_a_table_that_steps_append_to_is_the_one_a_build_makes(form, granularity):
    pool = composite(form=form)
    rows, lens = prefilled(pool)
    width = 15 if granularity == "page" else 60
    build = pool.plan_read_table(width, granularity=granularity)
    kept, fresh = blank(pool, 4, width), blank(pool, 4, width)
    build(pool.requests.table, rows, lens, pool.tables["full"].v2p, out=kept)
    for step in range(30):
        pages = crossing(pool, [n + step for n in LENS])
        pool.advance(rows, lens, slots=blank(pool, 4), pages=pages, table=kept, granularity=granularity)
        build(pool.requests.table, rows, lens, pool.tables["full"].v2p, out=fresh)
        assert torch.equal(kept, fresh)


def test_a_kept_table_follows_steps_without_a_rebuild():
    pool = composite()
    rows, lens = prefilled(pool)
    kept, build = pool.read_table(15), pool.plan_read_table(15)
    kept.refresh(rows, lens)
    for step in range(20):
        pages = crossing(pool, [n + step for n in LENS])
        pool.advance(rows, lens, slots=blank(pool, 4), pages=pages)
        fresh = torch.zeros_like(kept.cells)
        build(pool.requests.table, rows, lens, pool.tables["full"].v2p, out=fresh)
        assert torch.equal(kept.refresh(rows, lens), fresh)


def test_a_step_that_does_not_fit_is_refused_and_changes_nothing():
    pool = page_pool(5, 4, **SIZES, device="cpu", backend="cpu")
    rows, lens = prefilled(pool, lens=[4, 8, 4])
    slots = blank(pool, 3)
    digest, stats = pool.digest(), pool.stats()
    with pytest.raises(OutOfPages):
        pool.advance(rows, lens, slots=slots, pages=3)
    assert (pool.digest(), pool.stats(), lens.tolist(), slots.tolist()) == (digest, stats, [4, 8, 4], [-7] * 3)
    with pytest.raises(InvalidArgument, match="no lease is open"):
        pool.advance(rows, lens, slots=slots)
    lease = pool.reserve(1)
    pool.advance(rows, lens, slots=slots)  # two lanes find no page: they ask again
    assert lens.tolist() == [5, 8, 4]
    lease.settle(1)
    assert pool.poll() is not None
    pool.reconcile()
    assert pool.audit() == []


def test_wrong_slots_and_tables_are_refused_before_anything_moves():
    pool = composite()
    rows, lens = prefilled(pool, ("window",))
    digest, stats = pool.digest(), pool.stats()
    table = blank(pool, 4, 15)
    for wrong in (
        {"slots": blank(pool, 3)},
        {"slots": {"full": blank(pool, 4), "window": blank(pool, 3)}},
        {"slots": {"window": blank(pool, 4)}},
        {"slots": {"full": blank(pool, 4), "window": blank(pool, 4).long()}},
        {"slots": blank(pool, 4), "table": table[:3]},
        {"slots": blank(pool, 4), "table": table.long()},
        {"slots": blank(pool, 4), "pages": -1},
    ):
        with pytest.raises(InvalidArgument):
            pool.advance(rows, lens, **{"pages": 2, **wrong})
    assert (pool.digest(), pool.stats(), lens.tolist()) == (digest, stats, LENS)
    assert torch.equal(table, blank(pool, 4, 15))


@pytest.mark.parametrize("cleared", ["full", "window"])
def test_a_sub_pool_that_clears_pages_is_refused_by_name(cleared):
    kinds = [
        SubPool(name=s.name, page_size=4, page_bytes=64, grows=grows, ids_of=s.ids_of, zero_on_alloc=s.name == cleared)
        for s, grows in ((FULL, "up"), (WINDOW, "down"))
    ]
    pool = UnifiedPool(4096, kinds, **SIZES, device="cpu", backend="cpu")
    rows, lens = prefilled(pool, ("window",))
    digest = pool.digest()
    with pytest.raises(Unsupported, match=f"{cleared}' has zero_on_alloc"):
        pool.advance(rows, lens, slots={name: blank(pool, 4) for name in ("full", "window")}, pages=2)
    assert (pool.digest(), lens.tolist()) == (digest, LENS)


def test_a_backend_that_appends_nothing_serves_steps_and_refuses_a_table_by_name():
    whole = get_backend("cpu", device="cpu")
    pool = composite(replace(whole, features=whole.features - {"append"}))
    rows, lens = prefilled(pool)
    pool.advance(rows, lens, slots=blank(pool, 4), pages=2)
    with pytest.raises(Unsupported, match="append"):
        pool.advance(rows, lens, slots=blank(pool, 4), pages=0, table=blank(pool, 4, 15))


def test_a_batch_may_have_more_lanes_than_an_extension_has_tokens():
    kinds = [FULL, SubPool(name="window", page_size=4, page_bytes=32, grows="down", ids_of="full")]
    pool = UnifiedPool(8192, kinds, **{**SIZES, "max_tokens": 2}, ranks=2, rank=1, device="cpu", backend="cpu")
    rows, lens = ints(pool, *(pool.open_row().index for _ in range(5))), ints(pool, 0, 0, 0, 0, 0)
    slots = {name: blank(pool, 5) for name in ("full", "window")}
    pool.advance(rows, lens, slots=slots, pages=5)
    assert slots["full"].tolist() == [0] * 5, "token 0 is another rank's"
    pool.advance(rows, lens, slots=slots, pages=0)
    first = pool.tables["full"].v2p[pool.requests.table[rows.long(), 0].long()]
    assert slots["full"].tolist() == (first * 4).tolist()
    first = pool.tables["window"].v2p[pool.requests.table[rows.long(), 0].long()]
    assert slots["window"].tolist() == (first * 4).tolist()
    with pytest.raises(InvalidArgument, match="granularity is 'token'"):
        pool.advance(rows, lens, slots=slots, pages=0, table=blank(pool, 5, 60), granularity="token")
    pool.advance(rows, lens, slots=slots, pages=0, table=blank(pool, 5, 8))
    assert lens.tolist() == [3] * 5


@pytest.mark.parametrize("backend", ON_CUDA)
@pytest.mark.parametrize("also", [(), ("window",)], ids=["alone", "borrowed"])
def test_a_captured_step_replays_under_one_lease_like_as_many_eager_ones(backend, also):
    pools = [composite(backend, "cuda") for _ in range(2)]
    captured, eager = pools
    made = [prefilled(pool, also) for pool in pools]
    for pool in pools:
        pool.warmup()
    outputs = [({name: blank(pool, 4) for name in ("full", *also)}, blank(pool, 4, 15)) for pool in pools]
    steps = 40
    pages = sum(captured.new_pages(n, steps) for n in LENS)
    lease = captured.reserve(dict.fromkeys(("full", *also), pages))
    (rows, lens), (slots, table) = made[0], outputs[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.advance(rows, lens, slots=slots, table=table)
    for step in range(steps):
        graph.replay()
        (same, held), (right, shown) = made[1], outputs[1]
        told = crossing(eager, [n + step for n in LENS])
        eager.advance(same, held, slots=right, table=shown, pages=told)
        for name in slots:
            assert torch.equal(slots[name], right[name]), f"step {step}"
        assert torch.equal(lens, held)
        assert torch.equal(table, shown)
    lease.settle(dict.fromkeys(("full", *also), pages))
    assert captured.audit() == []
    assert (captured.stats(), captured.digest()) == (eager.stats(), eager.digest())
    captured.check()
