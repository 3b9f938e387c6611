"""A static split gives each kind the bytes that the published ratios say, and all regions fit the buffer together."""

import random

import pytest
from pagebind.errors import InvalidArgument
from pagebind.pool import UnifiedPool
from pagebind_bench.replay.cards import card_names, load_card
from pagebind_bench.replay.split import lay_out_regions, static_pages, sub_pools

GIB = 2**30


def test_states_and_window_get_what_the_ratios_say():
    # Pages far smaller than the budget, so that rounding does not show: 0.9 / 1.9 of all to states; of the rest,
    # 0.8 window tokens a full token.
    sizes = {"full": 100, "window": 300, "state": 50}
    pages = static_pages(sizes, 10**9, 0.8, 0.9)
    assert pages["state"] * 50 == pytest.approx(10**9 * 0.9 / 1.9, rel=1e-5)
    assert pages["window"] / pages["full"] == pytest.approx(0.8, rel=1e-5)
    assert sum(pages[kind] * sizes[kind] for kind in sizes) == pytest.approx(10**9, rel=1e-5)


def test_there_are_never_more_window_pages_than_ids():
    pages = static_pages({"full": 100, "window": 300}, 10**9, 7.0, 0.9)
    assert pages["window"] == pages["full"]


@pytest.mark.parametrize("seed", range(40))
def test_all_regions_fit_the_buffer_and_stay_apart(seed):
    draw = random.Random(seed)
    card = load_card(draw.choice(card_names()))
    size = draw.choice([1, 3, 16])
    least = 4 * sum(card.page_bytes(size).values())
    budget = draw.randrange(least, 40 * least)
    pools = sub_pools(card, budget, size, "static", draw.choice([0.2, 0.8, 2.0]), draw.choice([0.1, 0.9, 3.0]))
    sizes = {"max_requests": 1, "max_context": 8, "max_bs": 1, "max_tokens": 8, "device": "cpu", "backend": "cpu"}
    pool = UnifiedPool(budget, pools, buffer=False, **sizes)
    lay_out_regions(pool, card.kinds, pools)
    stats = pool.stats().sub_pools
    assert {name: own.span for name, own in stats.items()} == {s.name: s.max_pages for s in pools}
    assert all(own.free == own.span and own.live == 0 for own in stats.values())
    # Every kind can be full at once, with nothing moved.
    with pool.hold_moves():
        assert pool.can_reserve({name: own.span for name, own in stats.items()})
    assert pool.audit() == []


def test_a_budget_without_a_page_of_each_kind_is_refused():
    card = load_card("qwen3-next-80b-a3b")
    with pytest.raises(InvalidArgument, match="too small for qwen3-next-80b-a3b"):
        sub_pools(card, 100 * 2**20, 16, "unified", 0.8, 0.9)
    with pytest.raises(InvalidArgument, match=r"gives \{'full': \d+, 'state': 0\}: no page of one kind"):
        sub_pools(card, 200 * 2**20, 16, "static", 0.8, 0.9)


def test_a_unified_pool_caps_nothing():
    pools = sub_pools(load_card("phi-4-mini-flash"), GIB, 16, "unified", 0.8, 0.9)
    assert [(s.name, s.grows, s.max_pages, s.ids_of) for s in pools] == [
        ("full", "up", None, None),
        ("window", "float", None, "full"),
        ("state", "down", None, None),
    ]
