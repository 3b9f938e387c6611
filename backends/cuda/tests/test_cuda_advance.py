"""Decode steps do what the composed form does: launches of one and of several blocks, any chain, any garbage."""

from random import Random

import pytest
import torch
from cuda_pools import CHAINS, POSITIONS, WORDS, assert_same, both, ids_for, pool_of
from pagebind import LaunchOptions
from pagebind.ops import AdvanceSpec
from pagebind.ops import stacks as taking
from pagebind.words import BAD_BIND, COUNT_MISMATCH, SINK, STARVED, TICKET, TOMBSTONE, VIRTUAL_TOP, new_tables
from pagebind_cuda import backend

CPU = torch.device("cpu")
DTYPES = (torch.int32, torch.int64)
OPTIONS = {
    "blocks": LaunchOptions(threads=32, programs=4),
    "trips": LaunchOptions(threads=32, programs=1),
    "many": LaunchOptions(threads=32),
    "block": LaunchOptions(threads=1024),
}
ROUNDS = 6
POISON = 88


@pytest.fixture(autouse=True)
def _compiler():
    reason = backend.reason_against("cpu")
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=OPTIONS.values(), ids=list(OPTIONS))
def options(request):
    return request.param


def takes_a_page_twice(pool, count):
    """A spoiled span may grow over its own holes: which lane of two gets such a page is open."""
    physical = taking.find(pool.copy(), count).physical.tolist()
    return len(set(physical)) < len(physical)


class Step:
    """A decode step drawn at random: lanes of every kind, whatever they hold."""

    def __init__(self, pool, random, bs, form, *, index_dtype, **fields):
        ps, pages = random.choice((1, 3, 4)), 6
        columns = pages if form == "page" else pages * ps
        rows = ids_for(pool, random, bs * pages, torch.int32, repeats=0.3).view(bs, pages)
        if form == "token":
            rows = torch.where(rows < 0, rows, rows.clamp(max=2**28) * ps).repeat_interleave(ps, dim=1)
        self.wide_rows = torch.zeros(bs, columns + 3, dtype=torch.int32)
        self.wide_rows[:, :columns] = rows
        self.columns = columns
        dtypes = dict(zip(("row", "length", "out", "table", "id"), random.choices(DTYPES, k=5), strict=True))
        self.req_rows = torch.tensor(random.sample(range(-1, bs), bs), dtype=dtypes["row"])
        wild = (-1, torch.iinfo(dtypes["length"]).max, torch.iinfo(dtypes["length"]).min, pages * ps)
        lens = [random.choice(wild) if random.random() < 0.1 else random.randint(0, pages * ps) for _ in range(bs)]
        self.seq_lens = torch.tensor(lens, dtype=dtypes["length"])
        self.width, self.told = random.choice((0, 3, pages * ps)), random.choice((0, 3, bs + 5))
        self.pages = random.choice((None, 0, bs // 2))
        self.spec = AdvanceSpec(
            max_bs=bs + random.choice((0, 50)),
            page_size=ps,
            num_virtual=pool.tables.v2p.shape[0] - 1,
            num_physical=pool.tables.p2v.shape[0] - 1,
            form=form,
            multiplier=random.choice((1, 3)),
            granularity=random.choice(("page", "token")),
            index_dtype=index_dtype,
            **{f"{name}_dtype": dtype for name, dtype in dtypes.items()},
            **fields,
        )

    def __call__(self, launch, tables):
        spec, bs = self.spec, len(self.req_rows)
        wide_rows, seq_lens = self.wide_rows.clone(), self.seq_lens.clone()
        slots = torch.full((bs,), POISON, dtype=spec.out_dtype)
        table = torch.full((bs + 1, self.width + 2), POISON, dtype=spec.table_dtype)
        sizes = {"token_ids": bs, "new_ids": self.told, "new_pages": self.told}
        emitted = {name: torch.full((size,), POISON, dtype=spec.id_dtype) for name, size in sizes.items()}
        launch(
            wide_rows[:, : self.columns],
            self.req_rows,
            seq_lens,
            tables,
            slots=slots,
            table=table[:, : self.width] if spec.appends else None,
            pages=self.pages,
            **(emitted if spec.emits else {}),
        )
        return wide_rows, seq_lens, slots, table, *emitted.values()


@pytest.mark.parametrize("chain", CHAINS.values(), ids=list(CHAINS))
@pytest.mark.parametrize("spoiled", [False, True], ids=["sound", "spoiled"])
@pytest.mark.parametrize("form", ["token", "page"])
def test_any_chain(options, chain, spoiled, form):
    random = Random(f"{chain}{spoiled}{form}")
    for number in range(ROUNDS):
        index_dtype = random.choice(DTYPES)
        pool = pool_of(chain, random, index_dtype, spoiled=spoiled)
        bs = random.choice((1, 31, 33, 64, 150))
        if takes_a_page_twice(pool, bs):
            continue
        step = Step(
            pool, random, bs, form, index_dtype=index_dtype, appends=bool(number % 2), emits=bool(number // 2 % 2)
        )
        assert_same(both(step.spec, options, pool, step))


@pytest.mark.parametrize("word", POSITIONS)
def test_any_word_of_any_block_may_hold_anything(word, options):
    """Alone among sound ones, so that no other wrong word hides what it does."""
    random = Random(word)
    for value in WORDS:
        for block in range(3):
            pool = pool_of(CHAINS["float"], random, torch.int32)
            pool.tables.chain[block, word] = value
            if takes_a_page_twice(pool, 70):
                continue
            step = Step(pool, random, 70, "page", index_dtype=torch.int32, emits=True)
            assert_same(both(step.spec, options, pool, step))


@pytest.mark.parametrize("form", ["token", "page"])
@pytest.mark.parametrize("bs", [991, 993, 1024, 1025, 2500])
def test_batches_of_about_a_block_and_of_several(bs, form):
    random = Random(f"{bs}{form}")
    for threads, programs in ((1024, None), (256, None), (1024, 2)):
        options = LaunchOptions(threads=threads, programs=programs)
        for spare in (0, bs // 8, 2 * bs):  # starved from the first lane on, on the way, never
            tables = new_tables(bs + spare + 1, bs + spare + 1, CPU)
            held = torch.randperm(bs, generator=torch.Generator().manual_seed(bs)) + 1
            tables.v2p[1 : bs + 1], tables.p2v[held] = held.int(), torch.arange(1, bs + 1).int()
            tables.state[VIRTUAL_TOP] = spare
            pool = pool_of(None, random, torch.int32)._replace(bound=list(range(1, bs + 1)), free=[])
            pool = pool._replace(tables=tables)
            tables.state[2] = bs  # the span
            step = Step(pool, random, bs, form, index_dtype=torch.int32, appends=True, emits=True)
            results = both(step.spec, options, pool, step)
            assert_same(results)
            state = results[0][0].state
            assert (state[STARVED] > 0) == (spare < bs // 2)
            assert state[TICKET] == 0


@pytest.mark.parametrize("form", ["token", "page"])
def test_rows_of_v2p_that_hold_anything(options, form):
    random = Random(form)
    for _ in range(ROUNDS):
        pool = pool_of(CHAINS["ends"], random, torch.int64)
        for v in random.sample(pool.bound, len(pool.bound) // 2):
            pool.tables.v2p[v] = random.choice((-7, 0, 2**31, 2**62, -(2**63), 2**63 - 1))
        step = Step(pool, random, 60, form, index_dtype=torch.int64, appends=True)
        assert_same(both(step.spec, options, pool, step))


def test_stacks_that_repeat_ids_and_pages_leave_the_tables_inverse(options):
    """At most one lane gets each of them, one alone gets its own, and no lane that got none moves on."""
    bs, num, alone = 150, 40, 20
    tables = new_tables(num, num, CPU)
    for stack, different in ((tables.virtual_stack, 7), (tables.hole_stack, 5)):
        stack[:] = torch.where(torch.arange(num) < alone, torch.arange(num) + 10, torch.arange(num) % different + 1)
    tables.state[:3] = torch.tensor([num, num, num - 1])
    rows, lens = torch.full((bs, 2), -1, dtype=torch.int32), torch.zeros(bs, dtype=torch.int32)
    slots = torch.full((bs,), POISON, dtype=torch.int32)
    spec = AdvanceSpec(max_bs=bs, page_size=4, num_virtual=num, num_physical=num, form="page")
    order = torch.arange(bs, dtype=torch.int32)
    backend.planners["advance"](spec, CPU, options)(rows, order, lens, tables, slots=slots, pages=bs)
    served = lens == 1
    ids, pages = rows[served, 0].long(), slots[served] // 4
    assert alone <= len(ids) <= alone + 5
    assert len(set(ids.tolist())) == len(set(pages.tolist())) == len(ids)
    assert torch.equal(tables.v2p[ids], pages)
    assert torch.equal(tables.p2v[pages.long()].long(), ids)
    assert int((tables.v2p[1:-1] != TOMBSTONE).sum()) == int((tables.p2v[1:-1] != TOMBSTONE).sum()) == len(ids)
    assert (rows[~served, 0] == SINK).all()
    assert tables.state[[BAD_BIND, STARVED, COUNT_MISMATCH]].tolist() == [num - len(ids), bs - num, 0]


def test_one_tensor_as_rows_and_lengths_touches_no_row_that_is_not_there(options):
    """Lengths grow under the eyes of lanes that read them as rows: each row is judged by what is used of it."""
    bs = 150
    tables = new_tables(400, 400, CPU)
    rows, both_of = torch.full((bs, bs + 1), -1, dtype=torch.int32), torch.arange(bs, dtype=torch.int32)
    slots = torch.zeros(bs, dtype=torch.int32)
    spec = AdvanceSpec(max_bs=bs, page_size=1, num_virtual=400, num_physical=400)
    launch = backend.planners["advance"](spec, CPU, options)
    for _ in range(3):
        launch(rows, both_of, both_of, tables, slots=slots)
    assert both_of.max() <= bs + 1


@pytest.mark.parametrize(("bs", "launches"), [(1, 1), (64, 1), (65, 2), (900, 2)])
def test_one_launch_where_a_block_has_a_thread_for_every_lane_else_two(bs, launches, monkeypatch):
    made = []

    def planned(*_, **__):
        return lambda blocks, threads, *arguments: made.append((blocks, threads, arguments[-1]))

    monkeypatch.setattr("pagebind_cuda.advance.plan_kernel", planned)
    options = LaunchOptions(threads=64, programs=8)
    spec = AdvanceSpec(max_bs=bs, page_size=4, num_virtual=9, num_physical=9, form="page")
    zeros = torch.zeros(bs, dtype=torch.int32)
    backend.planners["advance"](spec, CPU, options)(
        torch.zeros(bs, 4, dtype=torch.int32), zeros, zeros, new_tables(9, 9, CPU), slots=zeros
    )
    assert len(made) == launches
    assert all(blocks <= 8 and threads <= 64 for blocks, threads, _ in made)
    assert made[0][0] == 1 or made[0][:2] == made[1][:2], "both launches share the lanes out alike"
