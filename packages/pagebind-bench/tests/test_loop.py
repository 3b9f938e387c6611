"""The loop on real tables: every step is verified, pages balance to zero, and the digest says what the tables said."""

import pytest
import torch
from pagebind.errors import InvalidArgument
from pagebind_bench.replay.loop import Loop
from pagebind_bench.replay.traces import Request
from pagebind_bench.replay.verify import Mismatch

CROWDED = [Request(n, 11 + 3 * n, 9 + n) for n in range(8)]
"""More than 64 tokens at a time: some are preempted."""
SHARING = [
    Request(0, 22, 5, (1, 2, 3)),
    Request(0, 22, 5, (1, 2, 3)),  # at once with the first: both compute it, one copy stays
    Request(9, 30, 4, (1, 2, 4, 5)),
    Request(30, 40, 3, (6, 7, 8, 9, 10)),
    Request(60, 22, 7, (1, 2, 3)),
]


def run(make_loop, requests, **settings):
    loop = make_loop(requests, **settings)
    loop.run()
    assert loop.served == len(requests)
    assert loop.pool.free_pages() == loop.settings.pages
    return loop


@pytest.mark.parametrize("form", ["page", "token"])
@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_every_step_is_verified_and_pages_balance_to_zero(make_loop, form, page_size):
    pages = -(-64 // page_size)
    loop = run(make_loop, CROWDED, pages=pages, page_size=page_size, form=form, max_batch=6)
    assert loop.verifier.checked == len(loop.record) > 0
    assert loop.preempted > 0 or page_size == 16
    shared = run(make_loop, SHARING, pages=pages, page_size=page_size, form=form, block_tokens=8, chunk=64)
    assert shared.verifier.checked == len(shared.record) > 0
    if page_size <= 4:
        assert shared.scheduler.hit_tokens > 0
        assert {"assign", "free", "extend", "read_table", "release"} == {name for name, _ in shared.record.called()}


def test_a_copy_that_was_computed_twice_comes_back_at_once(make_loop):
    loop = make_loop(SHARING[:2], pages=24, block_tokens=8, chunk=64)
    loop.scheduler.arrive(0)
    loop.step()
    # Both prompts have 5 whole pages and a part; the second reads the first's 5.
    assert loop.pool.free_pages() == 24 - 5 - 2
    first, second = loop.pool.requests.table[:2].tolist()
    assert first[:5] == second[:5]
    assert first[5] != second[5]


def test_the_digest_is_equal_over_runs_and_forms_and_differs_over_pools(make_loop):
    def digest(**settings):
        return run(make_loop, SHARING, **{"pages": 20, "block_tokens": 8, **settings}).digest.hexdigest()

    first = digest()
    assert first == digest() == digest(form="token") == digest(verify="off") == digest(max_context=100)
    assert len({first, digest(block_tokens=0), digest(page_size=5), digest(pages=40), digest(chunk=7)}) == 5


def test_the_digest_is_free_of_the_index_dtype(make_loop, monkeypatch):
    first = run(make_loop, SHARING, pages=20, block_tokens=8)
    monkeypatch.setenv("PAGEBIND_INDEX_DTYPE", "int64")
    second = run(make_loop, SHARING, pages=20, block_tokens=8)
    assert (first.tables.v2p.dtype, second.tables.v2p.dtype) == (torch.int32, torch.int64)
    assert first.digest.hexdigest() == second.digest.hexdigest()


@pytest.mark.parametrize(("verify", "right"), [("every", 34), ("sample", 9), ("off", 0)])
def test_verify_says_which_steps_are_checked(make_loop, verify, right):
    loop = run(make_loop, [Request(0, 4, 34)], pages=10, verify=verify, sample_every=4)
    assert (len(loop.record), loop.verifier.checked) == (34, right)


def spoil(loop: Loop, step: int, fault) -> None:
    """Run `fault(loop)` after the read table of one step is built, before it is looked at."""
    look = loop._look

    def spoiled(number, *args):
        if number == step:
            fault(loop)
        look(number, *args)

    loop._look = spoiled


def wrong_cell(loop):
    loop.table[1, 2] += 1


def stale_slot(loop):
    loop.slots[0] -= 1


def two_rows_with_one_page(loop):
    row = loop.pool.requests.table
    row[1, 0] = row[0, 0]
    loop.table[1, 0] = loop.table[0, 0]
    if loop.slots.tolist()[14] == 5 * 4:  # the prefill's slots go with the page
        loop.slots[14:18] = loop.slots[0:4]


def swapped_pages(loop):
    # The table agrees with v2p, and every page is there once; but a request's pages have changed places.
    v2p, [a, b] = loop.tables.v2p, loop.pool.requests.table[0, :2].tolist()
    v2p[[a, b]] = v2p[[b, a]]
    loop.table[0, :2] = loop.table[0, [1, 0]]


def lost_page(loop):
    loop.pool.ledger.give([1])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (wrong_cell, r"step 3, lane 1 \(request 2, row 1\): read table, column 2: expected \d+, got \d+"),
        (stale_slot, r"step 3, lane 0 \(request 1, row 0\): write slots, new token 0: expected \d+, got \d+"),
        (two_rows_with_one_page, r"step 3, lane 1 .*: pages since the last check, column 0: expected \d+, got \d+"),
        (swapped_pages, r"step 3, lane 0 .*: pages since the last check, column 0: expected \d+, got \d+"),
        (lost_page, r"step 3: the pool has \d+ free pages; expected \d+ by the scheduler's ledger"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_verification_catches_a_spoiled_step(make_loop, fault, told):
    loop = make_loop([Request(0, 14, 9), Request(0, 14, 9)], pages=24, chunk=64)
    spoil(loop, 3, fault)
    with pytest.raises(Mismatch, match=told):
        loop.run()


def test_a_page_shared_by_mistake_is_caught_on_the_first_look(make_loop):
    loop = make_loop([Request(0, 14, 9), Request(0, 14, 9)], pages=24, chunk=64)
    spoil(loop, 1, two_rows_with_one_page)
    with pytest.raises(Mismatch, match="step 1: the batch's 2 lanes read 7 different pages; expected 8"):
        loop.run()


def test_a_prefix_that_was_recycled_while_cached_is_caught(make_loop):
    loop = make_loop([Request(0, 22, 1, (1, 2, 3)), Request(50, 22, 9, (1, 2, 3))], pages=24, block_tokens=8, chunk=64)

    def recycle(loop):
        v2p, [a, b] = loop.tables.v2p, loop.pool.requests.table[0, :2].tolist()
        v2p[[a, b]] = v2p[[b, a]]
        loop.table[0, :2] = loop.table[0, [1, 0]]

    spoil(loop, 2, recycle)
    with pytest.raises(Mismatch, match="shared block 0, page 0: expected"):
        loop.run()


def test_a_leak_is_caught_at_the_end(make_loop):
    loop = make_loop([Request(0, 14, 3)], pages=24)
    loop.pool.alloc(1)
    loop.room.free -= 1
    with pytest.raises(Mismatch, match="the end: 1 pages and 0 rows are held; expected none"):
        loop.run()


def test_a_fault_the_pool_counted_is_caught_at_the_end(make_loop):
    loop = make_loop([Request(0, 14, 3)], pages=24)
    loop.tables.state[8] += 1
    with pytest.raises(Mismatch, match=r"the end: .*clipped 1"):
        loop.run()


def test_what_does_not_fit_is_refused_before_anything_runs(make_loop):
    requests = [Request(0, 4, 1), Request(0, 20, 5), Request(0, 6, 1)]
    make_loop(requests, pages=6, max_context=24)
    told = r"request 2, the largest \(20 tokens in, 5 out\), needs "
    with pytest.raises(InvalidArgument, match=told + "6 pages of 4 tokens, the pool has 5: pass --pages 6 or more"):
        make_loop(requests, pages=5)
    with pytest.raises(InvalidArgument, match=told + "a row of 24 tokens, --max-context is 23: pass --max-context 24"):
        make_loop(requests, pages=6, max_context=23)


def test_the_record_holds_a_row_a_step_and_thins_to_equal_spans(make_loop):
    loop = run(make_loop, [*CROWDED, Request(5000, 8, 600)], pages=200, max_context=1000)
    record = loop.record
    series = record.thinned()
    assert {len(values) for values in series.values()} == {len(series["time_ms"])}
    assert len(series["time_ms"]) <= 600 < len(record)
    assert max(series["peak_live"]) == record.column("live").max() == record.summary(4)["peak_pages"]
    assert sum(series["preempted"]) == loop.preempted
    assert series["began_ms"][0] == 0
    assert all(b <= t for b, t in zip(series["began_ms"], series["time_ms"], strict=True))


def test_the_virtual_clock_charges_steps_prefill_and_entries(make_loop):
    costs = {"cost_step_ms": 10.0, "cost_prefill_us": 100.0, "cost_entry_us": 1000.0}
    loop = run(make_loop, [Request(7, 8, 2)], pages=24, **costs)
    # Prefill: 10 ms, 8 tokens at 0.1 ms, 2 entries at 1 ms. Decode: 10 ms and 3 entries.
    assert loop.record.column("time_ms").tolist() == pytest.approx([7 + 12.8, 7 + 12.8 + 13])
    assert loop.record.summary(4)["first_token_ms"]["p50"] == pytest.approx(12.8)
    assert loop.record.summary(4)["latency_ms"]["p50"] == pytest.approx(25.8)


def test_tail_waste_is_the_share_of_held_tokens_that_no_token_fills(make_loop):
    loop = run(make_loop, [Request(0, 5, 2)], pages=24)
    # 5 and 6 tokens in 2 pages of 4.
    assert loop.record.summary(4)["tail_waste"] == pytest.approx(1 - 11 / 16)
