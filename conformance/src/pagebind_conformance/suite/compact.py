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
from pagebind_conformance.guarded import Guarded, Layout
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


def laid(live: Sequence[int], holes: Sequence[int], seed: int = 3) -> SubPool:
    """Return a sub-pool of these live pages, bound to random ids, and this hole stack from the bottom; some room."""
    span = len(live) + len(holes)
    num_virtual, num_physical = len(live) + 7, span + 3
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


def refusals() -> dict[str, tuple[SubPool, int]]:
    """Return calls that nothing may come of: the host's counts are wrong, or a page was bound by hand."""
    pool = laid([2, 5, 7, 8], [4, 1, 6, 3])
    by_hand = laid([2, 5, 7, 8], [4, 1, 6, 3])
    v = by_hand.virtual_stack[0]
    by_hand.v2p[v], by_hand.p2v[6] = 6, v
    return {
        "holes-below-retreat": (pool, 5),
        "no-holes": (laid([2, 1, 3], []), 1),
        "watermark-below-retreat": (pool._replace(watermark=2), 3),
        "bound-by-hand-in-the-band": (by_hand, 4),
        "holes-that-are-none": (pool._replace(hole_stack=[0, 1, 999, -1, *pool.hole_stack[4:]]), 3),
    }


@every_spec
@pytest.mark.parametrize("name", refusals())
def test_a_refused_retreat_is_counted_and_changes_nothing(subject: Subject, planned: CompactSpec, name: str) -> None:
    pool, retreat = refusals()[name]
    done = compact(subject, planned, pool, retreat, capacity=retreat + 2)
    assert set(done.sources[:retreat]) == set(done.targets[:retreat]) == {-1}
    assert done.pool == pool
    compact(subject, planned, pool, retreat, how=How(checks="off"))
    with pytest.raises(FaultError, match="count_mismatch"):
        compact(subject, planned, pool, retreat, how=How(checks="full"))


def test_full_checks_let_a_sound_retreat_pass(subject: Subject) -> None:
    compact(subject, SPECS[1], laid([2, 5, 7, 8], [4, 1, 6, 3]), 4, how=How(checks="full"))


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
    for threads, programs in ((32, 1), (32, 3), (64, 2)):
        compact(subject, planned, pool, 90, how=How(options=LaunchOptions(threads=threads, programs=programs)))


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
}
"""Bytes of a page, retreat, and what becomes of the arguments: a slice of the tensor or another one."""


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_and_change_nothing(subject: Subject, name: str) -> None:
    page_bytes, retreat, changes = BAD[name]
    planned = CompactSpec(max_pages=3, page_bytes=page_bytes)
    # 16 bytes too many, so that a view from the second byte on is unaligned and long enough.
    arguments = compact_case(subject, planned, laid([2, 5, 7, 8], [4, 1, 6, 3]), retreat, capacity=3, past=16)
    bad = dict(arguments)
    for argument, change in changes.items():
        value: Guarded = arguments[argument]
        bad[argument] = value.view[change] if isinstance(change, slice) else change and change(subject.device)
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
        pool = generate.sub_pool(rng, *sizes, live, holes)
        retreat = rng.choice([pool.hole_top, rng.randint(0, pool.hole_top)])
        if not sound:
            pool = gone_wrong(rng, pool)
            retreat += rng.randint(0, 1)
        layouts = {name: Layout(shift=shift) for name in ("v2p", "p2v", "hole_stack", "sources", "targets")}
        how = How(layouts=layouts | {"buffer": Layout(shift=16 * shift)})
        done = compact(subject, planned, pool, retreat, capacity=retreat + more, past=more, how=how)
        if sound:
            assert (done.pool.hole_top, done.pool.watermark) == (pool.hole_top - retreat, pool.watermark - retreat)

    equal()


@every_spec
def test_a_replayed_retreat_equals_as_many_eager_ones(subject: Subject, planned: CompactSpec) -> None:
    subject.need_mode("gpu", what="graph replay")
    if subject.composed:
        pytest.skip("graph replay needs a planner of its own; this is composed, which waits")
    pool = generate.sub_pool(Random(9), 60, 50, 25, 15)
    replayed, eager = (compact_case(subject, planned, pool, 1) for _ in range(2))
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
