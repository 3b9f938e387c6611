"""What only the CPU backend has: blocks, whole pages and cells must give what one cell at a time gives."""

import random

import pagebind_cpu
import pytest
import torch
from pagebind import plan
from pagebind.ops import OPERATIONS, READ_STREAM, READ_TABLE, TRANSLATE, ReadStreamSpec, ReadTableSpec, TranslateSpec
from pagebind.words import BAD_ID, new_state
from pagebind_cpu import entries
from pagebind_cpu.cells import BLOCKS
from pagebind_cpu.entries import MANY

NUM_PAGES = 900
BLOCK, SMALL = BLOCKS
LONG = MANY // 4  # cells; four such lanes are looked up together in another way than one
AWKWARD = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, SMALL, SMALL - 1, 777, LONG, LONG - 1]
WIDTH = LONG + 3


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
    starts = [0, 0, 5, 70, 1, 0, 128, 0, 2, 64, 0, 0]
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


def passed(table, lengths, v2p, **names):
    """Return a read table, its counter of ids past the table, and what both have to be; form and granularity page."""
    num_pages, bs = len(v2p) - 1, len(lengths)
    spec = ReadTableSpec(max_bs=bs, max_width=WIDTH, page_size=4, num_physical=num_pages, form="page", **names)
    state, out = new_state("cpu"), torch.full((bs, WIDTH), 7, dtype=spec.out_dtype)
    expected, past = out.tolist(), 0
    for b, (row, length) in enumerate(zip(table.tolist(), lengths, strict=True)):
        known = [v if 0 <= v < num_pages else num_pages for v in row[:length]]
        expected[b][:length] = [max(v2p[v], 0) * spec.multiplier for v in known]
        past += sum(v >= num_pages for v in row[:length])
    call = plan(READ_TABLE, spec, backend="cpu", device="cpu")
    lanes, tokens = torch.arange(bs, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32) * 4
    call(table, lanes, tokens, torch.tensor(v2p, dtype=spec.index_dtype), out=out, state=state)
    return out.tolist(), int(state[BAD_ID]), expected, past


@pytest.mark.parametrize("wild", [[], [-1], [-(2**31)], [NUM_PAGES], [2**31 - 1], [NUM_PAGES + 1, -5, NUM_PAGES]])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("out_dtype", [torch.int32, torch.int64])
def test_long_lanes_of_sound_ids_may_stand_beside_others(wild, index_dtype, out_dtype):
    rng = random.Random(len(wild))
    # A row 0 that is not the sink's would tell of an id that was clamped to it.
    v2p = [3, *(rng.choice([-1, v]) for v in range(1, NUM_PAGES)), -1]
    table = torch.randint(NUM_PAGES, (5, WIDTH), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    for at, value in enumerate(wild):
        table[2, LONG - 1 - at] = value
        table[3, 7 * at] = value
    table[2, LONG] = table[1, LONG + 1] = NUM_PAGES  # behind the lane's end
    lengths = [LONG + 2, LONG, LONG, 40, LONG + 1]
    dtypes = {"index_dtype": index_dtype, "out_dtype": out_dtype}
    for multiplier in (1, 3):
        found, counted, expected, past = passed(table, lengths, v2p, multiplier=multiplier, **dtypes)
        assert found == expected
        assert counted == past


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, MANY // 2)], ids=["1d", "few", "many"])
@pytest.mark.parametrize("error", [IndexError, RuntimeError])
def test_only_an_id_outside_leads_to_another_look(monkeypatch, error, shape):
    def broken(virtual, known):
        raise error("broken")

    v2p = torch.tensor([0, 30, 20, 10, -1], dtype=torch.int32)
    ids = torch.tensor([0, 3], dtype=torch.int32).repeat(torch.Size(shape).numel() // 2).view(shape)
    monkeypatch.setattr(entries, "_look_up", broken)
    with pytest.raises(error, match="broken"):
        entries.pages(ids, v2p)
    for outside, past in ((-1, 0), (4, 1)):
        ids.view(-1)[1] = outside
        physical, mask = entries.pages(ids, v2p)
        assert physical.view(-1)[1] == -1
        assert (physical.view(-1)[2:] == v2p[ids.view(-1)[2:].long()]).all()
        assert (0 if mask is None else mask.sum()) == past


@pytest.mark.parametrize("room", [LONG - 1, LONG, LONG + 1, LONG + 9])
def test_a_stream_that_is_cut_where_its_table_is_not(room):
    """The stream has `room` for each long lane and, behind it, for an empty one, whose part must stay as it is."""
    generator = torch.Generator().manual_seed(room)
    lengths, width = [LONG + 1, 0, LONG + 9, 0, 70, 0], LONG + 5
    parts = [room, 20, room, 20, 70, 20]
    indptr = [sum(parts[:b]) for b in range(7)]
    v2p = torch.tensor([0, *torch.randperm(NUM_PAGES - 1, generator=generator).add(1).tolist(), -1], dtype=torch.int32)
    table = torch.randint(NUM_PAGES, (6, LONG + 9), dtype=torch.int32, generator=generator)
    table[2, [0, 9, width, LONG + 8]] = NUM_PAGES + 3
    spec = ReadStreamSpec(
        max_bs=6, max_items=indptr[-1], max_width=width, page_size=1, num_physical=NUM_PAGES, with_table=True
    )
    state, out = new_state("cpu"), torch.full((indptr[-1],), 7, dtype=torch.int32)
    tabled = torch.full((6, LONG + 9), 7, dtype=torch.int32)
    call = plan(READ_STREAM, spec, backend="cpu", device="cpu")
    rows, seq_lens = torch.arange(6, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    starts = torch.tensor(indptr, dtype=torch.int32)
    call(table, rows, seq_lens, v2p, starts, out=out, table=tabled[:, :width], state=state)

    entries = torch.where(table < NUM_PAGES, v2p[table.clamp(max=NUM_PAGES - 1).long()], 0)
    stream, cells, past = torch.full_like(out, 7), torch.full_like(tabled, 7), 0
    for b, length in enumerate(lengths):
        streamed, shown = min(length, parts[b]), min(length, width)
        stream[indptr[b] : indptr[b] + streamed] = entries[b, :streamed]
        cells[b, :shown] = entries[b, :shown]
        past += int((table[b, : max(streamed, shown)] >= NUM_PAGES).sum())
    assert torch.equal(out, stream)
    assert torch.equal(tabled, cells)
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
