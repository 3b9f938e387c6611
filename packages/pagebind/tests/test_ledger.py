"""Host counts against a pool that is really simulated: a set of live pages, a stack of holes, a frontier."""

import random

import pytest
from pagebind.errors import InvalidArgument, OutOfPages
from pagebind.pool.chain import SubPool, lay_out
from pagebind.pool.ledger import Ledger


class Counts:
    """A ledger of one sub-pool that grows up, asked in ints."""

    def __init__(self, capacity: int) -> None:
        kind = SubPool(name="pages", page_size=1, page_bytes=1, grows="up")
        self.ledger = Ledger(lay_out(capacity + 1, [kind]), "pages")
        [self.at] = self.ledger.positions

    def need(self, n: int) -> None:
        self.ledger.moves_for([n], False)

    def take(self, n: int) -> None:
        self.ledger.take([n])

    def give(self, n: int) -> None:
        self.ledger.give([n])

    def open_lease(self, n: int):
        self.ledger.need_no_lease()
        counts = self.ledger.spread(n)
        self.ledger.moves_for(counts, False)
        return self.ledger.open_lease(counts)

    @property
    def free(self) -> int:
        return self.ledger.most(0, False)

    @property
    def live(self) -> int:
        return self.at.live

    @property
    def span(self) -> int:
        return self.at.span

    @property
    def holes(self) -> int:
        return self.at.holes


class Device:
    """What kernels do with the stacks, page by page."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.holes: list[int] = []
        self.span = 0

    def take(self, n: int) -> None:
        for _ in range(n):
            if self.holes:
                self.live.append(self.holes.pop())
            else:
                self.span += 1
                self.live.append(self.span)

    def give(self, n: int) -> None:
        for _ in range(n):
            self.holes.append(self.live.pop(0))


@pytest.mark.parametrize("seed", range(20))
def test_counts_follow_the_device_through_calls_and_leases(seed):
    rng = random.Random(seed)
    device, counts = Device(), Counts(40)
    for _ in range(300):
        kind = rng.choice(["take", "give", "lease"])
        if kind == "take":
            n = rng.randint(0, 12)
            if n > counts.free:
                with pytest.raises(OutOfPages) as caught:
                    counts.need(n)
                assert (caught.value.asked, caught.value.free, caught.value.capacity) == (n, counts.free, 40)
                continue
            device.take(n)
            counts.take(n)
        elif kind == "give":
            n = rng.randint(0, len(device.live))
            device.give(n)
            counts.give(n)
        else:
            lease = counts.open_lease(rng.randint(0, counts.free))
            before = len(device.live)
            peak = 0
            for _ in range(rng.randint(0, 4)):  # replays that take and free
                device.take(rng.randint(0, lease.pages.get("pages", 0) - (len(device.live) - before)))
                peak = max(peak, len(device.live) - before)
                device.give(rng.randint(0, len(device.live)))
            used = len(device.live) - before
            for _ in range(rng.randint(0, 3)):  # eager calls before it is settled
                if rng.random() < 0.5:
                    # the host may give only what it knows to be live
                    n = rng.randint(0, max(0, min(len(device.live), counts.live)))
                    device.give(n)
                    counts.give(n)
                else:
                    n = rng.randint(0, counts.free)
                    device.take(n)
                    counts.take(n)
            lease.settle(used, peak)
        assert (counts.live, counts.span, counts.holes) == (len(device.live), device.span, len(device.holes))
        assert counts.free == 40 - counts.live


def test_a_lease_is_refused_or_settled_without_a_trace():
    counts = Counts(8)
    counts.take(3)
    with pytest.raises(OutOfPages):
        counts.open_lease(6)
    with pytest.raises(InvalidArgument, match="at least 0"):
        counts.open_lease(-1)
    lease = counts.open_lease(5)
    assert counts.free == 0
    with pytest.raises(InvalidArgument, match=r"a lease of \{'pages': 5\} pages is open"):
        counts.open_lease(0)
    for used, peak in ((6, None), (-4, None), (2, 1), (1, 6)):
        with pytest.raises(InvalidArgument, match="cannot settle"):
            lease.settle(used, peak)
    lease.settle(2)
    assert (counts.live, counts.span, counts.free) == (5, 5, 3)
    with pytest.raises(InvalidArgument, match="settled before"):
        lease.settle(0)
