"""What only the CPU backend has: a refresh that looks at new columns alone must equal the composed form."""

import random

import pytest
import torch
from pagebind import plan
from pagebind.operation import LaunchOptions
from pagebind.ops import READ_TABLE, ReadTableSpec, RefreshTableSpec, TouchSpec
from pagebind.ops import refresh_table as core_refresh
from pagebind.ops import touch as core_touch
from pagebind.words import EPOCH, new_state
from pagebind_cpu import refresh_table, touch
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
EXTREMES = [2**31 - 1, -(2**31), -1, 0, 1, 2, 5]
SEEDS, STEPS = 6, 12
MOST_CALLS = 60  # torch calls of a decode step; judging the lanes as any other call does takes over 100


class Counted(TorchDispatchMode):
    """Counts torch calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Pair:
    """The same call on the composed form and on this backend, each with tensors of its own."""

    def __init__(self, rng, spec, table, count):
        options, rows, width = LaunchOptions(count=count), rng.randrange(1, 7), spec.max_width
        touched = TouchSpec(max_bs=6, row_dtype=spec.row_dtype, length_dtype=spec.length_dtype)
        self.refreshes = core_refresh.compose(spec, CPU, {}, options), refresh_table.plan(spec, CPU, options)
        self.touches = core_touch.compose(touched, CPU, {}, options), touch.plan(touched, CPU, options)
        self.backing = [torch.full((rows + 1, width + 3), 77, dtype=spec.out_dtype) for _ in range(2)]
        self.outs = [backing[1:, 1 : 1 + width] for backing in self.backing]
        self.builts = [core_refresh.new_built(rows, width, "cpu") for _ in range(2)]
        self.versions = [core_touch.new_versions(len(table), "cpu") for _ in range(2)]
        self.states = [new_state("cpu") for _ in range(2)]
        epoch, version = rng.choice([0, 2**31 - 1, 2**32 - 1, 2**40 + 5, -1]), rng.choice([0, 2**31 - 1, -1])
        for versions, state in zip(self.versions, self.states, strict=True):
            versions[:, core_touch.VERSION] = version
            state[EPOCH] = epoch

    def touch(self, rows, tokens):
        for call, versions, state in zip(self.touches, self.versions, self.states, strict=True):
            call(versions, rows, tokens, state=state)

    def refresh(self, *args, **kwargs):
        calls = zip(self.refreshes, self.outs, self.builts, self.versions, self.states, strict=True)
        for call, out, built, versions, state in calls:
            call(*args, out=out, built=built, versions=versions, state=state, **kwargs)

    def equal(self):
        return all(torch.equal(*both) for both in (self.backing, self.builts, self.versions, self.states))


def drawn(rng, **names):
    """Return a random spec, with cells of one page size, and the tokens of its request table."""
    page_size = rng.choice([1, 1, 2, 3, 4])
    dtypes = {name: rng.choice([torch.int32, torch.int64]) for name in ("row_dtype", "length_dtype", "index_dtype")}
    granularity = rng.choice(["token", "page"])
    tokens = 12 * page_size
    return tokens, RefreshTableSpec(
        max_bs=6,
        max_width=rng.randrange(1, (12 if granularity == "page" else tokens) + 1),
        page_size=page_size,
        num_physical=rng.choice([1, 2, 40]),
        form=rng.choice(["token", "page"]),
        granularity=granularity,
        multiplier=rng.choice([1, 3]),
        out_dtype=rng.choice([torch.int32, torch.int64]),
        **dtypes,
        **names,
    )


def disturb(rng, pair, v2p, spec):
    """Rebind everything, or leave words behind that no refresh wrote."""
    kind = rng.random()
    if kind < 0.08:
        v2p[1:] = torch.randint(-1, spec.num_physical, (len(v2p) - 1,))
        for state in pair.states:
            state[EPOCH] += 1
    elif kind < 0.2:
        row, word, value = rng.randrange(len(pair.builts[0])), rng.randrange(8), rng.choice(EXTREMES)
        for built in pair.builts:
            built[row, word] = value
    elif kind < 0.23:
        pair.builts[1].copy_(pair.builts[0].random_(-(2**31), 2**31 - 1))


@pytest.mark.parametrize("few", [0, 8, refresh_table.FEW])
@pytest.mark.parametrize(
    "names",
    [{}, {"windowed": True}, {"borrowed": True}, {"windowed": True, "borrowed": True}],
    ids=["plain", "windowed", "borrowed", "both"],
)
@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_any_sequence_equals_the_composed_form(fill, names, few, monkeypatch):
    monkeypatch.setattr(refresh_table, "FEW", few)
    monkeypatch.setattr(refresh_table, "LONG", 5 if few == 8 else refresh_table.LONG)
    for seed in range(SEEDS):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        tokens, spec = drawn(rng, fill=fill, **names)
        max_requests, num_virtual = rng.choice([0, 1, 6, 6]), rng.choice([1, 40, 60])
        ids = num_virtual * (spec.page_size if spec.form == "token" else 1)
        cells = tokens if spec.form == "token" else 12
        table = torch.randint(-1, ids + 2, (max_requests, cells + 2), dtype=torch.int32)[:, :cells]
        v2p = torch.randint(-1, spec.num_physical, (num_virtual + 1,), dtype=spec.index_dtype)
        first = torch.zeros(max_requests, dtype=torch.int32)
        lengths = [rng.randrange(tokens) for _ in range(max_requests)]
        pair, rows = Pair(rng, spec, table, count=rng.random() < 0.8), None
        delta = rng.choice([0, 0, 0, 1, -2, 2**31 - 1])
        for step in range(STEPS):
            for r in range(max_requests):
                kind = rng.random()
                if kind < 0.5:
                    lengths[r] = min(tokens + 1, lengths[r] + rng.choice([1, 1, 1, 2, 5]))
                elif kind < 0.6:
                    keep = rng.randrange(lengths[r] + 1)
                    lengths[r] = min(tokens, keep + rng.randrange(4))
                    table[r, keep if spec.form == "token" else -(-keep // spec.page_size) :].random_(-1, ids)
                    lanes = torch.tensor([r, rng.choice([-1, max_requests, r])], dtype=spec.row_dtype)
                    pair.touch(lanes, torch.tensor([keep, keep], dtype=spec.length_dtype))
                elif kind < 0.65:
                    first[r] = rng.choice(EXTREMES)
            disturb(rng, pair, v2p, spec)
            if rows is None or rng.random() < 0.3:
                choices = [*range(max_requests)] * 8 + [max_requests, -1]
                rows = [rng.choice(choices) for _ in range(rng.randrange(1, len(pair.builts[0]) + 1))]
            seq_lens = [lengths[r] if 0 <= r < max_requests else 3 for r in rows]
            if rng.random() < 0.05:
                seq_lens[0] = rng.choice(EXTREMES)
            extra = {"first": first} if spec.borrowed else {}
            if spec.windowed:
                starts = [rng.choice([0, 0, 1, 3, 7, *EXTREMES]) for _ in rows]
                extra["starts"] = torch.tensor(starts, dtype=spec.length_dtype)
            lanes = torch.tensor(rows, dtype=spec.row_dtype), torch.tensor(seq_lens, dtype=spec.length_dtype)
            pair.refresh(table, *lanes, v2p, seq_len_delta=delta, **extra)
            assert pair.equal(), (seed, step, spec)


@pytest.mark.parametrize("tokens", [{}, {"seq_len_delta": 1}])
@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_a_decode_step_is_a_few_torch_calls_whatever_the_length(fill, tokens):
    bs, length, num_pages = 5, 9000, 700
    names = {"max_bs": bs, "max_width": length + 99, "page_size": 1, "num_physical": num_pages, "fill": fill}
    table = torch.randint(num_pages, (bs + 1, length + 99), dtype=torch.int32)
    v2p = torch.arange(num_pages + 1, dtype=torch.int32)
    rows, lengths = torch.arange(bs, 0, -1, dtype=torch.int32), torch.full((bs,), length, dtype=torch.int32)
    out, expected = (torch.zeros((bs + 2, length + 99), dtype=torch.int32) for _ in range(2))
    built, versions = core_refresh.new_built(bs + 2, length + 99, "cpu"), core_touch.new_versions(bs + 1, "cpu")
    state, counted = new_state("cpu"), new_state("cpu")
    call = refresh_table.plan(RefreshTableSpec(**names), CPU, LaunchOptions())
    call(table, rows, lengths, v2p, out=out, built=built, versions=versions, state=state, **tokens)
    for new in (1, 1, 0, 3):
        lengths += new
        if new == 3:
            lengths[1:3] -= torch.tensor([1, 3], dtype=torch.int32)
        with Counted() as counter:
            call(table, rows, lengths, v2p, out=out, built=built, versions=versions, state=state, **tokens)
        assert counter.calls <= MOST_CALLS, "a decode step judged its lanes as any other call"
    fresh = plan(READ_TABLE, ReadTableSpec(**names), backend="cpu", device="cpu")
    fresh(table, rows, lengths, v2p, out=expected, state=counted, **tokens)
    assert torch.equal(out, expected)
    assert torch.equal(state, counted)
