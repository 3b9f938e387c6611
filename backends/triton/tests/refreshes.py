"""Refresh and touch by kernels and by their composed forms, step after step; print which steps differ, as JSON.

The words, lengths, rows and starts are mostly what calls leave there, and now and then anything.
"""

import json
import sys
from random import Random

import torch
from pagebind import LaunchOptions
from pagebind.ops import REFRESH_TABLE, TOUCH, RefreshTableSpec, TouchSpec
from pagebind.ops.refresh_table import BUILT_LIVE, BUILT_WORDS, new_built
from pagebind.ops.touch import VERSION_WORDS, new_versions
from pagebind.words import EPOCH, new_state
from pagebind_triton import backend

CPU = torch.device("cpu")
DTYPES = (torch.int32, torch.int64)
# Cells of a program, programs: lanes that a program owns, and that are judged at once, differ as well.
SIZES = ((16, 4), (4, 1), (64, 2), (8, 7))
MOST, LEAST = 2**31 - 1, -(2**31)
ODD = (0, 1, 2, 5, -1, -7, 40, 1000, MOST, MOST - 1, LEAST, LEAST + 1)


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
        self.rows, self.width = random.choice((1, 5, 33, 90)), random.choice((1, 7, 40, 150))
        tokens = self.width * (ps if granularity == "page" else 1)
        self.columns = -(-tokens // ps) if form == "page" else max(tokens - random.randint(0, ps - 1), 1)
        self.tokens = self.columns * (ps if form == "page" else 1)
        self.width = min(self.width, -(-self.tokens // ps) if granularity == "page" else self.tokens)
        self.spec = RefreshTableSpec(
            max_bs=random.choice((self.rows, self.rows, 200)),
            max_width=random.choice((self.width, self.width, 2**26)),
            page_size=ps,
            num_physical=900,
            form=form,
            granularity=granularity,
            fill=fill,
            multiplier=random.choice((1, 1, 6)),
            windowed=random.random() < 0.5,
            borrowed=random.random() < 0.5,
            index_dtype=index,
            row_dtype=row,
            length_dtype=length,
            out_dtype=out,
        )
        requests = self.requests = random.choice((1, self.rows, self.rows + 9))
        ids = 500 * (ps if form == "token" else 1)
        self.request_table = torch.randint(-2, ids, (requests, self.columns + 3), dtype=torch.int32)[:, : self.columns]
        self.v2p = torch.randint(-1, 900, (501 if random.random() < 0.9 else 1,), dtype=index)
        self.v2p[-1] = -1
        self.memory = torch.full((self.rows, self.width + random.choice((0, 5))), 88, dtype=out)
        # At an odd place in memory two words may not be read at once.
        self.shift = random.choice((0, 1))
        self.built = self.at_its_place(new_built(self.rows, self.width, CPU))
        self.versions = new_versions(requests, CPU)
        self.first = torch.zeros(requests, dtype=torch.int32)
        self.state = new_state(CPU)
        self.row_of = [random.randrange(requests) for _ in range(self.rows)]
        self.lens = [random.randint(0, self.tokens) for _ in range(self.rows)]
        self.starts = [random.randint(0, n) for n in self.lens]

    def at_its_place(self, built):
        """Return a copy of `built`, as aligned as that of this world."""
        words = torch.zeros(self.rows * BUILT_WORDS + 1, dtype=torch.int32)
        return words[self.shift : self.shift + self.rows * BUILT_WORDS].view(self.rows, BUILT_WORDS).copy_(built)

    def move(self):
        """Change what a step of an engine may change, and what none may."""
        random = self.random
        if random.random() < 0.7:  # a step of decoding
            self.lens = [n + random.choice((0, 1, 1, 1, self.spec.page_size, 9)) for n in self.lens]
            self.starts = [n + random.choice((0, 1, self.spec.page_size)) for n in self.starts]
        if random.random() < 0.4:  # rows lose pages at both ends
            self.lens = [n - random.choice((0, 1, self.spec.page_size)) for n in self.lens]
            self.first += torch.randint(0, 3, self.first.shape, dtype=torch.int32)
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
            else:
                self.built[b, random.randrange(BUILT_LIVE + 1)] = odd(random, self.width)
        if random.random() < 0.1:
            self.state[EPOCH] = random.choice((1, 7, 2**31, 2**63 - 1, -5, 2**32))

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
        return (self.request_table, torch.tensor(self.row_of[:bs], dtype=spec.row_dtype), lens, self.v2p), more

    def step(self, launches):
        """Refresh by each launch from what the words say; return which tensors differ. No cell holds what it should."""
        lanes, more = self.lanes()
        results = []
        for launch in launches:
            memory, built, state = self.memory.clone(), self.at_its_place(self.built), self.state.clone()
            launch(*lanes, out=memory[:, : self.width], built=built, versions=self.versions, state=state, **more)
            results.append((memory, built, state))
        _, self.built, self.state = results[0]
        names = ("out", "built", "state")
        return [name for name, a, b in zip(names, *results, strict=True) if not torch.equal(a, b)]


def refreshes(seeds, steps):
    """Return how many steps agree, and what differs where."""
    right, wrong = 0, []
    for seed in seeds:
        for fill in ("prefix", "sink"):
            threads, programs = SIZES[seed % len(SIZES)]
            world = World(seed, fill)
            options = LaunchOptions(threads=threads, programs=programs, count=seed % 5 != 0)
            how = (world.spec, CPU)
            launches = [REFRESH_TABLE.compose(*how, {}, options), backend.planners["refresh_table"](*how, options)]
            for step in range(steps):
                differ = world.step(launches)
                right += not differ
                wrong += [[seed, fill, step, differ, str(world.spec)]] if differ else []
                world.move()
    return right, wrong


def touches(seeds):
    """Return how many touches agree, and which do not."""
    right, wrong = 0, []
    for seed in seeds:
        random = Random(seed)
        requests, bs = random.choice((0, 1, 50)), random.choice((1, 33, 70))
        spec = TouchSpec(max_bs=bs, row_dtype=random.choice(DTYPES), length_dtype=random.choice(DTYPES))
        rows = torch.tensor(random.sample(range(-2, requests + 2), min(bs, requests + 4)), dtype=spec.row_dtype)
        bound = torch.iinfo(spec.length_dtype)
        tokens = [random.choice((bound.min, -1, 0, 5, MOST, bound.max)) for _ in rows]
        versions = torch.randint(LEAST, MOST, (requests, VERSION_WORDS), dtype=torch.int64).int()
        versions[:1, 0] = MOST  # wraps around
        results = []
        for plan in (backend.planners["touch"], lambda *given: TOUCH.compose(*given[:2], {}, given[2])):
            words, state = versions.clone(), new_state(CPU)
            launch = plan(spec, CPU, LaunchOptions(count=seed % 2 == 0))
            launch(words, rows, torch.tensor(tokens, dtype=spec.length_dtype), state=state)
            results.append((words, state))
        same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        right += same
        wrong += [] if same else [[seed, str(spec)]]
    return right, wrong


def main():
    """Run as many seeds, from the first one on, and steps as the arguments say."""
    first, seeds, steps = map(int, sys.argv[1:])
    seeds = range(first, first + seeds)
    json.dump({"refresh": refreshes(seeds, steps), "touch": touches(seeds)}, sys.stdout)


if __name__ == "__main__":
    main()
