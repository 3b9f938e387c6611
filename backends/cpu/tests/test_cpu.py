"""What only the CPU backend has: blocks, whole pages and single cells must give what one cell at a time gives."""

import random

import pagebind_cpu
import pytest
import torch
from pagebind import plan
from pagebind.ops import OPERATIONS, READ_STREAM, READ_TABLE, TRANSLATE, ReadStreamSpec, ReadTableSpec, TranslateSpec
from pagebind.words import BAD_ID, new_state
from pagebind_cpu.cells import BLOCK, FEWEST

NUM_PAGES = 900
AWKWARD = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3, 777, FEWEST - 5]
WIDTH = FEWEST


def made(seed, form, page_size):
    """Return a v2p and a request table with holes, ids past the table and tombstones, as lists."""
    rng = random.Random(seed)
    v2p = [0, *rng.sample(range(1, NUM_PAGES), NUM_PAGES - 1), -1]
    for v in rng.sample(range(1, NUM_PAGES), 9):
        v2p[v] = -1
    ids = NUM_PAGES * (page_size if form == "token" else 1)
    wild = [-1, -(2**31), ids, 2**31 - 1]
    width = WIDTH if form == "token" else -(-WIDTH // page_size)
    rows = [[rng.choice(wild) if rng.random() < 0.05 else rng.randrange(ids) for _ in range(width)] for _ in AWKWARD]
    return v2p, rows


def entry(v2p, row, column, form, granularity, page_size):
    """Return one cell's entry and whether its id is past the table; multiplier 3."""
    if form == "token":
        token = row[column * page_size if granularity == "page" else column]
        virtual, offset = token // page_size, token % page_size
    else:
        virtual = row[column if granularity == "page" else column // page_size]
        offset = column % page_size
    if virtual < 0 or virtual >= NUM_PAGES or v2p[virtual] < 0:
        return 0, virtual >= NUM_PAGES
    page = v2p[virtual] * 3
    return (page if granularity == "page" else page * page_size + offset), False


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("granularity", ["page", "token"])
@pytest.mark.parametrize("form", ["page", "token"])
def test_any_mix_of_lengths_and_starts_equals_cell_by_cell(form, granularity, page_size):
    v2p, rows = made(page_size, form, page_size)
    unit = page_size if granularity == "page" else 1
    starts = [0, 0, 5, 70, 1, 0, 128, 2, 64, 0]
    out = torch.full((len(rows) + 2, WIDTH + 3), 7, dtype=torch.int64)[1:-1, 1 : 1 + -(-WIDTH // unit)]
    base = out._base
    expected, past = base.clone(), 0
    stream = []
    indptr = [2]
    for b, (length, start) in enumerate(zip(AWKWARD, starts, strict=True)):
        for column in range(start // unit, -(-length // unit)):
            value, wild = entry(v2p, rows[b], column, form, granularity, page_size)
            expected[b + 1, column + 1] = value
            stream.append(value)
            past += wild
        indptr.append(2 + len(stream))
    names = {"form": form, "granularity": granularity, "page_size": page_size, "multiplier": 3}
    names |= {"max_bs": 16, "num_physical": NUM_PAGES, "windowed": True, "out_dtype": torch.int64}
    table, lanes = torch.tensor(rows, dtype=torch.int32), torch.arange(len(rows), dtype=torch.int32)
    lengths, first = torch.tensor(AWKWARD, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32)
    pages = torch.tensor(v2p, dtype=torch.int32)

    state = new_state("cpu")
    built = plan(READ_TABLE, ReadTableSpec(max_width=WIDTH, **names), backend="cpu", device="cpu")
    built(table, lanes, lengths, pages, out=out, starts=first, state=state)
    assert torch.equal(base, expected)
    assert state[BAD_ID] == past

    # A stream's lengths count from the start.
    state, packed = new_state("cpu"), torch.full((len(stream) + 4,), 7, dtype=torch.int64)
    spec = ReadStreamSpec(max_items=len(packed), **names)
    streamed = plan(READ_STREAM, spec, backend="cpu", device="cpu")
    counted = (lengths - first).clamp(min=0)
    skipped = torch.tensor(indptr, dtype=torch.int32)
    streamed(table, lanes, counted, pages, skipped, out=packed, starts=first, state=state)
    assert packed.tolist() == [7, 7, *stream, 7, 7]
    assert state[BAD_ID] == past


def test_cost_goes_by_live_cells():
    """A copy of the request table, or of as much as the longest row of it, would need terabytes."""
    width = 2**20
    row = torch.arange(width, dtype=torch.int32)
    table = row.expand(width, width)
    bs = 2**16 + 1
    lengths = torch.ones(bs, dtype=torch.int32)
    lengths[-1] = width - 1
    v2p = torch.arange(width + 1, dtype=torch.int32).flip(0)
    spec = ReadStreamSpec(max_bs=bs, max_items=2 * width, page_size=1, num_physical=width + 1)
    out = torch.zeros(bs + width, dtype=torch.int32)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int()
    streamed = plan(READ_STREAM, spec, backend="cpu", device="cpu")
    streamed(table, torch.arange(bs, dtype=torch.int32), lengths, v2p, indptr, out=out)
    assert out[:3].tolist() == [width] * 3
    assert out[bs - 1 : bs + 2].tolist() == [width, width - 1, width - 2]
    assert out[bs + width - 3 :].tolist() == [2, 0, 0]


def test_translate_in_place_keeps_the_strides():
    v2p = torch.tensor([0, 40, 30, 20, 10, -1], dtype=torch.int32)
    memory = torch.tensor([[1, 9, 2, 9], [-1, 9, 5, 9], [3, 9, 4, 9]], dtype=torch.int32)
    ids = memory[:, ::2].t()
    call = plan(TRANSLATE, TranslateSpec(max_items=6, page_size=1, num_physical=41), backend="cpu", device="cpu")
    call(ids, v2p, out=ids)
    assert memory.tolist() == [[40, 9, 30, 9], [0, 9, 0, 9], [20, 9, 10, 9]]


def test_every_operation_and_every_feature_is_there():
    record = pagebind_cpu.backend
    assert record.planners.keys() == OPERATIONS.keys()
    assert record.compile_count() == 0
    assert record.reason_against("cpu") is None
