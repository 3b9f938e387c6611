"""A pool of one kind of page: rows, counts and tables together, against a plain model of which page holds what."""

import random

import pytest
import torch
from pagebind.errors import ConfigError, FaultError, InvalidArgument, OutOfPages
from pagebind.pool import page_pool

GEOMETRIES = [(1, "token"), (3, "page"), (4, "token"), (16, "page")]


def make(page_size=4, form="page", num_pages=12, **kwargs):
    options = {"max_requests": 4, "max_context": 24, "max_bs": 4, "max_tokens": 64, "device": "cpu", "backend": "cpu"}
    return page_pool(num_pages, page_size, form=form, **{**options, **kwargs})


def stats(pool):
    return pool.stats().sub_pools["pages"]


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def extend(pool, rows, prefix, new):
    """Extend rows by host numbers and return each lane's slots."""
    ends = torch.tensor([0, *new]).cumsum(0)
    slots = torch.full((int(ends[-1]),), -7, dtype=torch.int32)
    pages = sum(map(pool.new_pages, prefix, new))
    pool.extend(ints([r.index for r in rows]), ints(prefix), ends.to(torch.int32), slots=slots, pages=pages)
    return [part.tolist() for part in slots.split(new)]


def release(pool, rows, lens, starts=None):
    size = pool.page_size
    pages = sum(-(-n // size) - -(-m // size) for n, m in zip(lens, starts or [0] * len(lens), strict=True))
    given = {} if starts is None else {"starts": ints(starts)}
    pool.release(rows, ints([r.index for r in rows]), ints(lens), pages=pages, **given)


@pytest.mark.parametrize(("page_size", "form"), GEOMETRIES)
def test_random_requests_keep_their_tokens_and_balance_to_zero(page_size, form):
    rng = random.Random(page_size)
    pool = make(page_size, form, num_pages=-(-60 // page_size))
    where: dict[int, list[int]] = {}  # row index -> slot of each token, as the write slots said
    rows = {}
    read_table = pool.plan_read_table(24, granularity="token")
    for _ in range(150):
        kind = rng.choice(["start", "grow", "cut", "end"])
        if kind == "start" and len(rows) < 4:
            row = pool.open_row()
            rows[row.index], where[row.index] = row, []
        some = [i for i in rows if rng.random() < 0.6]
        if kind == "grow" and some:
            new = [rng.randint(0, 24 - len(where[i])) for i in some]
            prefix = [len(where[i]) for i in some]
            pages = sum(map(pool.new_pages, prefix, new))
            before = pool.digest()
            if pages > pool.free_pages():
                with pytest.raises(OutOfPages):
                    extend(pool, [rows[i] for i in some], prefix, new)
                assert pool.digest() == before
                continue
            for i, slots in zip(some, extend(pool, [rows[i] for i in some], prefix, new), strict=True):
                where[i] += slots
        elif kind == "cut" and some:
            lens = [len(where[i]) for i in some]
            keep = [rng.randint(0, n) for n in lens]
            pages = sum(-(-n // page_size) - -(-k // page_size) for n, k in zip(lens, keep, strict=True))
            pool.truncate(ints(some), ints(lens), ints(keep), pages=pages)
            for i, k in zip(some, keep, strict=True):
                del where[i][k:]
        elif kind == "end" and some:
            release(pool, [rows[i] for i in some], [len(where[i]) for i in some])
            for i in some:
                del rows[i], where[i]
        if rows:
            lanes = list(rows)
            out = torch.full((len(lanes), 24), -7, dtype=torch.int32)
            lens = ints([len(where[i]) for i in lanes])
            read_table(
                pool.requests.table,
                ints(lanes),
                lens,
                pool.tables["pages"].v2p,
                out=out,
                state=pool.tables["pages"].state,
            )
            assert [out[b, : len(where[i])].tolist() for b, i in enumerate(lanes)] == [where[i] for i in lanes]
        held = [slot for slots in where.values() for slot in slots]
        assert len(set(held)) == len(held), "two tokens in one place"
        assert min(held, default=page_size) >= page_size, "a token in the sink"
        assert pool.audit() == []
    release(pool, list(rows.values()), [len(where[i]) for i in rows])
    pool.check()
    assert (stats(pool).live, pool.stats().rows, pool.free_pages()) == (0, 0, stats(pool).capacity)
    assert (pool.requests.table == -1).all()


def test_digest_is_equal_after_equal_calls_whatever_the_index_dtype():
    def drive(dtype):
        pool = make(index_dtype=dtype)
        row = pool.open_row()
        extend(pool, [row], [0], [9])
        pool.free(pool.alloc(3)[1:])
        return pool.digest()

    assert drive(torch.int32) == drive(torch.int64)


def test_a_failed_alloc_changes_nothing():  # a failed admission that is not undone: vLLM 11565, kvcached 364
    pool = make(num_pages=3)
    kept = pool.alloc(2)
    before, counts = pool.digest(), pool.stats()
    with pytest.raises(OutOfPages) as caught:
        pool.alloc(2)
    assert (caught.value.asked, caught.value.free, caught.value.holes, caught.value.capacity) == (2, 1, 0, 3)
    assert (pool.digest(), pool.stats()) == (before, counts)
    assert kept.tolist() == [1, 2]


def test_a_late_release_is_refused_and_the_new_owner_keeps_its_row():  # TensorRT-LLM 14423
    pool = make(page_size=1, form="page", max_requests=1)
    first = pool.open_row()
    extend(pool, [first], [0], [2])
    release(pool, [first], [2])
    second = pool.open_row()
    assert second.index == first.index
    extend(pool, [second], [0], [2])
    before = pool.requests.table.clone()
    with pytest.raises(InvalidArgument, match="was released before"):
        release(pool, [first], [2])
    with pytest.raises(InvalidArgument, match="stands twice"):
        release(pool, [second, second], [2, 2])
    assert torch.equal(pool.requests.table, before)
    assert pool.audit() == []


def test_a_shared_prefix_is_assigned_and_outlives_the_rows_that_share_it():
    pool = make(page_size=4, num_pages=6)
    first = pool.open_row()
    extend(pool, [first], [0], [11])
    shared = pool.requests.table[first.index, :2].clone()  # two whole pages
    release(pool, [first], [11], starts=[8])
    assert stats(pool).live == 2
    second = pool.open_row()
    pool.assign(ints([second.index]), shared, ints([0, 2]))
    extend(pool, [second], [8], [3])
    assert pool.requests.table[second.index, :2].tolist() == shared.tolist()
    release(pool, [second], [11], starts=[8])
    pool.free(shared)
    pool.check()
    assert pool.audit() == []
    assert pool.free_pages() == 6


def test_faults_are_counted_told_by_check_and_mended_by_reconcile():
    pool = make()
    ids = pool.alloc(3)
    pool.free(ids[:1])
    pool.free(ids[:1])
    assert any("pages bound in v2p is 2, it should be 1" in term for term in pool.audit())
    with pytest.raises(FaultError, match="double_free 1"):
        pool.check()
    assert pool.reconcile().sub_pools["pages"].live == 2
    assert pool.audit() == []


def test_full_checks_refuse_before_anything_is_written():
    pool = make(checks="full")
    ids = pool.alloc(3)
    pool.free(ids[:1])
    before = pool.digest()
    with pytest.raises(FaultError, match=f"double_free: {int(ids[0])}"):
        pool.free(ids[:1])
    assert pool.digest() == before
    assert pool.audit() == []


def test_audit_names_each_term_that_disagrees():
    pool = make()
    pool.alloc(4)
    tables = pool.tables["pages"]
    tables.v2p[1] = 2
    tables.hole_stack[0] = 9
    tables.state[1] = 1
    told = "\n".join(pool.audit())
    for term in ("pages: v2p[1] is 2", "p2v[1] is 1", "the hole top is 1, it should be 0", "the hole stack is [9]"):
        assert term in told


def test_rows_run_out_with_a_clear_message():
    pool = make(max_requests=1)
    pool.open_row()
    with pytest.raises(InvalidArgument, match="all 1 rows have an owner"):
        pool.open_row()


@pytest.mark.parametrize(
    "wrong", [{"num_pages": -1}, {"page_size": 0}, {"form": "pages"}, {"max_bs": 1.5}, {"multiplier": 2**28}]
)
def test_a_pool_that_cannot_be_is_refused_when_planned(wrong):
    with pytest.raises(InvalidArgument):
        make(**wrong)


class Told:
    """A reader's event that writes down when the stream was made to wait for it."""

    def __init__(self, log):
        self.log = log

    def wait(self):
        self.log.append("waited")


def marks(pool):
    """Return the first byte of every page's bytes, by physical page."""
    return pool.view("pages", torch.uint8, ())


@pytest.mark.parametrize("seed", range(4))
def test_compaction_closes_holes_and_bytes_follow_their_pages(seed):
    rng = random.Random(seed)
    pool = make(num_pages=40, page_bytes=32)
    held = {}
    for _ in range(120):
        kind = rng.choice(["alloc", "free", "compact"])
        if kind == "alloc":
            for v in pool.alloc(rng.randint(0, pool.free_pages())).tolist():
                held[v] = rng.randint(1, 250)
                marks(pool)[pool.tables["pages"].v2p[v].item()] = held[v]
        elif kind == "free":
            gone = rng.sample(sorted(held), rng.randint(0, len(held)))
            pool.free(ints(gone))
            for v in gone:
                del held[v]
        else:
            holes, live = stats(pool).holes, stats(pool).live
            most = rng.choice([None, rng.randint(0, 40)])
            done = pool.compact(most)
            assert done == min(holes, holes if most is None else most)
            assert (stats(pool).holes, stats(pool).live) == (holes - done, live)
        assert pool.audit() == []
        assert {v: int(marks(pool)[pool.tables["pages"].v2p[v]]) for v in held} == held
    pool.check()


def test_a_closed_gate_moves_nothing_and_opens_again():
    pool = make()
    pool.free(pool.alloc(6)[:3])
    before = pool.digest()
    with pool.hold_moves(), pool.hold_moves():
        assert pool.compact() == 0
    with pool.hold_moves():
        assert pool.compact() == 0
    assert pool.digest() == before
    assert pool.compact(2) == 2
    assert pool.compact() == 1
    assert pool.compact() == 0


def test_moves_and_reuse_of_vacated_pages_wait_for_readers_and_nothing_else_does():
    pool, log = make(), []
    ids = pool.alloc(4)
    pool.reading(Told(log))
    pool.alloc(1)
    assert log == [], "a page that nobody read"
    pool.free(ids[:1])
    assert log == []
    pool.alloc(1)
    assert log == ["waited"], "it may be the one that was vacated"
    pool.reading(Told(log))
    pool.free(ids[1:2])
    pool.compact()
    assert log == ["waited"] * 2
    pool.reading(Told(log))
    pool.join_readers()
    pool.free(ids[2:3])
    pool.alloc(1)
    assert log == ["waited"] * 3


def test_no_compaction_while_a_lease_is_open():
    pool = make()
    pool.free(pool.alloc(6)[:3])
    before = pool.digest()
    lease = pool.reserve(2)
    with pytest.raises(InvalidArgument, match="settle it first"):
        pool.compact()
    assert pool.digest() == before
    lease.settle(0)
    assert pool.compact() == 3
    assert pool.audit() == []


def test_poll_tells_the_counters_without_raising():
    pool = make()
    assert set(pool.poll()["pages"].values()) == {0}
    pool.alloc(1)
    pool.free(ints([3]))
    assert pool.poll()["pages"]["double_free"] == 1


def test_counts_that_cannot_be_are_refused_before_anything_changes():
    pool = make(page_size=4)
    row = pool.open_row()
    extend(pool, [row], [0], [8])
    before, counts = pool.digest(), pool.stats()
    rows, lens = ints([row.index]), ints([8])
    none = torch.empty(0, dtype=torch.int32)
    for call in (
        lambda: pool.release([row], rows, lens, pages=None),
        lambda: pool.release([row], rows, lens, pages=3),
        lambda: pool.release([], none, none, pages=1),
        lambda: pool.truncate(rows, lens, ints([4]), pages=99),
        lambda: pool.truncate(rows, lens, ints([4]), pages=None),
        lambda: pool.extend(rows, lens, ints([0, 4]), slots=ints([0] * 4), pages="1"),
        lambda: pool.free(ints([1, 2, 3])),
        lambda: pool.free([1]),
        lambda: pool.release([0], rows, lens, pages=2),
        lambda: pool.reserve(1.5),
        lambda: pool.can_reserve("3"),
        lambda: pool.reading(None),
        lambda: pool.compact(1.5),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert (pool.digest(), pool.stats()) == (before, counts)
    assert pool.audit() == []


def test_a_settled_lease_does_not_settle_the_next_one():
    pool = make()
    first = pool.reserve(3)
    first.settle(0)
    second = pool.reserve(5)
    with pytest.raises(InvalidArgument, match="settled before"):
        first.settle(2)
    assert stats(pool).leased == 5
    second.settle(0)


def test_a_device_of_the_cpu_has_no_number():
    assert make(device="cpu:0").alloc(1).tolist() == [1]


@pytest.mark.parametrize("wrong", [5, ["cpu"], torch])
def test_an_explicit_backend_of_a_wrong_type_does_not_fall_back(wrong):
    with pytest.raises(ConfigError, match="argument backend"):
        make(backend=wrong)
