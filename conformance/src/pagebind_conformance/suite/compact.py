"""compact: the frontier retreats, live pages above it move into holes below, and their bytes with them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import FaultError, InvalidArgument
from pagebind.ops import COMPACT, AllocSpec, CompactSpec, FreeSpec, TranslateSpec

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.graphs import capture
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import GuardedPool, How, call, compare
from pagebind_conformance.trial.compact import compact, compact_case, expect, marked, marker
from pagebind_conformance.trial.free import free
from pagebind_conformance.trial.sample import same
from pagebind_conformance.trial.translate import translate

OPERATION = COMPACT
LONG = torch.int64
SPECS = [
    CompactSpec(max_pages=512),
    CompactSpec(max_pages=512, page_bytes=16, id_dtype=LONG),
    CompactSpec(max_pages=512, page_bytes=48, index_dtype=LONG),
    CompactSpec(max_pages=512, index_dtype=LONG, id_dtype=LONG),
    CompactSpec(max_pages=512, page_bytes=4096),
]


def identify(value: CompactSpec) -> str:
    """Spell a spec by the bytes of a page and the dtypes of index and ids."""
    return f"bytes{value.page_bytes}-i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
small_specs = pytest.mark.parametrize("planned", SPECS[:4], ids=identify)
two_specs = pytest.mark.parametrize("planned", SPECS[2:4], ids=identify)


def laid(live: Sequence[int], holes: Sequence[int], seed: int = 3, *, seat: int = 0, above: int = 2) -> SubPool:
    """Return a sub-pool of these live pages, bound to random ids, and this hole stack from the bottom.

    Pages 1 to `seat` are free, and `above` ones past the span.
    """
    span = len(live) + len(holes)
    num_virtual, num_physical = len(live) + 7, seat + span + above + 1
    ids = Random(seed).sample(range(1, num_virtual), num_virtual - 1)
    v2p, p2v = [0] + [-1] * num_virtual, [0] + [-1] * num_physical
    for v, p in zip(ids, live, strict=False):
        v2p[v], p2v[p] = p, v
    free_ids = ids[len(live) :]
    return SubPool(
        v2p,
        p2v,
        free_ids + [generate.STACK_POISON] * (num_virtual - len(free_ids)),
        [*holes, *[generate.STACK_POISON] * (num_physical - len(holes))],
        len(free_ids),
        len(holes),
        span,
        4,
        seat,
    )


def shuffled(first: int, last: int) -> list[int]:
    """Return the pages `[first, last]` in random order."""
    return Random(last).sample(range(first, last + 1), last + 1 - first)


@every_spec
def test_live_pages_of_the_band_move_ascending_into_the_holes_from_the_top(
    subject: Subject, planned: CompactSpec
) -> None:
    pool = laid([1, 3, 5, 7, 8], [2, 4, 6])
    on_7, on_8 = pool.p2v[7], pool.p2v[8]
    done = compact(subject, planned, pool, 3)
    assert (done.sources, done.targets) == ([7, 8, -1], [4, 2, -1])
    assert done.pool.p2v == [0, pool.p2v[1], on_8, pool.p2v[3], on_7, pool.p2v[5], *[-1] * 6]
    assert (done.pool.v2p[on_7], done.pool.v2p[on_8]) == (4, 2)
    assert (done.pool.hole_top, done.pool.watermark, done.pool.epoch) == (0, 5, 5)


@every_spec
def test_the_other_holes_keep_their_order(subject: Subject, planned: CompactSpec) -> None:
    done = compact(subject, planned, laid([2, 5, 7, 9], [4, 1, 8, 6, 3]), 2, capacity=5)
    assert (done.sources[:2], done.targets[:2]) == ([9, -1], [3, -1])
    assert done.pool.hole_stack[:3] == [4, 1, 6]
    assert (done.pool.hole_top, done.pool.watermark) == (3, 7)


# ---- the low end, and fresh pages at the other end ----


@small_specs
def test_the_low_end_moves_its_live_pages_ascending_too(subject: Subject, planned: CompactSpec) -> None:
    pool = laid([6, 7, 9, 11, 13], [12, 8, 10], seat=5)
    on_6, on_7 = pool.p2v[6], pool.p2v[7]
    done = compact(subject, planned, pool, 3, side="low")  # pages 6, 7, 8 leave
    assert (done.sources, done.targets) == ([6, 7, -1], [10, 12, -1])
    assert (done.pool.v2p[on_6], done.pool.v2p[on_7]) == (10, 12)
    assert (done.pool.seat, done.pool.watermark, done.pool.hole_top, done.pool.epoch) == (8, 5, 0, 5)


@small_specs
def test_the_high_end_of_a_span_with_a_seat(subject: Subject, planned: CompactSpec) -> None:
    done = compact(subject, planned, laid([6, 8, 10, 12, 13], [7, 9, 11], seat=5), 3)
    assert (done.sources, done.targets) == ([12, 13, -1], [9, 7, -1])
    assert (done.pool.seat, done.pool.watermark, done.pool.hole_top) == (5, 5, 0)


@small_specs
def test_the_other_holes_keep_their_order_at_the_low_end_too(subject: Subject, planned: CompactSpec) -> None:
    done = compact(subject, planned, laid([2, 5, 7, 9], [4, 1, 8, 6, 3]), 2, side="low", capacity=5)
    assert (done.sources[:2], done.targets[:2]) == ([2, -1], [3, -1])
    assert done.pool.hole_stack[:3] == [4, 8, 6]
    assert (done.pool.hole_top, done.pool.watermark, done.pool.seat) == (3, 7, 2)


@every_spec
def test_past_its_holes_a_retreat_takes_fresh_pages_at_the_other_end(subject: Subject, planned: CompactSpec) -> None:
    # Of the band 6 to 9 three are live; two holes, one of them in the band; so 8 and 9 need fresh pages.
    pool = laid([6, 8, 9, 10, 12], [11, 7], seat=5, above=3)
    done = compact(subject, planned, pool, 4, side="low", fresh=2)
    assert (done.sources, done.targets) == ([6, 8, 9, -1], [11, 13, 14, -1])
    assert (done.pool.seat, done.pool.watermark, done.pool.hole_top) == (9, 5, 0)
    # The same upside down: of 9 to 12 three are live.
    pool = laid([6, 8, 9, 10, 12], [11, 7], seat=5)
    done = compact(subject, planned, pool, 4, fresh=2)
    assert (done.sources, done.targets) == ([9, 10, 12, -1], [7, 5, 4, -1])
    assert (done.pool.seat, done.pool.watermark, done.pool.hole_top) == (3, 5, 0)


@two_specs
@pytest.mark.parametrize("side", ["low", "high"])
@pytest.mark.parametrize("skip", [0, 1, 4], ids="skip{}".format)
def test_a_whole_span_is_seated_anew_away_from_where_it_was(
    subject: Subject, planned: CompactSpec, side: str, skip: int
) -> None:
    pool = laid([9, 11, 12], [8, 10], seat=7, above=7)
    done = compact(subject, planned, pool, 5, side=side, fresh=3, skip=skip, capacity=6)
    first = 13 + skip if side == "low" else 5 - skip
    assert done.sources[:5] == [9, 11, 12, -1, -1]
    assert done.targets[:3] == ([first, first + 1, first + 2] if side == "low" else [first + 2, first + 1, first])
    assert (done.pool.seat, done.pool.watermark, done.pool.hole_top) == (first - 1, 3, 0)
    # Without a live page there is nothing to take: an empty span is seated where one is asked to be.
    nothing = compact(subject, planned, laid([], [9, 8, 10], seat=7, above=7), 3, side=side, skip=skip)
    assert (nothing.pool.seat, nothing.pool.watermark) == (10 + skip if side == "low" else 7 - skip, 0)


@small_specs
@pytest.mark.parametrize("place", [1, 2], ids=["float", "down"])
def test_retreats_in_a_chain_stop_at_its_neighbours(subject: Subject, planned: CompactSpec, place: int) -> None:
    # Pages are of 16, 32 and 16 bytes; the float has 5 pages of room below it and 3 above.
    blocks = generate.empty_blocks((16, 32, 16), 64 * 16)
    blocks[0] = blocks[0]._replace(watermark=12)
    blocks[1] = blocks[1]._replace(seat=12, watermark=9)
    blocks[2] = blocks[2]._replace(seat=blocks[2].seat - 12, watermark=12)
    if place == 2:
        pool = generate.member(Random(1), blocks, 2, 64 * 16, 40, 7)
        for retreat in (1, 5):
            compact(subject, planned, pool, retreat, side="low")
        return
    pool = generate.member(Random(2), blocks, 1, 64 * 16, 40, 9)
    above, below = len(pool.room().above), len(pool.room().below)
    assert (above, below) == (3, 5)
    for side, most in (("low", above), ("high", below)):
        for retreat in (1, most, most + 1):
            done = compact(subject, planned, pool, retreat, side=side, fresh=retreat)
            assert (done.pool.watermark, done.pool.epoch) == (9, pool.epoch + (retreat <= most))
        leased = generate.leased(pool, 0 if side == "high" else 2, 14)  # 2 pages of 16 bytes more than it holds
        assert compact(subject, planned, leased, most, side=side, fresh=most).pool == leased
        assert compact(subject, planned, leased, most - 1, side=side, fresh=most - 1).pool != leased


@small_specs
@pytest.mark.parametrize("holes", [1, 31, 33, 63, 512], ids="holes{}".format)
def test_awkward_retreats_of_the_low_end(subject: Subject, planned: CompactSpec, holes: int) -> None:
    holes = min(holes, 100) if subject.slow or planned.page_bytes > 1000 else holes
    pool = generate.sub_pool(Random(holes), 700, 2 * holes + 60, holes + 9, holes, seat=13)
    for retreat in {holes} if subject.slow else sorted({1, holes // 2, holes}):
        compact(subject, planned, pool, retreat, side="low")


@small_specs
@pytest.mark.parametrize("n", [1, 31, 33, 250], ids="n{}".format)
def test_awkward_numbers_of_fresh_pages(subject: Subject, planned: CompactSpec, n: int) -> None:
    n = min(n, 100) if subject.slow or planned.page_bytes > 1000 else n
    pool = generate.sub_pool(Random(n), 700, 3 * n + 60, n + 9, 9, seat=n + 13)
    for side, retreat in (("low", n + 9), ("high", n + 18), ("high", n + 9), ("low", n + 18))[
        : 2 if subject.slow else 4
    ]:
        compact(subject, planned, pool, retreat, side=side, fresh=retreat - 9)


@every_spec
def test_case_03_ids_read_their_new_pages_after_the_first_move(subject: Subject, planned: CompactSpec) -> None:
    dtype = planned.index_dtype
    pool = SubPool([0, *[-1] * 4], [0, *[-1] * 4], [3, 2, 1, 0], [0] * 4, 3, 0, 0)
    placed = GuardedPool(pool, dtype, subject.device)
    pool, ids, _ = alloc(subject, AllocSpec(max_items=4, index_dtype=dtype), pool, 3, placed)
    assert ids == [1, 2, 3]
    pool, _ = free(subject, FreeSpec(max_items=4, index_dtype=dtype), pool, [2], placed)
    pool, sources, targets, data = compact(subject, planned, pool, 1, placed=placed)
    assert (sources, targets) == ([3], [2])
    reading = TranslateSpec(max_items=4, page_size=1, num_physical=4, index_dtype=dtype)
    assert translate(subject, reading, [1, 3], placed.parts["v2p"].values()) == [1, 2]
    assert placed.parts["p2v"].values()[3] == -1
    if data is not None:
        size = planned.page_bytes
        assert data[2 * size : 3 * size] == marker(3, size)
    # What comes next takes the frontier's page, not one of a stale hole.
    _, ids, pages = alloc(subject, AllocSpec(max_items=4, index_dtype=dtype), pool, 1, placed)
    assert (ids, pages) == ([2], [3])


@every_spec
@pytest.mark.parametrize("holes", [1, 31, 33, 63, 512], ids="holes{}".format)
def test_awkward_retreats(subject: Subject, planned: CompactSpec, holes: int) -> None:
    holes = min(holes, 100) if subject.slow or planned.page_bytes > 1000 else holes
    pool = generate.sub_pool(Random(holes), 700, 2 * holes + 20, holes + 9, holes)
    for retreat in sorted({0, 1, holes // 2, holes - 1, holes}):
        compact(subject, planned, pool, retreat)


@every_spec
@pytest.mark.parametrize("holes", [1, 31, 33, 63], ids="holes{}".format)
def test_holes_that_are_all_in_the_band_go_and_nothing_moves(
    subject: Subject, planned: CompactSpec, holes: int
) -> None:
    pool = laid(shuffled(1, 20), shuffled(21, 20 + holes))
    for retreat in {1, holes}:
        done = compact(subject, planned, pool, retreat)
        assert set(done.sources) == set(done.targets) == {-1}
        assert (done.pool.v2p, done.buffer) == (pool.v2p, marked(pool, planned.page_bytes))


@every_spec
@pytest.mark.parametrize("holes", [1, 31, 33, 63, 512], ids="holes{}".format)
def test_pages_that_are_all_in_the_band_all_move(subject: Subject, planned: CompactSpec, holes: int) -> None:
    holes = min(holes, 100) if subject.slow or planned.page_bytes > 1000 else holes
    pool = laid(shuffled(holes + 1, 2 * holes), shuffled(1, holes))
    done = compact(subject, planned, pool, holes)
    assert done.sources == list(range(holes + 1, 2 * holes + 1))
    assert done.targets == pool.hole_stack[:holes][::-1]


@every_spec
def test_a_span_of_holes_alone_retreats_to_nothing(subject: Subject, planned: CompactSpec) -> None:
    done = compact(subject, planned, laid([], shuffled(1, 40)), 40)
    assert (done.pool.hole_top, done.pool.watermark) == (0, 0)


@pytest.mark.parametrize("page_bytes", [16, 32, 496, 528, 1008, 65552], ids="bytes{}".format)
def test_pages_of_any_size_move_whole(subject: Subject, page_bytes: int) -> None:
    compact(subject, CompactSpec(max_pages=64, page_bytes=page_bytes), laid([2, 4, 7, 6], [3, 1, 5]), 3)


@every_spec
def test_memory_around_the_tensors_stays_as_it_was(subject: Subject, planned: CompactSpec) -> None:
    pool = laid([1, 3, 5, 7, 8], [2, 4, 6])
    for shift in (1, 3):
        names = ("v2p", "p2v", "virtual_stack", "hole_stack", "state", "sources", "targets")
        layouts = {name: Layout(shift=shift) for name in names} | {"buffer": Layout(shift=16 * shift)}
        compact(subject, planned, pool, 2, capacity=9, past=16 * shift + 5, how=How(layouts=layouts))


def refusals() -> dict[str, tuple[SubPool, int, dict[str, Any]]]:
    """Return calls that nothing may come of: the host's counts are wrong, or a page was bound by hand."""
    pool = laid([2, 5, 7, 8], [4, 1, 6, 3])
    by_hand = laid([2, 5, 7, 8], [4, 1, 6, 3])
    v = by_hand.virtual_stack[0]
    by_hand.v2p[v], by_hand.p2v[6] = 6, v
    seated = laid([6, 8, 9, 10, 12], [11, 7], seat=5, above=3)
    roomy = laid([6, 8, 9, 10, 12], [11, 7], seat=5, above=8)
    low: dict[str, Any] = {"side": "low"}
    return {
        "holes-below-retreat": (pool, 5, {}),
        "no-holes": (laid([2, 1, 3], []), 1, {}),
        "watermark-below-retreat": (pool._replace(watermark=2, hole_top=2), 3, {"fresh": 1}),
        "bound-by-hand-in-the-band": (by_hand, 4, {}),
        "holes-that-are-none": (pool._replace(hole_stack=[0, 1, 999, -1, *pool.hole_stack[4:]]), 3, {}),
        "low-holes-below-retreat": (seated, 3, low),
        "low-holes-that-are-none": (seated._replace(hole_stack=[0, 99, *seated.hole_stack[2:]]), 2, low),
        "holes-above-the-watermark": (pool._replace(watermark=3), 2, {}),
        "holes-past-the-stack": (pool._replace(hole_top=2**40), 2, {}),
        "holes-below-0": (pool._replace(hole_top=-1), 1, {"fresh": 1}),
        "seat-below-0": (pool._replace(seat=-1), 2, {}),
        "seat-past-the-table": (pool._replace(seat=3), 2, {}),
        "seat-past-64-bits": (pool._replace(seat=2**63 - 1), 2, {}),
        "low-seat-below-0": (pool._replace(seat=-(2**63)), 2, low),
        "watermark-past-64-bits": (pool._replace(watermark=2**63 - 1), 2, {}),
        "watermark-below-0": (pool._replace(watermark=-1), 2, {}),
        "fresh-past-the-room-above": (laid([1, 2, 3], []), 3, low | {"fresh": 3}),
        "fresh-past-the-room-below": (laid([4, 5, 6], [], seat=2), 3, {"fresh": 3}),
        "skip-past-the-room-above": (laid([1, 2], [], above=3), 2, low | {"fresh": 2, "skip": 2}),
        "skip-past-the-room-below": (laid([4, 5], [], seat=3), 2, {"fresh": 2, "skip": 2}),
        "skip-of-31-bits": (laid([4, 5], [], seat=3), 2, {"fresh": 2, "skip": 2**31 - 1}),
        "skip-though-a-page-stays": (roomy, 6, low | {"fresh": 4, "skip": 1}),
        "skip-though-a-hole-stays": (laid([4, 5], [3], seat=2), 2, {"fresh": 1, "skip": 1}),
        "more-live-than-holes-and-fresh": (_one_hole_in_both(seated), 4, low | {"fresh": 2}),
        "fewer-live-than-holes-and-fresh": (seated, 4, low | {"fresh": 3}),
        "fresh-though-holes-are-enough": (pool, 4, low | {"fresh": 1}),
    }


def _one_hole_in_both(pool: SubPool) -> SubPool:
    """Return the sub-pool with the bottom cell of its hole stack gone wrong: one hole less than its top counts."""
    pool = pool.copy()
    pool.hole_stack[0] = 0
    return pool


@two_specs
@pytest.mark.parametrize("name", refusals())
def test_a_refused_retreat_is_counted_and_changes_nothing(subject: Subject, planned: CompactSpec, name: str) -> None:
    pool, retreat, retreating = refusals()[name]
    done = compact(subject, planned, pool, retreat, capacity=retreat + 2, **retreating)
    assert set(done.sources[:retreat]) == set(done.targets[:retreat]) == {-1}
    assert done.pool == pool
    compact(subject, planned, pool, retreat, how=How(checks="off"), **retreating)
    with pytest.raises(FaultError, match="count_mismatch"):
        compact(subject, planned, pool, retreat, how=How(checks="full"), **retreating)


def test_full_checks_let_a_sound_retreat_pass(subject: Subject) -> None:
    compact(subject, SPECS[1], laid([2, 5, 7, 8], [4, 1, 6, 3]), 4, how=How(checks="full"))
    seated = laid([6, 8, 9, 10, 12], [11, 7], seat=5, above=3)
    compact(subject, SPECS[1], seated, 4, side="low", fresh=2, how=How(checks="full"))


@every_spec
def test_cells_of_the_stack_that_hold_no_hole_are_dropped(subject: Subject, planned: CompactSpec) -> None:
    pool = laid([2, 5, 7, 9, 10], [4, 1, 8, 6, 3])
    v = pool.virtual_stack[0]
    pool.v2p[v], pool.p2v[6] = 6, v  # bound by hand, below the band
    pool.hole_stack[1] = pool.p2v[1] = -1
    done = compact(subject, planned, pool, 2)
    assert (done.sources, done.targets) == ([9, 10], [3, 8])
    assert (done.pool.hole_stack[:1], done.pool.hole_top, done.pool.watermark) == ([4], 1, 8)


@every_spec
def test_launch_sizes_change_no_result(subject: Subject, planned: CompactSpec) -> None:
    pool = generate.sub_pool(Random(5), 300, 300, 120, 90)
    seated = generate.sub_pool(Random(6), 300, 400, 150, 40, seat=110)
    for threads, programs in ((32, 1), (32, 3), (64, 2)):
        how = How(options=LaunchOptions(threads=threads, programs=programs))
        compact(subject, planned, pool, 90, how=how)
        if planned.page_bytes < 1000:
            compact(subject, planned, seated, 120, side="high" if programs == 1 else "low", fresh=80, how=how)


BAD: dict[str, tuple[int, int, dict[str, Any]]] = {
    "buffer-missing": (16, 2, {"buffer": None}),
    "buffer-not-planned": (0, 2, {"buffer": lambda device: torch.zeros(4096, dtype=torch.uint8, device=device)}),
    "buffer-too-short": (16, 2, {"buffer": slice(0, -17)}),
    "buffer-unaligned": (16, 2, {"buffer": slice(1, None)}),
    "retreat-above-the-plan": (16, 4, {}),
    "retreat-negative": (16, -1, {}),
    "retreat-no-int": (16, True, {}),
    "sources-too-short": (16, 3, {"sources": slice(0, 2), "targets": slice(0, 2)}),
    "targets-shorter-than-sources": (16, 2, {"targets": slice(0, 2)}),
    "side-of-no-span": (0, 2, {"side": "left"}),
    "fresh-above-the-retreat": (0, 2, {"fresh": 3}),
    "fresh-negative": (0, 2, {"fresh": -1}),
    "skip-negative": (0, 2, {"skip": -1}),
    "skip-past-31-bits": (0, 2, {"skip": 2**31}),
    "skip-no-int": (0, 2, {"skip": 1.0}),
}
"""Bytes of a page, retreat, and what becomes of the arguments: a slice of the tensor or another value."""


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_and_change_nothing(subject: Subject, name: str) -> None:
    page_bytes, retreat, changes = BAD[name]
    planned = CompactSpec(max_pages=3, page_bytes=page_bytes)
    # 16 bytes too many, so that a view from the second byte on is unaligned and long enough.
    arguments = compact_case(subject, planned, laid([2, 5, 7, 8], [4, 1, 6, 3]), retreat, capacity=3, past=16)
    bad = dict(arguments)
    for argument, change in changes.items():
        if isinstance(change, slice):
            bad[argument] = arguments[argument].view[change]
        else:
            bad[argument] = change(subject.device) if callable(change) else change
    with pytest.raises(InvalidArgument, match=name.split("-", maxsplit=1)[0]):
        call(subject.plan(COMPACT, planned), COMPACT, bad)
    compare(arguments)


def gone_wrong(rng: Random, pool: SubPool) -> SubPool:
    """Return the sub-pool after what no operation does: pages bound or unbound by hand, holes lost or junk."""
    pool = pool.copy()
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["bind", "unbind", "junk", "holes", "watermark"])
        bound = [p for p, v in enumerate(pool.p2v) if v > 0]
        unbound = [v for v, p in enumerate(pool.v2p[:-1]) if p < 0]
        free_pages = [p for p, v in enumerate(pool.p2v[:-1]) if v < 0]
        if kind == "bind" and unbound and free_pages:
            v, p = rng.choice(unbound), rng.choice(free_pages)
            pool.v2p[v], pool.p2v[p] = p, v
        elif kind == "unbind" and bound:
            p = rng.choice(bound)
            pool.v2p[pool.p2v[p]] = pool.p2v[p] = -1
        elif kind == "junk" and pool.hole_top:
            outside = [0, -1, -9, len(pool.p2v) - 1, len(pool.p2v) + 5, *generate.LIMITS[torch.int32]]
            pool.hole_stack[rng.randrange(pool.hole_top)] = rng.choice(outside)
        elif kind == "holes":
            pool = pool._replace(hole_top=rng.randint(0, pool.hole_top))
        elif kind == "watermark":
            pool = pool._replace(watermark=rng.randint(0, pool.watermark))
    return pool


@every_spec
@pytest.mark.parametrize("sound", [True, False], ids=["sound", "gone-wrong"])
def test_generated_compactions_equal_the_oracle(subject: Subject, planned: CompactSpec, sound: bool) -> None:
    @subject.generated(0.5)
    @given(
        rng=generate.RANDOM,
        sizes=st.tuples(st.integers(2, 70), st.integers(2, 70)),
        live=st.integers(0, 60),
        holes=st.integers(0, 40),
        more=st.integers(0, 3),
        shift=st.integers(0, 3),
    )
    def equal(rng: Random, sizes: tuple[int, int], live: int, holes: int, more: int, shift: int) -> None:
        pool = generate.sub_pool(rng, *sizes, live, holes, seat=rng.choice([0, rng.randint(0, sizes[1] - 1)]))
        retreat = rng.choice([pool.hole_top, rng.randint(0, pool.hole_top)])
        if not sound:
            pool = gone_wrong(rng, pool)
            retreat += rng.randint(0, 1)
        layouts = {name: Layout(shift=shift) for name in ("v2p", "p2v", "hole_stack", "sources", "targets")}
        how = How(layouts=layouts | {"buffer": Layout(shift=16 * shift)})
        side = rng.choice(["high", "low"])
        done = compact(subject, planned, pool, retreat, capacity=retreat + more, past=more, how=how, side=side)
        if sound:
            assert (done.pool.hole_top, done.pool.watermark) == (pool.hole_top - retreat, pool.watermark - retreat)
            assert done.pool.seat == pool.seat + (retreat if side == "low" else 0)

    equal()


@small_specs
def test_generated_retreats_in_chains_equal_the_oracle(subject: Subject, planned: CompactSpec) -> None:
    @subject.generated(0.5)
    @given(
        rng=generate.RANDOM,
        page_bytes=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4),
        more=st.integers(0, 90),
        place=st.integers(0, 3),
        live=st.integers(0, 60),
        off=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def equal(rng: Random, page_bytes: list[int], more: int, place: int, live: int, off: int) -> None:
        total = 2 * sum(page_bytes) + more
        blocks, place = generate.filled_blocks(rng, page_bytes, total), place % len(page_bytes)
        pool = generate.member(rng, blocks, place, total, 70, live)
        retreat = rng.choice([pool.watermark, rng.randint(0, pool.watermark), min(pool.hole_top, pool.watermark)])
        fresh = min(max(retreat - pool.hole_top + off, 0), retreat)
        skip = rng.choice([0, 1, 3]) if retreat == pool.watermark or off else 0
        side = rng.choice(["high", "low"])
        done = compact(subject, planned, pool, retreat, side=side, fresh=fresh, skip=skip)
        if done.pool.epoch != pool.epoch:
            assert done.pool.watermark == pool.watermark + fresh - retreat

    equal()


@every_spec
@pytest.mark.parametrize("side", ["high", "low"])
def test_a_replayed_retreat_equals_as_many_eager_ones(subject: Subject, planned: CompactSpec, side: str) -> None:
    subject.need_mode("gpu", what="graph replay")
    if subject.composed:
        pytest.skip("graph replay needs a planner of its own; this is composed, which waits")
    pool = generate.sub_pool(Random(9), 60, 50, 25, 15)
    replayed, eager = (compact_case(subject, planned, pool, 1, side=side) for _ in range(2))
    warm = subject.plan(COMPACT, planned)
    graph = capture(subject, (warm, COMPACT, replayed))
    compare(replayed)  # a capture runs nothing
    for _ in range(pool.hole_top + 2):  # the last two find no hole and are refused
        graph.replay()
        call(warm, COMPACT, eager)
        torch.cuda.synchronize(subject.device)
        assert same(replayed, eager) is None
        expected, pool = expect(planned, pool, replayed)
        compare(replayed, expected)
    assert (pool.hole_top, pool.watermark) == (0, 25)
