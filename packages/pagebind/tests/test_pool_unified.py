"""Several kinds of page in one buffer: composites, relief, leases and refusals, each told by a small example."""

from contextlib import nullcontext

import pytest
import torch
from pagebind import available_backends
from pagebind.errors import FaultError, InvalidArgument, OutOfPages
from pagebind.ops import ALLOC, AllocSpec, SecondTable
from pagebind.plan import plan
from pagebind.pool import MultiEndedAllocator, SubPool, UnifiedPool, page_pool
from pagebind.words import new_tables

SIZES = {"max_requests": 4, "max_context": 32, "max_bs": 4, "max_tokens": 64, "device": "cpu", "backend": "cpu"}
FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
WINDOW = SubPool(name="window", page_size=4, page_bytes=32, grows="float", ids_of="full")
STATE = SubPool(name="state", page_size=1, page_bytes=128, grows="down")
ON_CUDA = [c.name for c in available_backends("cuda") if c.reason is None] if torch.cuda.is_available() else []


def make(*sub_pools, data=2048, **settings):
    """Return a pool with `data` bytes above the sinks."""
    return UnifiedPool(sum(s.page_bytes for s in sub_pools) + data, sub_pools, **{**SIZES, **settings})


def ends(a=16, b=16, data=160, **settings):
    """Return a pool of two ends, `a` that grows up and `b` that grows down, of such pages."""
    return make(
        SubPool(name="a", page_size=1, page_bytes=a, grows="up"),
        SubPool(name="b", page_size=1, page_bytes=b, grows="down"),
        data=data,
        **settings,
    )


def between(float_bytes=16, data=160, **settings):
    """Return a pool of three: `a` up, `f` that floats, `b` down, of 16 bytes a page but for the float."""
    return make(
        SubPool(name="a", page_size=1, page_bytes=16, grows="up"),
        SubPool(name="f", page_size=1, page_bytes=float_bytes, grows="float"),
        SubPool(name="b", page_size=1, page_bytes=16, grows="down"),
        data=data,
        **settings,
    )


def ints(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def slots(tokens, *names, device="cpu"):
    return {name: torch.full((tokens,), -7, dtype=torch.int32, device=device) for name in names}


def where(pool, name, ids):
    """Return the physical page of each id."""
    return pool.tables[name].v2p[ids.long()].tolist()


def span(pool, name):
    """Return the first byte of a sub-pool's span and the byte past it."""
    found = pool.stats().sub_pools[name]
    return found.first_byte, found.end_byte


def mark(pool, name, ids):
    """Write each id into its page, and return how to look whether it still is there."""
    view = pool.view(name, torch.int64, (2,))
    view[where(pool, name, ids)] = ids.long()[:, None].expand(-1, 2)
    return lambda: view[where(pool, name, ids)].tolist() == [[v, v] for v in ids.tolist()]


def everything(pool):
    """Return all that a failed call must leave as it was."""
    tables = [t.clone() for own in pool.tables.values() for t in own[:5]]
    return [*tables, pool.requests.table.clone(), pool.buffer.clone()], pool.stats(), pool.digest()


def same(before, after):
    return all(map(torch.equal, before[0], after[0])) and before[1:] == after[1:]


def live(pool):
    return {name: s.live for name, s in pool.stats().sub_pools.items()}


# ---- composites ------------------------------------------------------------------------------------------------------


def test_one_id_has_a_page_on_both_sides_and_the_window_lets_go_while_it_lives():
    pool = make(FULL, WINDOW, STATE)
    row = pool.open_row()
    rows, out = ints(row.index), slots(14, "full", "window")
    pool.extend(rows, ints(0), ints(0, 14), slots=out, pages=4)
    ids = pool.requests.table[row.index, :4].clone()
    assert out["full"].tolist() == [4 * p + o for p in where(pool, "full", ids) for o in range(4)][:14]
    assert out["window"].tolist() == [4 * p + o for p in where(pool, "window", ids) for o in range(4)][:14]
    assert out["window"].tolist() != out["full"].tolist()

    pool.evict_window(rows, ints(9), pages=2)  # of tokens 0 to 8, pages 0 and 1 are whole
    assert live(pool) == {"full": 4, "window": 2, "state": 0}
    assert where(pool, "window", ids)[:2] == [-1, -1]
    table = torch.full((1, 4), -7, dtype=torch.int32)
    for name, right in (("full", where(pool, "full", ids)), ("window", [0, 0, *where(pool, "window", ids)[2:]])):
        pool.plan_read_table(4, name=name)(pool.requests.table, rows, ints(14), pool.tables[name].v2p, out=table)
        assert table.tolist() == [right]
    both = torch.full((2, 4), -7, dtype=torch.int32)
    planned = pool.plan_read_table(4, name="full", beside="window", beside_windowed=True)
    window, counts = pool.tables["window"], {name: pool.tables[name].state for name in ("full", "window")}
    second = SecondTable(window.v2p, both[1:], ints(13), counts["window"])
    planned(
        pool.requests.table, rows, ints(14), pool.tables["full"].v2p, out=both[:1], state=counts["full"], beside=second
    )
    assert both.tolist() == [where(pool, "full", ids), [-7, -7, -7, where(pool, "window", ids)[3]]]
    with pytest.raises(InvalidArgument, match="without beside"):
        pool.plan_read_table(4, name="full", beside_windowed=True)

    pool.truncate(rows, ints(14), ints(12), pages={"full": 1, "window": 1})
    pool.release([row], rows, ints(12), pages={"full": 3, "window": 1})
    assert live(pool) == {"full": 0, "window": 0, "state": 0}
    assert pool.audit() == []
    pool.check()


def test_rows_without_a_window_page_give_back_those_that_have_one():
    pool = make(FULL, WINDOW, STATE)
    row = pool.open_row()
    rows = ints(row.index)
    pool.extend(rows, ints(0), ints(0, 12), slots=slots(12, "full")["full"], pages=3)  # full alone
    pool.extend(rows, ints(12), ints(0, 8), slots=slots(8, "full", "window"), pages=2)
    pool.evict_window(rows, ints(16), pages=1)  # pages 0 to 3: only the last of them is here
    pool.release([row], rows, ints(20), pages={"full": 5, "window": 1})
    assert live(pool) == {"full": 0, "window": 0, "state": 0}
    assert pool.audit() == []
    pool.check()


def test_state_slots_have_ids_of_their_own_beside_rows():
    pool = make(FULL, WINDOW, STATE)
    assert pool.alloc(2, name="state").tolist() == [1, 2]
    assert pool.alloc(2, also=["window"]).tolist() == [1, 2]
    highest = pool.tables["state"].p2v.shape[0] - 2
    assert where(pool, "state", ints(1, 2)) == [highest, highest - 1], "a grow-down pool hands out descending pages"
    pool.free(ints(1, 2), also={"window": 2})
    pool.free(ints(1, 2), name="state")
    assert pool.audit() == []


def test_a_borrowers_table_is_sized_by_the_ids_of_its_owner():  # sglang 37560
    tables = new_tables(12, 3, "cpu", borrows=True)
    ids, pages = ints(10, 11), ints(-7, -7)
    plan(ALLOC, AllocSpec(max_items=2, borrowed=True), backend="cpu", device="cpu")(tables, ids=ids, pages=pages)
    assert (tables.v2p.shape[0], tables.v2p[10:12].tolist(), tables.p2v.shape[0]) == (13, [1, 2], 4)

    few = SubPool(name="few", page_size=4, page_bytes=320, grows="down", ids_of="full")
    pool = make(FULL, few, data=1600)
    pool.alloc(9)
    ids = pool.alloc(2, also=["few"])
    assert ids.tolist() == [10, 11]
    assert pool.tables["few"].v2p.shape[0] == pool.num_virtual("full") + 1 > pool.tables["few"].p2v.shape[0]
    assert where(pool, "few", ids) == [pool.tables["few"].p2v.shape[0] - 2 - i for i in range(2)]
    assert pool.audit() == []


def test_two_borrowers_are_served_ends_first_whatever_their_order():
    near = SubPool(name="near", page_size=4, page_bytes=16, grows="float", ids_of="full")
    far = SubPool(name="far", page_size=4, page_bytes=16, grows="down", ids_of="full")
    for take in (
        lambda pool, also: pool.alloc(5, also=also),  # all there is: the float must leave the upper end its part
        lambda pool, also: pool.extend(ints(0), ints(0), ints(0, 20), slots=slots(20, "full", *also), pages=5),
    ):
        pools = [make(FULL, near, far, data=96 * 5 + 32) for _ in range(2)]
        for pool, also in zip(pools, (["near", "far"], ["far", "near"]), strict=True):
            take(pool, also)
            assert pool.audit() == []
            pool.check()
        assert pools[0].digest() == pools[1].digest()


# ---- relief ----------------------------------------------------------------------------------------------------------


def test_a_neighbour_retreats_by_as_little_as_helps_and_its_bytes_follow():
    pool = ends()
    ids = pool.alloc(8, name="b")
    kept = ids[[0, 3, 5, 6]].clone()
    still = mark(pool, "b", kept)
    pool.free(ids[[1, 2, 4, 7]].clone(), name="b")
    assert pool.free_pages("a") == 6
    pool.alloc(3, name="a")  # the gap has room for two
    assert pool.stats().sub_pools["b"].span == 7
    assert still()
    pool.alloc(3, name="a")
    assert (pool.stats().sub_pools["b"].span, pool.stats().sub_pools["b"].holes) == (4, 0)
    assert still()
    assert pool.audit() == []


def test_a_float_in_the_way_is_moved_whole_and_its_bytes_with_it():
    pool = between(float_bytes=32, data=320)
    ids = pool.alloc(3, name="f")
    still = mark(pool, "f", ids)
    first_byte, end_byte = span(pool, "f")
    assert first_byte > 64 + 96, "an empty float sits down in the middle"
    a = pool.alloc(12, name="a")  # to the float's far side
    assert span(pool, "f")[0] >= 64 + 12 * 16
    assert still()
    pool.free(a, name="a")
    pool.alloc(12, name="b")
    assert span(pool, "f")[1] <= 64 + 320 - 12 * 16 < end_byte
    assert still()
    assert pool.audit() == []
    pool.check()


def test_a_float_that_holds_nothing_sits_down_anew_where_there_is_room():
    pool = between()
    pool.free(pool.alloc(2, name="f"), name="f")
    pool.alloc(6, name="a")  # over where the float was
    assert pool.stats().sub_pools["f"].span < 2
    pool.compact(name="f")
    ids = pool.alloc(2, name="f")
    assert where(pool, "f", ids) == [pool.tables["f"].p2v.shape[0] - 1 - 3 + i for i in range(1, 3)]
    assert pool.audit() == []


def test_nothing_is_moved_where_a_demand_fits_as_it_is():
    pool = ends()
    pool.free(pool.alloc(4, name="b"), name="b")
    before = span(pool, "b")
    pool.alloc(6, name="a")
    assert span(pool, "b") == before


def test_a_call_that_is_refused_moves_nothing_though_room_would_have_to_be_made():
    pool = make(FULL, SubPool(name="window", page_size=4, page_bytes=64, grows="down", ids_of="full"), data=64 * 8)
    pool.free(pool.alloc(4, also=["window"]), also={"window": 4})
    row = pool.open_row()
    before = everything(pool)
    rows, out = ints(row.index), slots(24, "full")["full"]
    for wrong in (
        lambda: pool.extend(rows, ints(0), ints(0), slots=out, pages=6),
        lambda: pool.extend(rows.long(), ints(0), ints(0, 24), slots=out, pages=6),
        lambda: pool.extend(rows, ints(0), ints(0, 24), slots={"full": out, "window": out[:3]}, pages=6),
    ):
        with pytest.raises(InvalidArgument):
            wrong()
        assert same(before, everything(pool))


def test_full_checks_find_a_wrong_count_before_room_is_made():
    pool = make(
        FULL, SubPool(name="b", page_size=1, page_bytes=64, grows="down"), data=64 * 6, checks="full", form="token"
    )
    pool.free(pool.alloc(4, name="b"), name="b")
    row = pool.open_row()
    before = everything(pool)
    with pytest.raises(FaultError, match="count_mismatch: 3"):
        pool.extend(ints(row.index), ints(0), ints(0, 12), slots=slots(12, "full")["full"], pages=4)
    assert same(before, everything(pool))
    pool.extend(ints(row.index), ints(0), ints(0, 12), slots=slots(12, "full")["full"], pages=3)
    assert pool.stats().sub_pools["b"].span == 3
    assert pool.audit() == []


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_a_joint_lease_is_all_or_nothing_and_bounds_calls_that_move_no_count():
    pool = make(FULL, WINDOW, STATE, data=640)
    with pytest.raises(OutOfPages):
        pool.reserve({"full": 4, "window": 4, "state": 2})
    lease = pool.reserve({"full": 4, "window": 4, "state": 1})
    assert lease.pages == {"full": 4, "window": 4, "state": 1}
    before = pool.stats()
    ids = pool.alloc(2, also=["window"], on_lease=True)
    row = pool.open_row()
    pool.extend(ints(row.index), ints(0), ints(0, 8), slots=slots(8, "full", "window"), pages=None)
    pool.alloc(1, name="state", on_lease=True)
    pool.free(ids, also={"window": 2}, on_lease=True)
    assert pool.stats().sub_pools == before.sub_pools
    lease.settle({"full": 2, "window": 2, "state": 1}, peak={"full": 4, "window": 4, "state": 1})
    assert live(pool) == {"full": 2, "window": 2, "state": 1}
    assert pool.stats().sub_pools["full"].span == 4
    assert pool.audit() == []
    pool.check()


def test_what_a_settled_lease_kept_free_is_free_at_once():
    pool = between()
    lease = pool.reserve({"a": 4, "b": 4})
    assert pool.free_pages("f") == 0, "where a float may lie beside leased pages is not known"
    lease.settle(0)
    ids = pool.alloc(10, name="f")
    assert 0 not in ids.tolist()
    assert pool.audit() == []
    pool.check()


def test_beside_a_float_takes_wait_until_the_lease_is_settled():
    pool = between()
    lease = pool.reserve({"f": 2})
    assert not pool.can_reserve({"a": 1})
    assert pool.stats().sub_pools["a"].free == 0
    before = everything(pool)
    with pytest.raises(InvalidArgument, match=r"a lease of \{'f': 2\} pages is open.*settle it first"):
        pool.alloc(1, name="a")
    assert same(before, everything(pool))
    lease.settle({"f": 0})
    assert pool.can_reserve({"a": 1})


def test_pages_freed_beside_a_lease_are_not_promised_to_a_neighbour_that_cannot_reach_them():
    pool = ends(data=160)
    old = pool.alloc(3, name="a")
    lease = pool.reserve({"a": 5})
    pool.alloc(5, name="a", on_lease=True)  # the host does not know; its span is 8 now
    pool.free(old, name="a")
    assert pool.free_pages("b") == 2
    pool.alloc(2, name="b")
    with pytest.raises(OutOfPages):
        pool.alloc(1, name="b")
    lease.settle({"a": 5})
    assert pool.audit() == []
    pool.check()
    assert pool.free_pages("b") == 3


def test_reconcile_waits_for_the_lease_to_be_settled():
    pool = ends()
    lease = pool.reserve({"a": 2})
    with pytest.raises(InvalidArgument, match="settle it first"):
        pool.reconcile()
    lease.settle(0)
    assert pool.reconcile() == pool.stats()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_lease_that_was_too_small_starves_lanes_and_crosses_no_frontier(name):
    pool = between(data=192)
    held = {other: pool.alloc(3, name=other) for other in ("f", "a", "b")}
    still = [mark(pool, other, ids) for other, ids in held.items()]
    lease = pool.reserve({name: 1})
    before = {other: span(pool, other) for other in held if other != name}
    got = pool.alloc(8, name=name, on_lease=True)
    found = int((got > 0).sum())
    assert 1 <= found < 8
    assert got.tolist() == [*range(4, 4 + found), *[0] * (8 - found)]
    lease.settle({name: 1})
    assert pool.poll()[name]["starved"] == 8 - found
    pool.reconcile()
    assert pool.audit() == []
    assert all(look() for look in still)
    assert {other: span(pool, other) for other in before} == before
    assert pool.buffer[:48].count_nonzero() == 0, "the sinks hold nothing"


def test_who_is_past_a_cap_does_not_keep_others_from_their_pages():
    capped = SubPool(name="b", page_size=1, page_bytes=16, grows="down", max_pages=2)
    pool = make(SubPool(name="a", page_size=1, page_bytes=16, grows="up"), capped, data=160)
    lease = pool.reserve({"b": 2})
    pool.alloc(4, name="b", on_lease=True)
    lease.settle({"b": 2})
    pool.reconcile()
    assert (pool.free_pages("b"), pool.free_pages("a")) == (0, 6)
    pool.alloc(6, name="a")
    assert pool.audit() == []


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sub_pools", "told"),
    [
        ([], "there must be one"),
        ([FULL, FULL], "each needs a name of its own"),
        ([STATE, FULL], "sub_pools grow down, up; by rising address they must be one end"),
        ([WINDOW], "sub_pools grow float"),
        ([FULL, SubPool(name="w", page_size=4, page_bytes=32, grows="down", ids_of="ful")], "owns no ids; owners"),
        ([FULL, SubPool(name="w", page_size=2, page_bytes=32, grows="down", ids_of="full")], "they must be equal"),
        ([FULL, SubPool(name="w", page_size=4, page_bytes=24, grows="down", ids_of="full")], "a multiple of 16: pad"),
        (
            [
                SubPool(name="x", page_size=4, page_bytes=16, grows="up", ids_of="y"),
                SubPool(name="y", page_size=4, page_bytes=16, grows="float"),
                STATE,
            ],
            "let the borrower float instead",
        ),
    ],
)
def test_a_chain_that_cannot_be_is_refused_with_what_to_do(sub_pools, told):
    with pytest.raises(InvalidArgument, match=told):
        make(*sub_pools)


@pytest.mark.parametrize(
    "field",
    [
        {"page_size": 0},
        {"page_bytes": 0},
        {"page_bytes": 2**30 + 1},
        {"multiplier": 0},
        {"grows": "in"},
        {"max_pages": -1},
    ],
)
def test_a_sub_pool_that_cannot_be_is_refused(field):
    with pytest.raises(InvalidArgument, match=f"{next(iter(field))} of sub-pool 'x'"):
        SubPool(**{"name": "x", "page_size": 1, "page_bytes": 16, "grows": "up", **field})


def test_sinks_that_do_not_fit_are_refused():
    with pytest.raises(
        InvalidArgument, match="total_bytes is 100; the sinks alone, one page of each sub-pool, take 224"
    ):
        UnifiedPool(100, [FULL, WINDOW, STATE], **SIZES)


def test_messages_name_the_sub_pool_and_what_there_is():
    pool = make(FULL, WINDOW, STATE)
    for call, told in (
        (lambda: pool.alloc(1, name="ful"), "sub-pool 'ful' does not exist; .* did you mean 'full'"),
        (lambda: pool.alloc(1, name="window"), "'window' borrows the ids of 'full': name the owner"),
        (
            lambda: pool.alloc(1, also=["state"]),
            r"'state' does not borrow the ids of 'full'; those that do: \['window'\]",
        ),
        (lambda: pool.reserve({"full": -1}), "the pages of 'full' is -1"),
        (lambda: pool.free(ints(1)), "1 pages are given back to 'full', 0 are live"),
        (lambda: pool.alloc(1, on_lease=True), "no lease is open"),
        (lambda: pool.evict_window(ints(0), ints(0), pages=0, name="state"), "'state' does not borrow the ids"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            call()
    with pytest.raises(OutOfPages, match="17 pages of 'state' asked, 16 free") as caught:
        pool.alloc(17, name="state")
    error = caught.value
    assert (error.asked, error.free, error.holes, error.capacity) == (17, 16, 0, 16)


def test_a_demand_that_one_side_cannot_meet_changes_neither():  # vllm 11565, kvcached 364
    pool = make(FULL, SubPool(name="window", page_size=4, page_bytes=64, grows="down", ids_of="full"), data=64 * 7)
    ids = pool.alloc(2, also=["window"])
    pool.free(ids[:1].clone(), also={"window": 1})  # holes on both sides, so that relief is thinkable
    pool.alloc(3)
    row = pool.open_row()
    assert pool.free_pages("window") == 2
    pool.alloc(1)
    assert pool.free_pages("window") == 1
    before = everything(pool)
    for call in (
        lambda: pool.alloc(2, also=["window"]),
        lambda: pool.reserve({"full": 2, "window": 2}),
        lambda: pool.extend(ints(row.index), ints(0), ints(0, 8), slots=slots(8, "full", "window"), pages=2),
    ):
        with pytest.raises(OutOfPages):
            call()
        assert same(before, everything(pool))


def test_a_late_release_leaves_the_new_owners_row_and_windows():  # TensorRT-LLM 14423
    pool = make(FULL, WINDOW, STATE, max_requests=1)
    first = pool.open_row()
    pool.extend(ints(0), ints(0), ints(0, 8), slots=slots(8, "full", "window"), pages=2)
    pool.release([first], ints(0), ints(8), pages={"full": 2, "window": 2})
    pool.open_row()
    pool.extend(ints(0), ints(0), ints(0, 8), slots=slots(8, "full", "window"), pages=2)
    before = everything(pool)
    with pytest.raises(InvalidArgument, match=r"row 0 \(generation 0\) was released before and may have a new owner"):
        pool.release([first], ints(0), ints(8), pages={"full": 2, "window": 2})
    assert same(before, everything(pool))


def test_full_checks_name_the_id_and_the_call_that_released_it_first():
    pool = make(FULL, WINDOW, STATE, checks="full")
    ids = pool.alloc(3, also=["window"])
    pool.free(ids[1:2].clone(), also={"window": 1})
    row = pool.open_row()
    pool.extend(ints(row.index), ints(0), ints(0, 4), slots=slots(4, "full", "window"), pages=1)
    pool.release([row], ints(row.index), ints(4), pages={"full": 1, "window": 1})
    before = everything(pool)
    with pytest.raises(FaultError, match=r"double_free: 2; id 2 was released first by release in 'full', release 2"):
        pool.free(ids[1:2].clone())
    assert same(before, everything(pool))


def test_full_checks_judge_every_part_of_a_free_before_the_first():
    pool = make(FULL, WINDOW, STATE, checks="full")
    ids = pool.alloc(2, also=["window"])
    pool.alloc(2, also=["window"])
    pool.free(ids[:1].clone(), also={"window": 1})
    before = everything(pool)
    with pytest.raises(FaultError, match="free was refused, nothing was written: double_free: 1"):
        pool.free(ids, also={"window": 1})  # the window would let go of id 2 before the owner refuses id 1
    assert same(before, everything(pool))


def test_a_digest_tells_rows_whose_windows_have_moved_on_from_others():
    digests = []
    for begin in (0, 8):
        pool = make(FULL, WINDOW, STATE)
        row = pool.open_row()
        pool.extend(ints(row.index), ints(0), ints(0, 8), slots=slots(8, "full")["full"], pages=2)
        pool.evict_window(ints(row.index), ints(begin), pages=0)
        digests.append(pool.digest())
    assert digests[0] != digests[1], "the tables are equal, but an eviction will not begin at the same page"


# ---- ranks, bytes, views ---------------------------------------------------------------------------------------------


def test_ranks_of_different_capacity_agree_by_a_cap_and_hold_equal_tables():  # nano-vllm 275, TensorRT-LLM 17380
    kind = {"name": "pages", "page_size": 4, "page_bytes": 16, "grows": "up", "max_pages": 63}
    ranks = [UnifiedPool(16 * (pages + 1), [SubPool(**kind)], **SIZES) for pages in (100, 63)]
    told = []
    for pool in ranks:
        assert pool.stats().sub_pools["pages"].capacity == pool.free_pages() == 63
        ids = pool.alloc(60)
        pool.free(ids[::3].clone())
        with pytest.raises(OutOfPages):
            pool.alloc(24)
        pool.alloc(23)
        pool.free(ids[1::3].clone())
        assert pool.compact(7) == 7
        row = pool.open_row()
        pool.extend(ints(row.index), ints(0), ints(0, 30), slots=slots(30, "pages")["pages"], pages=8)
        assert pool.audit() == []
        told.append(pool.digest())
    assert told[0] == told[1]


def test_bytes_recycled_to_another_kind_are_cleared_and_the_sinks_stay_finite():  # vllm 35219, sglang 33974
    state = SubPool(name="state", page_size=1, page_bytes=128, grows="up")
    kv = SubPool(name="kv", page_size=4, page_bytes=64, grows="down", zero_on_alloc=True)
    pool = make(state, kv, data=320, rows_of="kv")
    states = pool.view("state", torch.bfloat16, (64,))
    ids = pool.alloc(2, name="state")
    states[where(pool, "state", ids)] = float("nan")
    pool.free(ids, name="state")
    ids = pool.alloc(pool.free_pages())  # the state's bytes among them
    assert pool.stats().sub_pools["state"].span == 0
    assert pool.view("kv", torch.int64, (8,))[where(pool, "kv", ids)].count_nonzero() == 0
    keys = pool.view("kv", torch.bfloat16, (4, 8))
    padded = torch.full((3,), -7, dtype=torch.int32)
    pool.plan_translate(3)(ints(-1, -1, 4), pool.tables["kv"].v2p, out=padded)
    assert padded.tolist() == [0, 0, 4 * where(pool, "kv", ints(1))[0]]
    keys.view(-1, 8)[padded.long()] = 1.0
    assert keys[0].isfinite().all(), "writes of padded tokens land in the sink"
    assert keys[where(pool, "kv", ids[1:])].count_nonzero() == 0
    lease = pool.reserve({"kv": 0})
    assert pool.alloc(2, on_lease=True).tolist() == [0, 0]
    lease.settle(0)
    assert keys[0].isfinite().all()


def test_views_are_strided_windows_on_pages_and_move_with_them():
    pool = ends(a=64, data=640)
    ids = pool.alloc(4, name="a")
    base = pool.view("a", torch.uint8, (64,))
    keys, values = pool.view("a", torch.float16, (2, 8)), pool.view("a", torch.float16, (2, 8), offset=32)
    assert keys.shape == values.shape == (pool.tables["a"].p2v.shape[0] - 1, 2, 8)
    assert keys.stride() == (32, 8, 1)
    at = where(pool, "a", ids)
    keys[at[3]], values[at[3]] = 1.5, -2.5
    assert base[at[3]].view(torch.float16).tolist() == [1.5] * 16 + [-2.5] * 16
    pool.free(ids[:2].clone(), name="a")
    pool.compact(name="a")
    [moved] = where(pool, "a", ids[3:])
    assert moved != at[3]
    assert (keys[moved].unique().tolist(), values[moved].unique().tolist()) == ([1.5], [-2.5])


def test_views_that_cannot_be_are_refused():
    pool = ends(a=64, data=640)
    for wrong, told in (
        (("a", torch.uint8, (65,)), "65 cells of torch.uint8 at offset 0 end at byte 65"),
        (("a", torch.uint8, (0,)), "each size of shape"),
        (("c", torch.uint8, (1,)), "sub-pool 'c' does not exist"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            pool.view(*wrong)
    with pytest.raises(InvalidArgument, match="multiples of the 4 bytes"):
        pool.view("a", torch.float32, (1,), offset=2)
    with pytest.raises(InvalidArgument, match="buffer=False; it has no bytes to view"):
        ends(buffer=False).view("a", torch.uint8, (1,))


@pytest.mark.parametrize(("rank", "right"), [(0, [4, 0, 5, 0]), (1, [0, 4, 0, 5])])
def test_a_rank_stores_its_share_of_a_pages_tokens_and_finds_them_after_a_move(rank, right):  # vllm 51031, sglang 37693
    pool = page_pool(8, 2, ranks=2, rank=rank, **SIZES)
    ids = pool.alloc(3)
    pool.free(ids[:2].clone())
    assert pool.compact(1) == 1
    assert where(pool, "pages", ids[2:]) == [2]
    out = torch.full((6,), -7, dtype=torch.int32)
    v = int(ids[2])
    pool.plan_translate(6)(ints(*range(4 * v, 4 * v + 4), -1, 4), pool.tables["pages"].v2p, out=out)
    assert out.tolist() == [*right, 0, 0]
    row = pool.open_row()
    pool.assign(ints(row.index), ids[2:].clone(), ints(0, 1))
    written = slots(2, "pages")["pages"]
    pool.extend(ints(row.index), ints(1), ints(0, 2), slots=written, pages=0)
    assert written.tolist() == right[1:3]


@pytest.mark.parametrize("backend", ["cpu", *ON_CUDA])
def test_a_step_prepared_while_another_is_pending_changes_nothing_of_it(backend):  # TensorRT-LLM 15546
    def drive(stall, wait):
        device = "cpu" if backend == "cpu" else "cuda"
        pool = make(FULL, WINDOW, STATE, backend=backend, device=device)
        rows = [pool.open_row() for _ in range(2)]
        calls = [
            (ints(row.index, device=device), ints(0, device=device), ints(0, n, device=device), n)
            for row, n in zip(rows, (9, 14), strict=True)
        ]
        given = [slots(n, "full", "window", device=device) for *_, n in calls]
        tables = [torch.full((1, 8), -7, dtype=torch.int32, device=device) for _ in calls]
        read_table = pool.plan_read_table(8, fill="sink")
        lens = [ints(n, device=device) for *_, n in calls]
        with stall():
            for (row, prefix, indptr, n), out, table, length in zip(calls, given, tables, lens, strict=True):
                pool.extend(row, prefix, indptr, slots=out, pages=pool.new_pages(0, n))
                read_table(pool.requests.table, row, length, pool.tables["full"].v2p, out=table)
                wait()
        return [t.tolist() for t in [*tables, *(t for out in given for t in out.values())]], pool.digest()

    if backend == "cpu":
        assert drive(nullcontext, lambda: None) == drive(nullcontext, lambda: None)
        return

    def stalled():
        torch.cuda._sleep(200_000_000)
        return nullcontext()

    assert drive(stalled, lambda: None) == drive(nullcontext, torch.cuda.synchronize)


def test_an_allocator_serves_ids_without_a_request_table():
    pool = MultiEndedAllocator(16 * 11, [SubPool(name="a", page_size=1, page_bytes=16, grows="down")], backend="cpu")
    ids = pool.alloc(4)
    pool.free(ids[1:3].clone())
    assert pool.compact() == 2
    assert pool.stats().rows == 0
    assert pool.audit() == []
