"""The policy alone, with no pool behind it: host ints in, decisions out."""

import random

import pytest
from pagebind_bench.replay.kinds import Need
from pagebind_bench.replay.room import Count
from pagebind_bench.replay.scheduler import Scheduler
from pagebind_bench.replay.traces import Request


def make(requests, *, pages=16, page_size=4, max_batch=4, chunk=16, block_tokens=0):
    return Scheduler(
        requests, room=Count(pages), page_size=page_size, max_batch=max_batch, chunk=chunk, block_tokens=block_tokens
    )


def serve(scheduler, most=10_000):
    """Run to the end with a step of 1 ms and return every step; the ledger is held against the rows throughout."""
    steps, now = [], 0.0
    finished, pages = [], scheduler.room.free
    while scheduler.coming or scheduler.busy:
        scheduler.arrive(now)
        now += 1
        if not scheduler.busy:
            continue
        step = scheduler.plan()
        assert step.lanes
        assert scheduler.room.free + scheduler.live().full == pages
        assert scheduler.room.free >= 0
        finished += scheduler.finish(step).finished
        steps.append(step)
        assert len(steps) < most
    scheduler.drain()
    assert scheduler.room.free == pages
    assert scheduler.cache.cached == scheduler.cache.evictable == len(scheduler.cache) == 0
    return steps, finished


def lanes(step):
    return [(job.number, tokens) for job, tokens in step.lanes]


def test_prefill_comes_in_chunks_and_decode_gives_a_token_a_step():
    steps, _ = serve(make([Request(0, 10, 3)], chunk=4))
    assert [lanes(step) for step in steps] == [[(1, 4)], [(1, 4)], [(1, 2)], [(1, 1)], [(1, 1)]]
    assert [step.prefill for step in steps] == [4, 4, 2, 0, 0]
    assert [step.pages for step in steps] == [1, 1, 1, 0, 0]


def test_a_chunk_is_shared_by_the_prompts_of_a_step_in_order():
    steps, _ = serve(make([Request(0, 5, 2), Request(0, 9, 1), Request(0, 3, 1)], chunk=8))
    assert [lanes(step) for step in steps] == [[(1, 5), (2, 3)], [(1, 1), (2, 6), (3, 2)], [(3, 1)]]


def test_requests_wait_for_their_arrival_and_for_a_lane():
    steps, _ = serve(make([Request(0, 4, 3), Request(1, 4, 1), Request(1, 4, 1)], max_batch=2))
    assert [lanes(step) for step in steps] == [[(1, 4)], [(1, 1), (2, 4)], [(1, 1), (3, 4)]]


def test_a_prompt_is_admitted_only_when_it_fits_whole_and_keeps_its_place_in_the_queue():
    # The second needs 12 of 16 pages while the first holds 8; the small third does not overtake it.
    steps, _ = serve(make([Request(0, 32, 2), Request(0, 48, 1), Request(0, 4, 1)], chunk=64))
    assert [lanes(step) for step in steps] == [[(1, 32)], [(1, 1)], [(2, 48), (3, 4)]]


def test_prompts_that_are_still_being_computed_keep_their_claim_on_pages():
    # The first took 4 of its 12 pages when the second asks for 8 of the 12 that are left.
    steps, _ = serve(make([Request(0, 48, 1), Request(0, 32, 1)], chunk=16))
    assert [lanes(step) for step in steps][:3] == [[(1, 16)], [(1, 16)], [(1, 16)]]


def test_the_youngest_is_preempted_when_pages_run_out_and_computed_again():
    # Two requests grow from 4 to 8 pages each in a pool of 12.
    scheduler = make([Request(0, 16, 17), Request(0, 16, 17)], pages=12, chunk=64)
    steps, finished = serve(scheduler)
    preempted = [leaving for step in steps for leaving in step.preempted]
    assert [leaving.job.number for leaving in preempted] == [2]
    assert [leaving.job.number for leaving in finished] == [1, 2]
    again = next(step for step in steps if step.admitted and step is not steps[0])
    [job] = again.admitted
    # What it had generated is part of what it computes again: 8 decode steps and the token of the prefill.
    assert (job.number, again.prefill) == (2, 16 + 9)
    assert [leaving.length for leaving in finished] == [32, 32]


def test_the_oldest_always_gets_through():
    requests = [Request(0, 20, 30) for _ in range(6)]
    steps, finished = serve(make(requests, pages=13, max_batch=6, chunk=64))
    assert sum(len(step.preempted) for step in steps) > 0
    assert finished[0].job.number == 1
    assert sorted(leaving.job.number for leaving in finished) == [1, 2, 3, 4, 5, 6]


# ---- shared prefixes -------------------------------------------------------------------------------------------------


def test_a_finished_prefix_is_shared_and_not_computed_again():
    scheduler = make([Request(0, 20, 1, (1, 2, 3)), Request(5, 20, 1, (1, 2, 4))], block_tokens=8)
    steps, _ = serve(scheduler)
    # Blocks of 8 tokens: two are shared, the third (tokens 16 to 19) differs.
    assert [lanes(step) for step in steps] == [[(1, 16)], [(1, 4)], [(2, 4)]]
    assert scheduler.hit_tokens == 16
    assert [step.pages for step in steps] == [4, 1, 1]


def test_the_last_token_of_a_prompt_is_always_computed():
    scheduler = make([Request(0, 16, 1, (1, 2)), Request(5, 16, 1, (1, 2))], block_tokens=8)
    steps, _ = serve(scheduler)
    assert lanes(steps[-1]) == [(2, 8)]
    assert scheduler.hit_tokens == 8


@pytest.mark.parametrize(("page_size", "shared"), [(1, 14), (3, 12), (5, 10), (7, 14), (8, 8), (16, 0)])
def test_only_whole_pages_are_shared_whatever_the_page_size(page_size, shared):
    # Blocks of 7 tokens, two of them equal: 14 tokens.
    requests = [Request(0, 24, 1, (1, 2, 3, 4)), Request(50, 24, 1, (1, 2, 5, 6))]
    scheduler = make(requests, page_size=page_size, pages=64, block_tokens=7)
    serve(scheduler)
    assert scheduler.hit_tokens == shared


def test_two_that_computed_the_same_prefix_at_once_end_up_sharing_it():
    scheduler = make([Request(0, 16, 4, (1, 2)), Request(0, 16, 4, (1, 2))], chunk=64, block_tokens=8)
    scheduler.arrive(0)
    outcome = scheduler.finish(scheduler.plan())
    (first, kept), (second, adopted) = outcome.kept
    assert (kept.before, kept.swapped, kept.end) == (0, 0, 4)
    assert (adopted.before, adopted.swapped, adopted.end) == (0, 4, 4)
    assert kept.blocks == adopted.blocks
    assert [block.users for block in kept.blocks] == [2, 2]
    assert scheduler.room.free == 12
    assert first.shared == second.shared == 4


def test_prefixes_are_evicted_oldest_first_and_never_one_in_use():
    scheduler = make([Request(0, 16, 1, (10,)), Request(2, 16, 1, (20,)), Request(4, 16, 9, (30,))], block_tokens=16)
    for now in (0, 2, 4):
        scheduler.arrive(now)
        scheduler.finish(scheduler.plan())
    cache = scheduler.cache
    assert (cache.cached, cache.evictable, scheduler.room.free) == (12, 8, 4)
    assert [block.hash_id for block in cache.evict(1)] == [10]
    assert [block.hash_id for block in cache.evict(100)] == [20]
    assert (cache.cached, cache.evictable) == (4, 0)


def test_using_a_prefix_makes_it_young_and_a_block_goes_before_the_one_it_continues():
    requests = [Request(0, 17, 1, (1, 2)), Request(2, 17, 1, (3, 4)), Request(4, 9, 1, (1,))]
    scheduler = make(requests, block_tokens=8)
    for now in (0, 1, 2, 3, 4, 5):
        scheduler.arrive(now)
        if scheduler.busy:
            scheduler.finish(scheduler.plan())
    assert scheduler.hit_tokens == 8
    assert [block.hash_id for block in scheduler.cache.evict(100)] == [2, 4, 3, 1]


def test_a_prompt_that_ends_inside_a_block_shares_nothing_past_the_blocks_before():
    requests = [Request(0, 12, 1, (1, 2)), Request(5, 16, 1, (1, 2)), Request(9, 13, 1, (1, 2))]
    scheduler = make(requests, block_tokens=8)
    serve(scheduler)
    # Request 2 has the hash 2 with one page more: not taken. Request 3 has it with as many pages: taken.
    assert scheduler.hit_tokens == 8 + 12


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic_balances_and_ends(seed):
    draw = random.Random(seed)
    block, page_size = draw.choice([(8, 4), (7, 3), (4, 16), (64, 5)])
    requests, chains, fresh = [], [], 0
    for number in range(60):
        tokens = draw.randint(1, 120)
        head = draw.choice(chains)[: draw.randint(0, tokens // block)] if chains and draw.random() < 0.7 else ()
        ids = (*head, *range(fresh, fresh + -(-tokens // block) - len(head)))
        fresh += len(ids)
        chains.append(ids[: tokens // block])
        requests.append(Request(number * draw.choice([0, 3]), tokens, draw.randint(0, 60), ids))
    requests.sort(key=lambda request: request.arrival_ms)
    largest = max(-(-request.tokens // page_size) for request in requests)
    scheduler = make(
        requests,
        pages=largest + draw.randint(0, largest),
        page_size=page_size,
        max_batch=draw.randint(1, 9),
        chunk=draw.choice([1, 17, 64, 1000]),
        block_tokens=block,
    )
    _, finished = serve(scheduler, most=100_000)
    assert sorted(leaving.job.number for leaving in finished) == list(range(1, 61))
    for leaving in finished:
        assert leaving.length == leaving.job.request.tokens


# ---- kinds of page -----------------------------------------------------------------------------------------------


class Kinds:
    """Room for a fixed number of pages of each kind, told of everything that is taken and comes back."""

    def __init__(self, full, window, states):
        self.free = Need(full, window, states)
        self.taken = Need()

    def begin(self):
        self.taken = Need()

    def short(self, need):
        asked = self.taken + need
        fits = all(getattr(asked, kind) <= getattr(self.free, kind) for kind in ("full", "window", "states"))
        return 0 if fits else max(asked.full - self.free.full, 1)

    def take(self, need):
        self.taken += need

    def release(self, leaving):
        self.free += Need(leaving.pages, leaving.window, 1)

    def evict(self, blocks):
        assert not blocks

    def give(self, pages):
        pass


def serve_kinds(scheduler, room, most=10_000):
    steps, now = [], 0
    whole = room.free
    while scheduler.coming or scheduler.busy:
        scheduler.arrive(now)
        now += 1
        if not scheduler.busy:
            continue
        step = scheduler.plan()
        assert step.lanes
        room.free += Need(-room.taken.full, -room.taken.window, -room.taken.states)
        assert min(room.free.full, room.free.window, room.free.states) >= 0
        outcome = scheduler.finish(step)
        for passing in outcome.passing:
            room.free += Need(window=passing.pages)
        for leaving in outcome.finished:
            room.release(leaving)
        live = scheduler.live()
        assert live + room.free == whole
        steps.append((step, outcome))
        assert len(steps) < most
    assert room.free == whole
    return steps


def make_kinds(requests, room, *, window, page_size=4, max_batch=4, chunk=16):
    sizes = {"page_size": page_size, "max_batch": max_batch, "chunk": chunk, "block_tokens": 0}
    return Scheduler(requests, room=room, window=window, states=True, **sizes)


def test_window_pages_come_back_as_the_window_passes_them():
    room = Kinds(100, 100, 1)
    steps = serve_kinds(make_kinds([Request(0, 16, 8)], room, window=6), room)
    # After 16 tokens the next one attends to tokens 11 and up: pages 0 and 1 are passed; page 2 after 17 tokens and up.
    told = [[(passing.begin, passing.pages) for passing in outcome.passing] for _, outcome in steps]
    assert told == [[(11, 2)], [(12, 1)], [], [], [], [(16, 1)], [], []]


def test_the_scarcest_kind_decides_who_is_admitted():
    requests = [Request(0, 8, 4) for _ in range(4)]
    for room, right in ((Kinds(100, 100, 2), 2), (Kinds(100, 7, 9), 2), (Kinds(7, 100, 9), 2), (Kinds(100, 100, 9), 4)):
        scheduler = make_kinds(requests, room, window=6, chunk=64)
        scheduler.arrive(0)
        assert len(scheduler.plan().admitted) == right, room.free


def test_a_state_is_taken_at_admission_and_comes_back_with_the_request():
    room = Kinds(100, 100, 1)
    steps = serve_kinds(make_kinds([Request(0, 8, 3), Request(0, 8, 3)], room, window=6), room)
    assert [[job.number for job in step.admitted] for step, _ in steps if step.admitted] == [[1], [2]]


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic_of_all_kinds_balances_and_ends(seed):
    draw = random.Random(seed)
    requests = [Request(2 * n, draw.randint(1, 90), draw.randint(1, 60)) for n in range(40)]
    page_size, window, chunk = draw.choice([1, 3, 4, 16]), draw.randint(1, 40), draw.choice([1, 7, 64])
    room = Kinds(0, 0, draw.randint(1, 5))
    sizes = {"page_size": page_size, "max_batch": draw.randint(1, 9), "chunk": chunk}
    scheduler = make_kinds(requests, room, window=window, **sizes)
    most = [scheduler.most(request) for request in requests]
    tight = max(need.full for need in most), max(need.window for need in most)
    room.free += Need(tight[0] + draw.randint(0, tight[0]), tight[1] + draw.randint(0, tight[1]))
    steps = serve_kinds(scheduler, room, most=100_000)
    finished = [leaving.job for _, outcome in steps for leaving in outcome.finished]
    assert sorted(job.number for job in finished) == list(range(1, 41))
    assert all(job.first == 0 and job.length == 0 for job in finished)
