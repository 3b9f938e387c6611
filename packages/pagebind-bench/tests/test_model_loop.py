"""A model's loop on real tables and bytes: every step is verified, tokens are read back, pages balance to zero."""

import random

import pytest
import torch
from pagebind.errors import InvalidArgument
from pagebind.registry import available_backends
from pagebind_bench.replay.cards import Attention, Card, State, StatePart, Window
from pagebind_bench.replay.model_loop import ModelLoop
from pagebind_bench.replay.model_record import summary
from pagebind_bench.replay.settings import ModelSettings
from pagebind_bench.replay.traces import Request
from pagebind_bench.replay.verify import Mismatch


def tiny(*, window: int | None = None, state: bool = False) -> Card:
    """A model of 32 bytes a token and layer kind, windows of `window` tokens and states of 192 bytes."""
    return Card(
        name="tiny",
        source="here",
        layers=1 + 2 * (window is not None) + 3 * state,
        kv_dtype="bfloat16",
        full=Attention(layers=1, kv_heads=1, head_dim=8),
        window=None if window is None else Window(layers=2, kv_heads=1, head_dim=8, tokens=window),
        state=State(layers=3, parts=[StatePart(name="s", shape=[16], dtype="float32")]) if state else None,
    )


CARDS = {
    "plain": tiny(),
    "window": tiny(window=10),
    "state": tiny(state=True),
    "all": tiny(window=10, state=True),
}
BUDGETS = {"plain": 4000, "window": 8000, "state": 5000, "all": 9000}
"""Bytes, so that pages run out."""


def traffic(seed: int = 0, count: int = 16) -> list[Request]:
    draw = random.Random(seed)
    return [Request(3 * n, draw.randint(1, 60), draw.randint(1, 30)) for n in range(count)]


def make(card, requests, *, budget, pool="unified", backend="cpu", device="cpu", **settings):
    defaults = {
        "page_size": 4,
        "max_batch": 6,
        "max_context": max(request.tokens for request in requests),
        "chunk": 16,
        "block_tokens": 0,
        "form": "page",
        "verify": "every",
        "sample_every": 4,
        "cost_step_ms": 1.0,
        "cost_prefill_us": 0.0,
        "cost_entry_us": 0.0,
        "cost_move_us": 0.0,
        "real_bytes": True,
        "window_ratio": 0.8,
        "state_ratio": 0.9,
    }
    told = ModelSettings(model=card.name, pool=pool, budget=budget, **{**defaults, **settings})
    return ModelLoop(requests, told, card, backend=backend, device=device)


def run(*args, **kwargs):
    loop = make(*args, **kwargs)
    loop.run()
    assert loop.served + loop.refused == len(args[1])
    assert all(own.live == 0 for own in loop.pool.stats().sub_pools.values())
    return loop


@pytest.mark.parametrize("form", ["page", "token"])
@pytest.mark.parametrize("pool", ["unified", "static"])
@pytest.mark.parametrize("kind", CARDS)
def test_every_step_is_verified_and_bytes_are_read_back(kind, pool, form):
    loop = run(CARDS[kind], traffic(), budget=BUDGETS[kind], pool=pool, form=form)
    assert loop.verifier.checked == len(loop.record) > 0
    assert loop.verifier.stamped > loop.verifier.checked
    moved = summary(loop.record, loop.kinds, BUDGETS[kind])["moved_pages"]
    # What shares a budget moves under pressure; a split never has to, and one kind has nobody to move for.
    assert (moved > 0) == (pool == "unified" and kind != "plain")


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_any_page_size_is_served(page_size):
    loop = run(CARDS["all"], traffic(1), budget=20_000, page_size=page_size)
    assert loop.verifier.checked == len(loop.record)


@pytest.mark.parametrize("seed", range(6))
def test_random_budgets_and_windows_balance(seed):
    draw = random.Random(seed)
    card = tiny(window=draw.randint(1, 40), state=draw.random() < 0.6)
    requests = traffic(seed, 16)
    budget = draw.randint(9000, 16_000)
    sizes = {"page_size": draw.choice([1, 2, 5]), "chunk": draw.choice([1, 7, 64]), "max_batch": draw.randint(1, 8)}
    run(card, requests, budget=budget, pool=draw.choice(["unified", "static"]), **sizes)


@pytest.mark.parametrize("pool", ["unified", "static"])
def test_a_plain_model_is_scheduled_as_a_plain_pool_of_as_many_pages(make_loop, pool):
    tokens = [11 + 3 * n for n in range(8)]
    ids = [(1, *range(10 * n, 10 * n + -(-n // 8) - 1)) for n in tokens]
    requests = [Request(2 * n, size, 9 + n, ids[n]) for n, size in enumerate(tokens)]
    sizes = {"page_size": 4, "max_batch": 6, "chunk": 16, "block_tokens": 8}
    loop = run(CARDS["plain"], requests, budget=129 * 13, pool=pool, **sizes)
    pages = loop.pool.stats().sub_pools["full"].capacity
    plain = make_loop(requests, pages=pages, **sizes)
    plain.run()
    assert plain.preempted == loop.preempted > 0
    assert plain.scheduler.hit_tokens == loop.scheduler.hit_tokens > 0
    for name in ("time_ms", "batch", "running", "waiting", "prefill", "preempted"):
        assert plain.record.column(name).tolist() == loop.record.column(name).tolist()
    assert (plain.record.column("live") * 128).tolist() == loop.record.column("full.live").tolist()


def test_tables_are_the_same_with_and_without_bytes_and_whatever_is_verified():
    def digest(**settings):
        return run(CARDS["all"], traffic(2), budget=9000, **settings).digest.hexdigest()

    first = digest()
    assert first == digest(real_bytes=False) == digest(verify="off") == digest(form="token")
    assert len({first, digest(pool="static"), digest(chunk=5), digest(page_size=2)}) == 4


@pytest.mark.parametrize("kind", ["window", "state", "all"])
def test_the_digest_is_free_of_backend_and_device(kind):
    digests = {}
    for place in ["cpu", "cuda"][: 1 + torch.cuda.is_available()]:
        for candidate in available_backends(place):
            if candidate.reason is None:
                requests = [Request(2 * n, 9 + 5 * n, 4) for n in range(4)]
                sizes = {"budget": 4000, "max_batch": 3, "backend": candidate.name, "device": place}
                digests[candidate.name, place] = run(CARDS[kind], requests, **sizes).digest.hexdigest()
    assert digests
    assert len(set(digests.values())) == 1, digests


def test_a_row_holds_the_pages_of_its_window_and_no_others():
    loop = run(tiny(window=10), [Request(0, 30, 30)], budget=20_000, chunk=8)
    pages = (loop.record.column("window.live") / loop.pool.sub_pools["window"].page_bytes).tolist()
    held, length = [], 0
    for tokens in [8, 8, 8, 6, *[1] * 29]:
        first = max(length + 1 - 10, 0) // 4  # the page of the first token that the step's first one attends to
        length += tokens
        held.append(-(-length // 4) - first)
    assert pages == held
    assert max(held) == 5


def test_a_static_split_serves_less_at_once_where_the_ratio_does_not_fit_the_traffic():
    requests = [Request(0, 40, 20) for _ in range(12)]
    results = {}
    for pool in ("unified", "static"):
        loop = run(CARDS["all"], requests, budget=20_000, pool=pool, max_batch=12)
        results[pool] = summary(loop.record, loop.kinds, 20_000)
    assert results["unified"]["peak_running"] > results["static"]["peak_running"]
    assert results["unified"]["virtual_s"] < results["static"]["virtual_s"]
    assert results["static"]["moved_bytes"] == 0 < results["unified"]["moved_bytes"]


def test_requests_that_do_not_fit_even_alone_are_refused_and_the_others_served():
    requests = [Request(0, 10, 5), Request(0, 500, 5), Request(0, 12, 5)]
    loop = run(CARDS["all"], requests, budget=9000)
    assert (loop.served, loop.refused) == (2, 1)
    with pytest.raises(InvalidArgument, match="none of 1 requests fits a unified pool of 9,000 bytes"):
        make(CARDS["all"], requests[1:2], budget=9000)


def test_the_clock_charges_moves():
    slow = run(CARDS["all"], traffic(), budget=9000, cost_move_us=1e9)
    fast = run(CARDS["all"], traffic(), budget=9000)
    spent = slow.record.column("time_ms") - slow.record.column("began_ms")
    moved = slow.record.column("moved_bytes")
    assert spent.tolist() == pytest.approx((1.0 + 1e6 * moved / 2**20).tolist())
    assert fast.record.column("time_ms")[-1] < slow.record.column("time_ms")[-1]


def test_a_summary_says_what_the_steps_say():
    loop = run(CARDS["all"], traffic(), budget=9000)
    told = summary(loop.record, loop.kinds, 9000)
    live = sum(loop.record.column(f"{kind}.live") for kind in loop.kinds.names)
    span = sum(loop.record.column(f"{kind}.end") - loop.record.column(f"{kind}.first") for kind in loop.kinds.names)
    assert told["peak_live_bytes"] == live.max() <= 9000
    assert told["mean_waste_bytes"] == round((span - live).mean())
    assert told["moved_bytes"] == loop.record.column("moved_bytes").sum() > 0
    # A frontier can also retreat over holes alone.
    assert told["steps_relieved"] >= (loop.record.column("moved_bytes") > 0).sum() > 0
    assert sum(kind["moved_pages"] for kind in told["kinds"].values()) == told["moved_pages"]
    series = loop.record.thinned(by_steps=True)
    assert sum(series["steps"]) == len(loop.record)
    assert sum(series["moved_bytes"]) == told["moved_bytes"]


# ---- verification catches ----------------------------------------------------------------------------------------


def spoil(loop, step, fault):
    """Run `fault(loop)` after the tables of one step are built, before they are looked at."""
    look = loop._look

    def spoiled(number, *args):
        if number == step:
            fault(loop)
        look(number, *args)

    loop._look = spoiled


def window_cell(loop):
    loop.outs["window"][0, 4] = 0


def passed_page(loop):
    loop.outs["window"][0, 0] = loop.outs["window"][0, 4]


def window_slot(loop):
    loop.slots["window"][0] += 1


def lost_bytes(loop):
    loop.pool.view("full", torch.int32, [4])[loop.outs["full"][1, 2], 3] += 1


def lost_state(loop):
    page = loop.pool.tables["state"].v2p[loop.scheduler.running[1].state.long()]
    loop.pool.view("state", torch.int32, [1])[page.long()] += 1


def swapped_pages(loop):
    # Tables agree and every page is there once; but the bytes stayed where they were.
    tables, [a, b] = loop.pool.tables["full"], loop.pool.requests.table[0, :2].tolist()
    tables.v2p[[a, b]] = tables.v2p[[b, a]]
    loop.outs["full"][0, :2] = loop.outs["full"][0, [1, 0]]


def other_id(loop):
    row = loop.pool.requests.table
    row[1, 0] = row[0, 0]
    for out in loop.outs.values():
        out[1, 0] = out[0, 0]


def lost_page(loop):
    loop.pool.ledger.give([0, 1, 0])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (window_cell, r"step 6, lane 0 .*'window': read table, column 4: expected \d+, got 0"),
        (passed_page, r"step 6, lane 0 .*'window': read table, column 0: expected 0, got \d+"),
        (window_slot, r"step 6, lane 0 .*'window': write slots, new token 0: expected \d+, got \d+"),
        (lost_bytes, r"step 6, lane 1 .*'full': bytes, token 0 \+ 11: expected \d+, got \d+"),
        (lost_state, r"step 6, lane 1 \(request 2\), 'state': bytes, state 0: expected \d+, got \d+"),
        (swapped_pages, r"step 6, lane 0 .*'full': bytes, token 0 \+ 0: expected \d+, got \d+"),
        (other_id, r"step 6, lane 1 .*'full': ids since the last check, column 0: expected \d+, got \d+"),
        (lost_page, r"step 6: the pool has .* pages live; expected .* by the scheduler's ledger"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_verification_catches_a_spoiled_step(fault, told):
    loop = make(tiny(window=6, state=True), [Request(0, 14, 20), Request(0, 14, 20)], budget=20_000, chunk=64)
    spoil(loop, 6, fault)
    with pytest.raises(Mismatch, match=told):
        loop.run()


def test_a_leak_is_caught_at_the_end():
    loop = make(CARDS["all"], [Request(0, 14, 3)], budget=9000)
    loop.scheduler.live = lambda live=loop.scheduler.live: live() + type(live())(states=1)
    loop.pool.alloc(1, name="state")
    with pytest.raises(Mismatch, match=r"the end: pages \{'state': 1\} and 0 rows are held; expected none"):
        loop.run()


def test_a_fault_the_pool_counted_is_caught_at_the_end():
    loop = make(CARDS["all"], [Request(0, 14, 3)], budget=9000)
    loop.pool.tables["window"].state[8] += 1
    with pytest.raises(Mismatch, match=r"the end: .*clipped 1"):
        loop.run()
