"""Read tables of a pool that are kept: whatever the pool did since, a refresh leaves the cells of a fresh build."""

import random

import pytest
import torch
from pagebind import available_backends
from pagebind.errors import FaultError, InvalidArgument
from pagebind.pool import SubPool, UnifiedPool

FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
WINDOW = SubPool(name="window", page_size=4, page_bytes=32, grows="float", ids_of="full")
STATE = SubPool(name="state", page_size=1, page_bytes=128, grows="down")
CONTEXT, ROWS, PAGE = 48, 5, 4
WORN = 77
"""What tables hold before their first refresh."""

ON_CUDA = [c.name for c in available_backends("cuda") if c.reason is None] if torch.cuda.is_available() else []
PLACES = [("cpu", "cpu"), *((name, "cuda") for name in ON_CUDA)]


def make(backend="cpu", device="cpu", form="page", **settings):
    total = 160 + 2048  # the sinks, and few enough pages that the sub-pools make each other move
    return UnifiedPool(
        sum(s.page_bytes for s in (FULL, WINDOW, STATE)) + total,
        [FULL, WINDOW, STATE],
        **{"max_requests": ROWS, "max_context": CONTEXT, "max_bs": ROWS, "max_tokens": 64, "form": form},
        **{"backend": backend, "device": device, **settings},
    )


class Kept:
    """A kept table beside the plan of fresh builds of the same."""

    def __init__(self, pool, name, granularity, fill, windowed):
        self.pool, self.name, self.fill, self.windowed = pool, name, fill, windowed
        self.unit = PAGE if granularity == "page" else 1
        asked = {"name": name, "granularity": granularity, "fill": fill, "windowed": windowed}
        self.table = pool.read_table(CONTEXT // self.unit, **asked)
        self.fresh = pool.plan_read_table(CONTEXT // self.unit, **asked)
        self.table.cells.fill_(WORN)

    def compare(self, rows, lens, starts):
        pool, told = self.pool, {"starts": starts} if self.windowed else {}
        want = torch.full_like(self.table.cells, WORN)
        self.fresh(pool.requests.table, rows, lens, pool.tables[self.name].v2p, out=want, **told)
        got = self.table.refresh(rows, lens, **told)
        assert got is self.table.cells
        if self.fill == "sink":
            assert got.tolist() == want.tolist()
            return
        for lane, (n, start) in enumerate(zip(lens.tolist(), starts.tolist(), strict=True)):
            extent = slice(start // self.unit if self.windowed else 0, -(-n // self.unit))
            assert got[lane, extent].tolist() == want[lane, extent].tolist()


class Life:
    """Random calls of a pool, counted on the host as an engine counts them."""

    def __init__(self, pool, seed):
        self.pool, self.random = pool, random.Random(seed)
        self.rows, self.length, self.gone = [], {}, {}  # gone: pages that the window let go of

    def ints(self, *values):
        return torch.tensor(values, dtype=torch.int32, device=self.pool.device)

    def batch(self):
        """Return rows, lengths and window starts of some of the requests; starts may lie before what is gone."""
        lanes = self.rows if self.random.random() < 0.5 else self.random.sample(self.rows, len(self.rows))
        lanes = lanes[: self.random.randint(1, len(lanes))]
        starts = [min(self.random.choice((0, self.gone[row] * PAGE + 1)), self.length[row]) for row in lanes]
        return self.ints(*(r.index for r in lanes)), self.ints(*(self.length[r] for r in lanes)), self.ints(*starts)

    def held(self, tokens):
        return -(-tokens // PAGE)

    def start(self):
        if len(self.rows) < ROWS:
            row = self.pool.open_row()
            self.rows.append(row)
            self.length[row] = self.gone[row] = 0

    def append(self):
        row = self.random.choice(self.rows)
        n = min(self.random.choice((1, 1, 1, 2, 7)), CONTEXT - self.length[row])
        new = self.pool.new_pages(self.length[row], n)
        if not n or not self.pool.can_reserve({"full": new, "window": new}):
            return
        slots = {name: torch.empty(n, dtype=torch.int32, device=self.pool.device) for name in ("full", "window")}
        at = self.ints(row.index), self.ints(self.length[row]), self.ints(0, n)
        self.pool.extend(*at, slots=slots, pages=new)
        self.length[row] += n

    def cut(self):
        row = self.random.choice(self.rows)
        n, keep = self.length[row], self.random.randint(0, self.length[row])
        back = {"full": self.held(n) - self.held(keep), "window": self.held(n) - max(self.held(keep), self.gone[row])}
        back["window"] = max(back["window"], 0)
        self.pool.truncate(self.ints(row.index), self.ints(n), self.ints(keep), pages=back)
        self.length[row], self.gone[row] = keep, min(self.gone[row], self.held(keep))

    def slide(self):
        row = self.random.choice(self.rows)
        begin = self.random.randint(0, self.length[row])
        pages = max(begin // PAGE - self.gone[row], 0)
        self.pool.evict_window(self.ints(row.index), self.ints(begin), pages=pages)
        self.gone[row] += pages

    def end(self):
        row = self.rows.pop(self.random.randrange(len(self.rows)))
        n = self.length[row]
        pages = {"full": self.held(n), "window": self.held(n) - self.gone[row]}
        self.pool.release([row], self.ints(row.index), self.ints(n), pages=pages)
        self.start()

    def close_holes(self):
        self.pool.compact(name=self.random.choice(("full", "window")), side=self.random.choice(("low", "high")))

    def write(self):
        """Swap two pages of a row, as somebody else's code would."""
        row = self.random.choice(self.rows)
        if self.held(self.length[row]) > 1:
            cells = self.pool.requests.table[row.index]
            width = PAGE if self.pool.form == "token" else 1
            last = (self.length[row] // PAGE - 1) * width
            if last >= width and self.gone[row] == 0:
                moved = cells[last : last + width].clone()
                cells[last : last + width], cells[:width] = cells[:width].clone(), moved
                self.pool.touch(self.ints(row.index), self.ints(0))

    def step(self):
        if not self.rows:
            self.start()
        calls = (self.append, self.cut, self.slide, self.end, self.close_holes, self.write, self.start)
        self.random.choices(calls, weights=(12, 2, 3, 1, 1, 1, 2))[0]()
        if not self.rows:
            self.start()


@pytest.mark.parametrize("form", ["page", "token"])
@pytest.mark.parametrize(("backend", "device"), PLACES)
def test_a_kept_table_is_a_fresh_build_whatever_the_pool_did(backend, device, form):
    pool = make(backend, device, form)
    life = Life(pool, seed=f"{form}")
    kept = [
        Kept(pool, "full", "page", "prefix", False),
        Kept(pool, "full", "token", "sink", False),
        Kept(pool, "window", "page", "sink", True),
        Kept(pool, "window", "token", "prefix", True),
    ]
    for _ in range(400):
        life.step()
        for one in kept:
            if life.random.random() < 0.5:  # each at its own pace
                one.compare(*life.batch())
    assert pool.audit() == []
    pool.check()


@pytest.mark.parametrize(("backend", "device"), PLACES)
def test_a_steady_refresh_writes_the_new_column_and_nothing_else(backend, device):
    pool = make(backend, device)
    row = pool.open_row()

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device=pool.device)

    pool.extend(ints(row.index), ints(0), ints(0, 8), slots=torch.empty(8, dtype=torch.int32, device=device), pages=2)
    table = pool.read_table(8)
    before = table.refresh(ints(row.index), ints(8)).tolist()[0]
    table.cells.fill_(WORN)
    pool.extend(ints(row.index), ints(8), ints(0, 1), slots=torch.empty(1, dtype=torch.int32, device=device), pages=1)
    after = table.refresh(ints(row.index), ints(9)).tolist()[0]
    assert after == [WORN, WORN, before[1] + 1, *[WORN] * 5]
    table.forget()
    assert table.refresh(ints(row.index), ints(9)).tolist()[0][:4] == [*before[:2], before[1] + 1, WORN]


def test_writes_by_others_are_seen_from_the_declared_token_on():
    pool = make()
    row = pool.open_row()
    rows = torch.tensor([row.index], dtype=torch.int32)
    lens = torch.tensor([12], dtype=torch.int32)
    none = torch.zeros(1, dtype=torch.int32)
    indptr = torch.tensor([0, 12], dtype=torch.int32)
    pool.extend(rows, none, indptr, slots=torch.empty(12, dtype=torch.int32), pages=3)
    table = pool.read_table(12)
    first = table.refresh(rows, lens)[0, :3].tolist()
    pool.requests.table[row.index, :3] = pool.requests.table[row.index, :3].flip(0)
    assert table.refresh(rows, lens)[0, :3].tolist() == first
    pool.touch(rows, torch.tensor([8], dtype=torch.int32))
    assert table.refresh(rows, lens)[0, :3].tolist() == [first[0], first[1], first[0]]
    pool.touch(rows, none)
    assert table.refresh(rows, lens)[0, :3].tolist() == first[::-1]


def test_what_a_kept_table_refuses_changes_nothing():
    pool = make(checks="full")
    table = pool.read_table(8)
    bad = torch.tensor([ROWS], dtype=torch.int32)
    with pytest.raises(FaultError, match=r"refresh_table was refused.*bad_row"):
        table.refresh(bad, bad)
    with pytest.raises(FaultError, match=r"touch was refused.*bad_row"):
        pool.touch(bad, bad)
    assert pool.requests.versions.any().item() is False
    with pytest.raises(InvalidArgument, match="starts is given, windowed=False"):
        table.refresh(bad, bad, starts=bad)
    with pytest.raises(InvalidArgument, match="out has 13 columns, but"):
        pool.read_table(13)
    with pytest.raises(InvalidArgument, match="granularity is 'token' in a group of 2 ranks"):
        make(ranks=2, rank=0).read_table(8, granularity="token")
