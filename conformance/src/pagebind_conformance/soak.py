"""Drive a unified pool for very many operations, and end with a clean audit and no growth of memory.

    python -m pagebind_conformance.soak --backend cuda --device cuda --operations 1000000

One request table over full, window and state pages in one buffer that is too small for what is asked, so that sub-pools
push each other about all the time. The host keeps numbers only: lengths, windows, which rows are open.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from dataclasses import dataclass, field

import torch
from pagebind.errors import OutOfPages
from pagebind.pool import Row, SubPool, UnifiedPool

PAGE_SIZE = 4
CONTEXT = 256
WINDOW = 24
REQUESTS = 48
CHUNK = 64


@dataclass
class Request:
    """A running request: its row, tokens, tokens behind its window, and its state slot."""

    row: Row
    slot: torch.Tensor  # [1], int32
    length: int = 0
    evicted: int = 0  # pages


@dataclass
class Soak:
    """A pool and the requests in it; `counts` says how many operations of each kind were made."""

    pool: UnifiedPool
    rng: random.Random
    running: list[Request] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.pool.device
        numbers = torch.arange(CONTEXT + 1, dtype=torch.int32, device=device)
        self.number = numbers.split(1)
        self.pair = torch.stack((torch.zeros_like(numbers), numbers), 1).unbind()
        self.slots = {name: torch.empty(CHUNK, dtype=torch.int32, device=device) for name in ("full", "window")}

    def step(self) -> None:
        """Make one operation, or count that none was possible."""
        kind = self.rng.choices(("start", "extend", "evict", "cut", "end", "compact", "lease"), (3, 12, 6, 2, 2, 1, 1))[
            0
        ]
        able = getattr(self, f"_{kind}")()
        name = kind if able else f"{kind}: not possible"
        self.counts[name] = self.counts.get(name, 0) + 1

    def finish(self) -> None:
        """End every request."""
        while self.running:
            self._end()

    def _start(self) -> bool:
        if len(self.running) == REQUESTS:
            return self._end()
        try:
            slot = self.pool.alloc(1, name="state")
        except OutOfPages:
            return False
        self.running.append(Request(self.pool.open_row(), slot))
        return True

    def _extend(self) -> bool:
        request = self._some()
        if request is None:
            return False
        n = self.rng.randint(1, min(CHUNK, CONTEXT - request.length) or 1)
        if request.length + n > CONTEXT:
            return False
        pages = self.pool.new_pages(request.length, n)
        able = self.pool.can_reserve({"full": pages, "window": pages})
        slots = {name: cells[:n] for name, cells in self.slots.items()}
        try:
            self.pool.extend(
                self.number[request.row.index], self.number[request.length], self.pair[n], slots=slots, pages=pages
            )
        except OutOfPages:
            assert not able, "can_reserve said that it fits"
            return False
        assert able, "can_reserve said that it does not fit"
        request.length += n
        return True

    def _evict(self) -> bool:
        request = self._some()
        if request is None:
            return False
        begin = max(request.length - WINDOW, 0)
        pages = max(begin // PAGE_SIZE - request.evicted, 0)
        self.pool.evict_window(self.number[request.row.index], self.number[begin], pages=pages)
        request.evicted += pages
        return True

    def _cut(self) -> bool:
        request = self._some()
        if request is None:
            return False
        keep = self.rng.randint(min(request.length, request.evicted * PAGE_SIZE), request.length)
        held, kept = -(-request.length // PAGE_SIZE), -(-keep // PAGE_SIZE)
        pages = {"full": held - kept, "window": held - max(kept, request.evicted)}
        row = self.number[request.row.index]
        self.pool.truncate(row, self.number[request.length], self.number[keep], pages=pages)
        request.length, request.evicted = keep, min(request.evicted, kept)
        return True

    def _end(self) -> bool:
        request = self._some()
        if request is None:
            return False
        self.running.remove(request)
        held = -(-request.length // PAGE_SIZE)
        pages = {"full": held, "window": held - request.evicted}
        self.pool.release([request.row], self.number[request.row.index], self.number[request.length], pages=pages)
        self.pool.free(request.slot, name="state")
        return True

    def _compact(self) -> bool:
        name, side = self.rng.choice(["full", "window", "state"]), self.rng.choice(["high", "low"])
        return self.pool.compact(self.rng.randint(0, 20), name=name, side="low" if side == "low" else "high") > 0

    def _lease(self) -> bool:
        demand = {"full": self.rng.randint(0, 8), "window": self.rng.randint(0, 8), "state": self.rng.randint(0, 2)}
        able = self.pool.can_reserve(demand)
        try:
            lease = self.pool.reserve(demand)
        except OutOfPages:
            assert not able, "can_reserve said that it fits"
            return False
        assert able, "can_reserve said that it does not fit"
        lease.settle(0)
        return True

    def _some(self) -> Request | None:
        return self.rng.choice(self.running) if self.running else None


def make_pool(backend: str, device: str, total_bytes: int) -> UnifiedPool:
    """Return the pool that a soak drives."""
    full = SubPool(name="full", page_size=PAGE_SIZE, page_bytes=1024, grows="up")
    window = SubPool(name="window", page_size=PAGE_SIZE, page_bytes=2048, grows="float", ids_of="full")
    state = SubPool(name="state", page_size=1, page_bytes=16384, grows="down", zero_on_alloc=True)
    return UnifiedPool(
        total_bytes,
        [full, window, state],
        max_requests=REQUESTS,
        max_context=CONTEXT,
        max_bs=8,
        max_tokens=CHUNK,
        backend=backend,
        device=device,
        checks="count",
    )


def memory(device: torch.device) -> dict[str, int]:
    """Return bytes held on the device and by this process."""
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    return {"device": held, "host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main() -> None:
    """Run a soak and print what it was, as JSON; fails where the pool does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--audits", type=int, default=20, help="audits on the way, besides the last")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-bytes", type=int, default=2_500_000)
    asked = parser.parse_args()
    pool = make_pool(asked.backend, asked.device, asked.total_bytes)
    pool.warmup()
    soak = Soak(pool, random.Random(asked.seed))
    every = max(asked.operations // (asked.audits + 1), 1)
    first: dict[str, int] = {}
    begin = time.perf_counter()
    for done in range(1, asked.operations + 1):
        soak.step()
        if done % every == 0:
            wrong = pool.audit()
            assert not wrong, f"after {done} operations: {wrong[:5]}"
            pool.check()
            first = first or memory(pool.device)
    seconds = time.perf_counter() - begin
    last = memory(pool.device)
    soak.finish()
    assert pool.audit() == []
    pool.check()
    # A request's slot is a tensor of its own, so that as many as run are held.
    slack = REQUESTS * 512
    assert last["device"] <= first["device"] + slack, (
        f"device memory grew from {first['device']} to {last['device']} bytes"
    )
    assert last["host_peak"] < first["host_peak"] + 2**26, f"host memory grew from {first} to {last}"
    live = {name: sub_pool.live for name, sub_pool in pool.stats().sub_pools.items()}
    assert not any(live.values()), live
    told = {
        "backend": asked.backend,
        "device": asked.device,
        "operations": asked.operations,
        "seed": asked.seed,
        "seconds": round(seconds, 1),
        "counts": dict(sorted(soak.counts.items())),
        "memory_after_first_audit": first,
        "memory_at_end": last,
        "digest": pool.digest(),
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
