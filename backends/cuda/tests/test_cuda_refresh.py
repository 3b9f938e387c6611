"""refresh_table and touch by kernels do what their composed forms do, to the bit, whatever their words hold."""

from random import Random

import pytest
import torch
from pagebind import LaunchOptions
from pagebind.ops import REFRESH_TABLE, TOUCH, RefreshTableSpec, TouchSpec
from pagebind.ops import refresh_table as judging
from pagebind.ops.refresh_table import BUILT_WORDS, NOTHING, new_built
from pagebind.ops.touch import VERSION_WORDS, new_versions
from pagebind.words import CLIPPED, EPOCH, STATE_WORDS, TICKET, new_state
from pagebind_cuda import backend
from pagebind_cuda import refresh_table as planning

CPU = torch.device("cpu")
DTYPES = (torch.int32, torch.int64)
# Loops take second trips in the first three: few lanes a block, few blocks, and few cells make a lane large.
OPTIONS = {
    "warp": LaunchOptions(threads=32, programs=1),
    "few": LaunchOptions(),
    "blocks": LaunchOptions(threads=32, programs=7),
    "block": LaunchOptions(threads=1024, programs=2, count=False),
}
MOST, LEAST = 2**31 - 1, -(2**31)
ODD = (0, 1, 2, 5, -1, -7, 40, 1000, MOST, MOST - 1, LEAST, LEAST + 1)
SEEDS = 10
STEPS = 8


@pytest.fixture(autouse=True)
def _compiler():
    reason = backend.reason_against("cpu")
    if reason is not None:
        pytest.skip(reason)


def odd(random, most, dtype=torch.int32):
    """Return a length, row or the like: mostly of [0, most], now and then anything."""
    if random.random() < 0.9:
        return random.randint(0, most)
    return random.choice(ODD if dtype is torch.int32 else (*ODD, 2**63 - 1, -(2**63)))


class World:
    """The tensors of a table that is refreshed step after step, and of what it follows."""

    def __init__(self, seed, fill):
        random = self.random = Random(f"{seed}{fill}")
        torch.manual_seed(seed)
        form, granularity = random.choice(("token", "page")), random.choice(("token", "page"))
        ps = random.choice((1, 1, 3, 16))
        index, row, length, out = random.choices(DTYPES, k=4)
        self.rows = random.choice((1, 5, 33, 80))
        self.width = random.choice((1, 7, 90, 700, 1600))
        tokens = self.width * (ps if granularity == "page" else 1)
        self.columns = -(-tokens // ps) if form == "page" else max(tokens - random.randint(0, ps - 1), 1)
        self.tokens = self.columns * (ps if form == "page" else 1)
        self.width = min(self.width, -(-self.tokens // ps) if granularity == "page" else self.tokens)
        self.spec = RefreshTableSpec(
            max_bs=self.rows,
            max_width=self.width,
            page_size=ps,
            num_physical=900,
            form=form,
            granularity=granularity,
            fill=fill,
            multiplier=random.choice((1, 1, 6)),
            windowed=random.random() < 0.4,
            borrowed=random.random() < 0.4,
            index_dtype=index,
            row_dtype=row,
            length_dtype=length,
            out_dtype=out,
        )
        self.requests = random.choice((1, self.rows, self.rows + 9))
        ids = 500 * (ps if form == "token" else 1)
        self.request_table = torch.randint(-2, ids, (self.requests, self.columns + 3), dtype=torch.int32)[
            :, : self.columns
        ]
        self.v2p = (
            torch.randint(-1, 900, (501,), dtype=index) if random.random() < 0.9 else torch.full((1,), -1, dtype=index)
        )
        self.memory = torch.full((self.rows, self.width + random.choice((0, 5))), 88, dtype=out)
        # An odd place in memory: no access of 16 bytes may be made to it.
        shift = random.choice((0, 0, 1))
        words = torch.zeros(self.rows * BUILT_WORDS + 8, dtype=torch.int32)
        self.built = words[shift : shift + self.rows * BUILT_WORDS].view(self.rows, BUILT_WORDS)
        self.built.copy_(new_built(self.rows, self.width, CPU))
        self.versions = new_versions(self.requests, CPU)
        self.first = torch.zeros(self.requests, dtype=torch.int32)
        self.state = new_state(CPU)
        self.row_of = [random.randrange(self.requests) for _ in range(self.rows)]
        self.lens = [random.randint(0, self.tokens) for _ in range(self.rows)]
        self.starts = [random.randint(0, n) for n in self.lens]

    def move(self):
        """Change what a step of an engine may change, and what none may."""
        random = self.random
        if random.random() < 0.7:  # a step of decoding
            self.lens = [n + random.choice((0, 1, 1, 1, self.spec.page_size, 9)) for n in self.lens]
            self.starts = [n + random.choice((0, 1, self.spec.page_size)) for n in self.starts]
        for _ in range(random.choice((0, 0, 1, 2, 9))):
            b, r = random.randrange(self.rows), random.randrange(self.requests)
            what = random.choice(("row", "swap", "touch", "touch", "lens", "first", "garbage"))
            if what == "row":
                self.row_of[b] = odd(random, self.requests, self.spec.row_dtype)
            elif what == "swap":
                self.row_of[b], self.row_of[0] = self.row_of[0], self.row_of[b]
                self.lens[b], self.lens[0] = self.lens[0], self.lens[b]
            elif what == "touch":
                self.versions[r, 0] += random.choice((1, 1, 1, 2, MOST))
                self.versions[r, 1] = odd(random, self.tokens)
                self.request_table[r, random.randrange(self.columns) :] += 1
            elif what == "lens":
                self.lens[b] = odd(random, self.tokens, self.spec.length_dtype)
                self.starts[b] = odd(random, self.tokens, self.spec.length_dtype)
            elif what == "first":
                self.first[r] = odd(random, self.columns)
            elif what == "garbage":
                self.built[b, random.randrange(BUILT_WORDS)] = odd(random, self.width)
        if random.random() < 0.1:
            self.state[EPOCH] = random.choice((1, 7, 2**31, 2**63 - 1, -5, 2**32))
        if random.random() < 0.1:
            self.v2p.copy_(self.v2p.roll(1))

    def lanes(self):
        """Return the arguments of a call, all but what it writes."""
        random, spec = self.random, self.spec
        bs = random.choice((1, self.rows, self.rows, random.randint(1, self.rows)))
        bound = torch.iinfo(spec.length_dtype)
        lens = torch.tensor([min(max(n, bound.min), bound.max) for n in self.lens[:bs]], dtype=spec.length_dtype)
        starts = torch.tensor([min(max(n, bound.min), bound.max) for n in self.starts[:bs]], dtype=spec.length_dtype)
        more = {"starts": starts} if spec.windowed else {}
        more |= {"first": self.first} if spec.borrowed else {}
        more["seq_len_delta"] = random.choice((0, 0, 0, 1, -2, MOST, -MOST))
        rows = torch.tensor(self.row_of[:bs], dtype=spec.row_dtype)
        return (self.request_table, rows, lens, self.v2p), more

    def copies(self):
        """Return copies of what a call writes: `out` with what lies beside it, `built` as aligned as it is, `state`."""
        words = torch.zeros(self.built.numel() + 8, dtype=torch.int32)
        shift = self.built.storage_offset()
        built = words[shift : shift + self.built.numel()].view(self.built.shape)
        return self.memory.clone(), built.copy_(self.built), self.state.clone()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("fill", ["prefix", "sink"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_refreshed_tables_are_those_of_the_composed_form(seed, fill, options):
    world = World(seed, fill)
    assert REFRESH_TABLE.compose is not None
    launches = (
        REFRESH_TABLE.compose(world.spec, CPU, backend.planners, options),
        backend.planners["refresh_table"](world.spec, CPU, options),
    )
    for step in range(STEPS):
        lanes, more = world.lanes()
        results = []
        for launch in launches:
            memory, built, state = world.copies()
            launch(*lanes, out=memory[:, : world.width], built=built, versions=world.versions, state=state, **more)
            results.append((memory, built, state))
        for name, expected, got in zip(("out", "built", "state"), *results, strict=True):
            assert torch.equal(expected, got), f"{name} of step {step}: {world.spec}"
        world.memory.fill_(step)  # so that it shows which cells the next call writes
        world.state = results[0][2]
        world.built.copy_(results[0][1])
        world.move()


def measures(spec, lanes, words, width):
    """Return what makes a lane large, int64 `[bs, 3]`: refresh.cuh compares each with a bound."""
    written = lanes.low - lanes.begin + lanes.end - lanes.high
    if spec.fill == "prefix":
        return written[:, None]
    old = words[:, judging.BUILT_FIRST : judging.BUILT_END + 1].long().clamp(0, width)
    return torch.stack([written, (lanes.begin - old[:, 0]).clamp(min=0), (old[:, 1] - lanes.end).clamp(min=0)], 1)


@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_blocks_agree_on_a_small_lane_whichever_words_of_it_are_written(fill):
    """What blocks go by bounds the cells to change, and is no more where some words of `built` are the new ones."""
    random, compared = Random(7), 0
    for seed in range(40):
        world = World(seed, fill)
        spec, width = world.spec, world.width
        for _ in range(3):
            world.move()
            (table, rows, lens, _), more = world.lanes()
            old = world.built[: len(rows)].clone()
            how = (world.versions, world.state, more.get("first"), more.get("starts"), more["seq_len_delta"])
            lanes = judging.lanes_of(spec, table, rows, lens, width, old, *how)
            most = measures(spec, lanes, old, width)
            if fill == "sink":
                changed = torch.cat([lanes.written()[0], judging.emptied(lanes, old, width)[0]])
                assert bool((torch.bincount(changed, minlength=len(rows)) <= most.sum(1)).all())
            world.built[: len(rows)] = lanes.words
            for _ in range(8):
                new = torch.tensor([[random.random() < 0.5 for _ in range(BUILT_WORDS)] for _ in rows])
                mixed = torch.where(new, lanes.words, old)
                seen = judging.lanes_of(spec, table, rows, lens, width, mixed, *how)
                assert bool((measures(spec, seen, mixed, width) <= most).all())
                compared += int((most > 0).sum())
    assert compared > 1000


@pytest.mark.parametrize("lanes", [1, 64, 65, 1030])
def test_steady_lanes_and_rebuilt_ones_of_any_batch(lanes):
    """More lanes than a block has threads; a launch in which all of them are large, then one in which none is."""
    width, small = 300, planning.SMALL
    spec = RefreshTableSpec(max_bs=lanes, max_width=width, page_size=1, num_physical=400, fill="sink")
    launch = backend.planners["refresh_table"](spec, CPU, LaunchOptions(threads=256, programs=3))
    table = torch.randint(1, 400, (lanes, width), dtype=torch.int32)
    v2p = torch.cat([torch.zeros(1), torch.randperm(399) + 1, torch.tensor([-1])]).int()
    rows, built = torch.randperm(lanes).int(), new_built(lanes, width, CPU)
    out, versions, state = torch.full((lanes, width), 7, dtype=torch.int32), new_versions(lanes, CPU), new_state(CPU)
    for length in (small + 60, small + 61, small + 61, 3, 299):
        lens = torch.full((lanes,), length, dtype=torch.int32)
        launch(table, rows, lens, v2p, out=out, built=built, versions=versions, state=state)
        assert torch.equal(out[:, :length], v2p[table[rows.long(), :length].long()])
        assert not out[:, length:].any()
        assert torch.equal(built, torch.tensor([[r, 0, 0, 0, length, 0, 0, 0] for r in rows.tolist()]).int())
        assert not state.any()


def test_a_ticket_and_counters_are_left_as_launches_expect_them():
    spec = RefreshTableSpec(max_bs=9, max_width=2000, page_size=1, num_physical=4)
    launch = backend.planners["refresh_table"](spec, CPU, LaunchOptions())
    table, state = torch.full((9, 2000), 3, dtype=torch.int32), new_state(CPU)
    rows = torch.tensor([0, 1, 2, 3, -1, 9, 6, 7, 8], dtype=torch.int32)
    lens = torch.tensor([2000, 2001, -1, 0, 5, 5, 7, 900, 1], dtype=torch.int32)
    built, versions = new_built(9, 2000, CPU), new_versions(9, CPU)
    v2p = torch.tensor([0, 1, 2, -1], dtype=torch.int32)
    for call in (1, 2):
        launch(table, rows, lens, v2p, out=torch.zeros_like(table), built=built, versions=versions, state=state)
        expected = [0] * STATE_WORDS
        expected[CLIPPED : CLIPPED + 3] = 2 * call, 2 * call, 2000 + 2000 + 7 + 900 + 1
        assert state.tolist() == expected
    assert state[TICKET] == 0
    assert built[4].tolist() == [NOTHING] + [0] * (BUILT_WORDS - 1)


@pytest.mark.parametrize("seed", range(8))
def test_touched_rows_are_those_of_the_composed_form(seed):
    random = Random(seed)
    requests, bs = random.choice((0, 1, 300)), random.choice((1, 33, 130, 300))
    spec = TouchSpec(max_bs=bs, row_dtype=random.choice(DTYPES), length_dtype=random.choice(DTYPES))
    rows = random.sample(range(-2, requests + 2), min(bs, requests + 4))
    rows = torch.tensor(rows, dtype=spec.row_dtype)
    bound = torch.iinfo(spec.length_dtype)
    tokens = [random.choice((bound.min, -1, 0, 5, MOST, bound.max)) for _ in rows]
    tokens = torch.tensor(tokens, dtype=spec.length_dtype)
    versions = torch.randint(LEAST, MOST, (requests, VERSION_WORDS), dtype=torch.int64).int()
    if requests:
        versions[0, 0] = MOST  # wraps around
    results = []
    assert TOUCH.compose is not None
    for plan in (backend.planners["touch"], lambda *given: TOUCH.compose(*given[:2], {}, given[2])):
        words, state = versions.clone(), new_state(CPU)
        plan(spec, CPU, LaunchOptions(count=seed % 2 == 0))(words, rows, tokens, state=state)
        results.append((words, state))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_row_touched_by_several_lanes_rises_by_as_many():
    versions = torch.zeros((3, VERSION_WORDS), dtype=torch.int32)
    launch = backend.planners["touch"](TouchSpec(max_bs=200), CPU, LaunchOptions())
    launch(versions, torch.ones(200, dtype=torch.int32), torch.full((200,), 4, dtype=torch.int32))
    assert versions.tolist() == [[0, 0], [200, 4], [0, 0]]
