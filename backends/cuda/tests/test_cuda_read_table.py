"""read_table in launches that share rows out: past what a row's own blocks write, in second trips, over many lanes."""

from itertools import product
from random import Random

import pytest
import torch
from pagebind import LaunchOptions
from pagebind.ops import READ_TABLE, ReadTableSpec
from pagebind.ops import read_table as contract
from pagebind.ops.ids import read_ids
from pagebind.words import COUNTERS, new_state
from pagebind_cuda import backend
from pagebind_cuda import read_table as planner

UNTOUCHED = -7
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
SPECS = [
    {},
    {"windowed": True, "fill": "sink", "page_size": 3},
    {"form": "page", "granularity": "token", "page_size": 16, "row_dtype": torch.int64},
    {"granularity": "token", "page_size": 3, "fill": "sink", "multiplier": 5, "length_dtype": torch.int64},
    {"form": "page", "windowed": True, "page_size": 2, "index_dtype": torch.int64, "out_dtype": torch.int64},
]


@pytest.fixture(params=["cpu", GPU])
def device(request):
    reason = backend.reason_against(request.param)
    if reason is not None:
        pytest.skip(reason)
    return torch.device(request.param)


def given(spec, random, lens, starts):
    """Return the tensors of a call whose rows hold ids of every kind, two of the rows bad."""
    draw = torch.Generator().manual_seed(random.randrange(2**31))
    bs, num_virtual = len(lens), 900
    unit = spec.page_size if spec.granularity == "page" else 1
    tokens = spec.max_width * unit
    cells = tokens if spec.form == "token" else -(-tokens // spec.page_size)
    most = num_virtual * (spec.page_size if spec.form == "token" else 1)
    ids = torch.randint(-most // 8, most + most // 8, (bs + 3, cells + 5), generator=draw, dtype=torch.int32)
    rows = torch.randperm(bs + 3, generator=draw)[:bs].to(spec.row_dtype)
    if bs > 2:
        rows[bs // 2], rows[bs // 3] = -1, bs + 3
    v2p = torch.randint(-3, spec.num_physical, (num_virtual + 1,), generator=draw).clamp(min=-1).to(spec.index_dtype)
    v2p[-1] = -1
    call = {"starts": torch.tensor(starts, dtype=spec.length_dtype)} if spec.windowed else {}
    return (ids[:, : cells + 2], rows, torch.tensor(lens, dtype=spec.length_dtype), v2p), call


def expected(spec, arguments, call, out):
    """Return the table that a call leaves of `out`, lane by lane."""
    request_table, req_rows, lens, v2p = arguments
    starts, delta = call.get("starts"), call["seq_len_delta"]
    lanes = contract.lanes_of(spec, request_table, req_rows, lens, out.shape[1], starts, delta)
    wanted = torch.zeros_like(out) if spec.fill == "sink" else out.clone()
    unit = 1 if spec.granularity == "page" else spec.page_size
    for b, (row, first, cells) in enumerate(zip(*(v.tolist() for v in lanes[:3]), strict=True)):
        columns = torch.arange(first, first + cells)
        ids = read_ids(
            spec.form, spec.granularity, spec.page_size, request_table, torch.full_like(columns, row), columns
        )
        page = ids.long() // unit
        known = (ids >= 0) & (page < v2p.shape[0] - 1)
        physical = torch.where(known, v2p[page.clamp(0, v2p.shape[0] - 1)].long(), -1)
        entry = physical.clamp(min=0) * spec.multiplier
        if spec.granularity == "token":
            entry = entry * spec.page_size + torch.where(physical >= 0, ids.long() % spec.page_size, 0)
        wanted[b, first : first + cells] = entry.to(out.dtype)
    return wanted


def check(device, spec, options, random, lens, starts=None, delta=0):
    """Launch on `device`, compare table, cells around it and counters, and return these."""
    arguments, call = given(spec, random, lens, starts)
    call["seq_len_delta"] = delta
    base = torch.full((len(lens) + 2, spec.max_width + 3), UNTOUCHED, dtype=spec.out_dtype)
    wanted = base.clone()
    wanted[:, : spec.max_width] = expected(spec, arguments, call, base[:, : spec.max_width])
    found = base.to(device)
    state = new_state(device)
    launch = planner.plan_read_table(spec, device, options)
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    launch(*(t.to(device) for t in arguments), out=found[:, : spec.max_width], state=state, **moved)
    assert torch.equal(found.cpu(), wanted)
    faults = READ_TABLE.faults(spec, *arguments, out=base[:, : spec.max_width], **call)
    counted = {name: int(state[COUNTERS[name]]) for name in faults}
    assert counted == {name: len(found) for name, found in faults.items()}
    return counted


@pytest.mark.parametrize("cover", [1, 12], ids="cover{}".format)
@pytest.mark.parametrize("fields", SPECS, ids=lambda fields: "-".join(map(str, fields.values())) or "plain")
def test_rows_longer_than_their_blocks_write(device, monkeypatch, fields, cover):
    monkeypatch.setattr(planner, "HOST_COVER", cover)
    monkeypatch.setattr(planner, "COVER", cover)
    spec = ReadTableSpec(**{"max_bs": 12, "max_width": 2700, "page_size": 1, "num_physical": 700, **fields})
    unit = spec.page_size if spec.granularity == "page" else 1
    for threads, programs, bs in product((32, 96), (1, 3), (2, 11)):
        random = Random(threads + programs + bs)
        lens = [random.choice((0, 5, 60, 1025, 2048, 2699, 2700, 9999)) * unit for _ in range(bs - 1)]
        starts = [random.choice((0, 1, 7, 1023, 2000)) * unit for _ in range(bs)]
        starts[0] = 3 * unit
        options = LaunchOptions(threads=threads, programs=programs)
        counted = check(device, spec, options, random, [2690 * unit, *lens], starts, delta=random.choice((0, 3)))
        assert counted["bad_id"] > 0


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("windowed", [False, True], ids=["whole", "windowed"])
def test_a_lane_that_ends_about_where_its_blocks_do(device, page_size, windowed):
    spec = ReadTableSpec(max_bs=1, max_width=600, page_size=page_size, num_physical=700, windowed=windowed)
    options = LaunchOptions(threads=32, programs=1)
    cover = 32 * page_size * (planner.COVER if device.type == "cuda" else planner.HOST_COVER)
    for start, more in product((0, 1, 2, 3, 5) if windowed else (0,), (-1, 0, 1, 2, 3, 4)):
        check(device, spec, options, Random(start + more), [cover + start + more], [start])


@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_more_lanes_than_are_shared_out_at_once(device, fill):
    random = Random(fill)
    spec = ReadTableSpec(max_bs=2100, max_width=1200, page_size=1, num_physical=700, fill=fill)
    lens = [random.choice((0, 1, 3, 9)) for _ in range(2100)]
    lens[5] = lens[1023] = lens[1024] = lens[2050] = 1200  # several in the first turn, one in the last
    lens[2099] = 700
    check(device, spec, LaunchOptions(threads=64, programs=3), random, lens)


def test_the_last_row_alone_is_long(device):
    """Blocks see it although none of their threads' first lanes is it."""
    spec = ReadTableSpec(max_bs=300, max_width=2000, page_size=1, num_physical=700)
    check(device, spec, LaunchOptions(threads=32, programs=4), Random(9), [1] * 299 + [2000])


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 10**6), (64, 131_072), (256, 131_072), (1000, 9), (5000, 900)]
)
def test_grids(rows, columns):
    most = planner.Limits(planner.THREADS, planner.BLOCKS)
    grid = planner.grid_of(most, rows, columns, planner.COVER)
    assert grid.blocks == grid.lanes * grid.parts <= planner.BLOCKS
    assert grid.lanes <= rows
    assert grid.parts == 1 or grid.lanes == rows
    turns = -(-rows // grid.lanes)
    assert turns == -(-rows // planner.BLOCKS)
    assert grid.cover == planner.COVER * grid.threads * grid.parts


def test_columns_in_flight_fit_32_bits():
    most = planner.Limits(1024, 2**40)
    grid = planner.grid_of(most, 1, 2**31 - 1, planner.COVER)
    assert grid.threads <= planner.MOST_THREADS
    assert 2**31 + grid.cover + 8 * grid.parts * grid.threads < 2**32


@pytest.mark.parametrize("programs", [65_535, 65_536, 65_537, 90_001, 92_683, 2**31 - 1])
def test_the_kernel_finds_the_row_of_every_block_whatever_the_options_ask_for(programs):
    most = planner.Limits(32, programs)
    for rows in (1, 2, 3, 129, 65_535, 65_536, 65_537, 90_001, 92_683, 2**31 - 1):
        grid = planner.grid_of(most, rows, 64, planner.COVER)
        inverse = -(-(2**32) // grid.lanes)  # as the planner hands it to the kernel
        assert grid.blocks == grid.lanes * grid.parts
        edges = [block for part in range(grid.parts) for block in (part * grid.lanes, (part + 1) * grid.lanes - 1)]
        for block in edges:
            assert block * inverse >> 32 == block // grid.lanes, (rows, block)
