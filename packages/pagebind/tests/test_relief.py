"""What must retreat so that a demand fits, against trying all there is; and capacities that projects got wrong."""

from dataclasses import asdict
from random import Random

import pytest
from pagebind.errors import OutOfPages
from pagebind.pool import SubPool, UnifiedPool
from pagebind.pool.chain import lay_out
from pagebind.pool.ledger import Ledger
from pagebind_conformance.pool_model import Kind, Model

CHAINS = [("up",), ("down",), ("up", "down"), ("up", "float", "down")]
SIZES = {"max_requests": 1, "max_context": 1, "max_bs": 1, "max_tokens": 1, "device": "cpu", "backend": "cpu"}


class Twins:
    """A ledger and the model beside it: what is done to one is done to the other."""

    def __init__(self, rng, chain):
        self.kinds = tuple(
            Kind(
                name=grows,
                page_size=1,
                page_bytes=rng.choice([1, 2, 3, 4, 5]),
                grows=grows,
                max_pages=rng.choice([None, None, None, 3]),
            )
            for grows in chain
        )
        self.total = sum(kind.page_bytes for kind in self.kinds) + rng.randrange(24)
        self.ledger = Ledger(lay_out(self.total, [SubPool(**asdict(kind)) for kind in self.kinds]), chain[0])
        self.model = Model(self.total, self.kinds)
        self.ids = iter(range(1, 10**6))

    def demand(self, counts):
        return {kind.name: n for kind, n in zip(self.kinds, counts, strict=True)}

    def relieve(self, counts):
        """Make room on both and return what each ledger's move retreats, by growth."""
        moves = self.ledger.moves_for(counts, self.model.gate_closed)
        for move in moves:
            self.ledger.retreat(move)
        self.model.relieve(self.demand(counts))
        return {kind.grows: sum(m.retreat for m in moves if m.index == i) for i, kind in enumerate(self.kinds)}

    def take(self, counts):
        self.ledger.take(counts)
        for part in self.model.in_order():
            self.model.take(part, [next(self.ids) for _ in range(self.demand(counts)[part.kind.name])])

    def give(self, i, n, rng):
        part = list(self.model.parts.values())[i]
        for v in rng.sample(sorted(part.live), min(n, len(part.live))):
            del part.live[v]
            self.ledger.give([int(j == i) for j in range(len(self.kinds))])

    def told(self):
        """Return both sides' counts; an empty span lies nowhere."""
        own = [(at.live, at.span, at.span and at.seat + 1) for at in self.ledger.positions]
        return own, [(len(p.live), p.span, p.span and p.begin) for p in self.model.parts.values()]

    def __str__(self):
        return f"{self.total} bytes of {self.kinds}, {self.ledger.positions}"


def filled(rng, chain):
    twins = Twins(rng, chain)
    for _ in range(12):
        i, n = rng.randrange(len(chain)), rng.randrange(4)
        counts = [n if j == i else 0 for j in range(len(chain))]
        if rng.random() < 0.4:
            twins.give(i, n, rng)
        elif twins.model.fits(twins.demand(counts)):
            if rng.random() < 0.5:  # what moves now and then has holes elsewhere than what never did
                twins.relieve(counts)
                twins.take(counts)
            elif twins.ledger.moves_for(counts, False) == []:
                twins.take(counts)
    return twins


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
@pytest.mark.parametrize("seed", range(5))
def test_moves_make_room_and_are_the_cheapest_there_are(chain, seed):
    rng = Random(seed)
    met = 0
    for _ in range(120 if len(chain) < 3 else 250):
        twins = filled(rng, chain)
        own, model = twins.told()
        assert own == model, twins
        counts = [rng.randrange(6) if rng.random() < 0.7 else 0 for _ in chain]
        demand = twins.demand(counts)
        for gate_closed in (True, False):
            twins.model.gate_closed = gate_closed
            assert twins.ledger.fits(counts, gate_closed) == twins.model.fits(demand), (str(twins), counts)
            for i, kind in enumerate(twins.kinds):
                assert twins.ledger.most(i, gate_closed) == twins.model.most(kind.name), (str(twins), kind)
        if not twins.model.fits(demand):
            with pytest.raises(OutOfPages):
                twins.ledger.moves_for(counts, False)
            continue
        before, choice = str(twins), twins.model.cheapest(demand)
        right = {"up": choice.up, "float": choice.middle, "down": choice.down}
        assert twins.relieve(counts) == {grows: right[grows] for grows in chain}, (before, counts)
        met += any(right.values())
        assert twins.ledger.moves_for(counts, True) == [], (before, counts, "moves made too little room")
        twins.take(counts)
        own, model = twins.told()
        assert own == model, (before, counts)
    assert met > 0 or len(chain) == 1, "no demand needed a move: the case shows nothing"


def test_the_lower_sub_pool_retreats_where_both_cost_the_same():
    kinds = [SubPool(name=name, page_size=1, page_bytes=2, grows=name) for name in ("up", "float", "down")]
    ledger = Ledger(lay_out(6 + 2 * 12, kinds), "up")
    for counts in ([4, 0, 0], [0, 0, 4], [0, 4, 0]):
        ledger.take(counts)
    ledger.give([2, 2, 2])
    [move] = ledger.moves_for([0, 4, 0], False)
    assert (move.index, move.side, move.retreat) == (0, "high", 2)


def test_a_choice_among_a_million_holes_is_quick():
    kinds = [SubPool(name=name, page_size=1, page_bytes=16, grows=name) for name in ("up", "float", "down")]
    ledger = Ledger(lay_out(48 + 16 * 3_000_000, kinds), "up")
    for counts in ([1_000_000, 0, 0], [0, 0, 1_000_000], [0, 1_000_000, 0]):
        ledger.take(counts)
    ledger.give([999_999, 0, 999_999])
    moves = ledger.moves_for([0, 1_500_000, 0], False)
    assert [(move.index, move.retreat) for move in moves] == [(0, 999_999), (2, 500_001)]


# ---- faults that public projects have had ----------------------------------------------------------------------------


def make(total, *page_bytes):
    kinds = [
        SubPool(name=name, page_size=1, page_bytes=size, grows=grows)
        for name, size, grows in zip("ab", page_bytes, ("up", "down"), strict=True)
    ]
    return UnifiedPool(total, kinds, buffer=False, **SIZES)


def test_capacity_honours_the_move_gate_and_keeps_no_memo_across_it():  # sglang 39982
    pool = make(8 + 8 + 3 * 4, 4, 4)  # the sinks, a gap of 8 bytes, three holes of the neighbour
    pool.free(pool.alloc(3, name="b"), name="b")
    assert pool.stats().sub_pools["b"].holes == 3
    assert pool.free_pages("a") == 5
    with pool.hold_moves():
        assert pool.free_pages("a") == 2
        assert pool.can_reserve({"a": 2})
        assert not pool.can_reserve({"a": 3})
        before, counts = pool.digest(), pool.stats()
        with pytest.raises(OutOfPages, match="3 pages of 'a' asked, 2 free"):
            pool.alloc(3, name="a")
        assert pool.compact(name="b") == 0
        assert (pool.digest(), pool.stats()) == (before, counts)
    assert pool.free_pages("a") == 5
    assert pool.stats().sub_pools["a"].free == 5
    pool.alloc(5, name="a")
    assert pool.stats().sub_pools["b"].span == 0
    assert pool.audit() == []


def test_shared_bytes_are_counted_once():  # sglang 39294
    pool = make(4 + 12, 2, 2)
    assert [pool.free_pages(name) for name in "ab"] == [6, 6]
    assert pool.can_reserve({"a": 6})
    assert pool.can_reserve({"b": 6})
    assert pool.can_reserve({"a": 3, "b": 3})
    assert not pool.can_reserve({"a": 4, "b": 4})
    before, counts = pool.digest(), pool.stats()
    with pytest.raises(OutOfPages, match=r"4 pages of 'a', together with the rest of \{.*\} asked, 6 free"):
        pool.reserve({"a": 4, "b": 4})
    assert (pool.digest(), pool.stats()) == (before, counts)
    lease = pool.reserve({"a": 3, "b": 3})
    assert [pool.free_pages(name) for name in "ab"] == [0, 0]
    lease.settle({"a": 0})
    assert [pool.free_pages(name) for name in "ab"] == [6, 6]
