"""The oracle against literal values: those of the published faults it has to know, and each line of the contracts."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from pagebind_conformance import oracle
from pagebind_conformance.oracle import DOWN, FLOAT, UP, Block, Chain, Emitted, SubPool
from pagebind_conformance.oracle.span import room


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(oracle.__path__)])
def test_the_examples_in_the_docstrings_are_true(name):
    assert doctest.testmod(import_module(f"pagebind_conformance.oracle.{name}")).failed == 0


def read(rows, lens, v2p, out, page_size=1, req_rows=None, **options):
    req_rows = list(range(len(rows))) if req_rows is None else req_rows
    return oracle.read_table(rows, req_rows, lens, v2p, out, page_size=page_size, **options)


def test_case_01():
    v2p = [0, 11, 12, 13, -1]
    assert read([[0, 1, -1, 3]], [4], v2p, [[7] * 4])[0] == [[0, 11, 0, 13]]
    assert read([[2, 3, -1, -1, 6, 7]], [6], v2p, [[7] * 3], 2)[0] == [[11, 0, 13]]


def test_case_02():
    v2p = [10 + i for i in range(9)] + [-1]
    out, counters = read([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]], [5, 2], v2p, [[7] * 3] * 3)
    assert out == [[11, 12, 13], [16, 17, 7], [7, 7, 7]]
    assert counters == {"clipped": 1, "bad_row": 0, "bad_id": 0}


def test_case_04():
    v2p, p2v, counters = oracle.bind([10, 11], [1, 2], [0] + [-1] * 12, [0] + [-1] * 3)
    assert (v2p[10], v2p[11], p2v) == (1, 2, [0, 10, 11, -1])
    assert counters == {"bad_bind": 0}


def test_case_07():
    ids, v2p = [4, 5, 6, 7, 0, -1], [0, 3, -1]
    assert oracle.translate(ids, v2p, page_size=2, ranks=2, rank=0)[0] == [6, 0, 7, 0, 0, 0]
    assert oracle.translate(ids, v2p, page_size=2, ranks=2, rank=1)[0] == [0, 6, 0, 7, 0, 0]


def test_case_09():
    assert read([[1]], [1, 0, 0, 0], [0, 5, -1], [[7]] * 4, req_rows=[0] * 4, fill="sink")[0] == [[5], [0], [0], [0]]
    assert read([[1]], [1, 0, 0, 0], [0, 5, -1], [[7]] * 4, req_rows=[0] * 4)[0] == [[5], [7], [7], [7]]


def test_case_10():
    assert read([[1]], [1], [0, 1_500_000, -1], [[7]], multiplier=2000)[0] == [[3_000_000_000]]


def three_bound():
    return SubPool([0, 1, 2, 3, -1], [0, 1, 2, 3, -1], [0] * 4, [0] * 4, 0, 0, 3, 0)


def test_case_11():
    after, freed, counters = oracle.free(three_bound(), [1, 1])
    assert freed == [1, -1]
    assert counters == {"double_free": 1, "bad_free": 0, "count_mismatch": 0}
    assert (after.virtual_top, after.hole_top, after.epoch) == (1, 1, 1)
    _, ids, pages, _ = oracle.alloc(after, 2)
    assert (ids, pages) == ([1, 0], [1, 0])


def test_case_12():
    once, _, _ = oracle.free(three_bound(), [1])
    twice, freed, counters = oracle.free(once, [1])
    assert freed == [-1]
    assert counters["double_free"] == 1
    assert twice == once._replace(epoch=2)


def test_case_21_and_22():
    assert oracle.translate([1, 2, 3, 4], [0, 40, 30, 20, 10, -1], page_size=1)[0] == [40, 30, 20, 10]
    out, counters = oracle.translate([-1, -5, 29, 9], [0, 2, 4, 1, 3, -1], page_size=4)
    assert out == [0, 0, 0, 17]
    assert counters == {"bad_id": 1}
    assert read([[1]] * 3, [0, 1, 0], [0, 5, -1], [[7]] * 3)[0] == [[7], [5], [7]]
    assert read([[1]], [], [0, 5, -1], [[7]], req_rows=[], fill="sink")[0] == [[7]]


def test_a_window_of_a_table_is_absolute_and_of_a_stream_relative():
    rows, v2p = [[2, 3, 4, 5, 6, 7, 8, 9]], [0, 9, 8, 7, 6, -1]
    assert read(rows, [5], v2p, [[1] * 4], 2, starts=[3])[0] == [[1, 8, 7, 1]]
    out, _, counters = oracle.read_stream(rows, [0], [3], v2p, [0, 3], [1] * 3, page_size=2, starts=[3])
    assert out == [8, 7, 1]
    assert counters["clipped"] == 0


def test_a_stream_and_its_table_clip_alone_and_count_once():
    rows, v2p = [[1, 2, 9, 3]], [0, 5, 6, 7, -1]
    out, table, counters = oracle.read_stream(rows, [0], [4], v2p, [0, 1], [1] * 2, page_size=1, table=[[1] * 3])
    assert (out, table) == ([5, 1], [[5, 6, 0]])
    assert counters == {"clipped": 1, "bad_row": 0, "bad_id": 1}


def test_extend_fills_the_last_page_before_it_takes_new_ones():
    pool = SubPool([0, -1, 3, -1], [0, -1, -1, 2, -1, -1], [1, 0, 0], [0] * 5, 1, 0, 3)
    rows, after, slots, _, counters = oracle.extend(
        [[4, 5, 6, -1, -1, -1]], [0], [1], [0, 5], pool, [7] * 5, page_size=2
    )
    assert rows == [[4, 5, 2, 3, 0, 1]]
    assert slots == [7, 8, 9, 0, 1]
    assert {name for name, count in counters.items() if count} == {"starved"}
    assert after.watermark == 4


def test_truncate_and_release_leave_what_has_no_room():
    pool = SubPool([0, 1, 2, 3, -1], [0, 1, 2, 3, -1], [0] * 4, [0] * 4, 0, 0, 3)
    rows, after, freed, counters = oracle.truncate([[1, 2, 3]], [0], [3], [1], pool, [7], page_size=1)
    assert (rows, freed) == ([[1, -1, 3]], [2])
    assert counters["clipped"] == 1
    assert after.v2p == [0, 1, -1, 3, -1]
    rows, _, freed, _ = oracle.release([[1, 2, 3]], [0], [3], pool, [7] * 3, page_size=1, starts=[2])
    assert (rows, freed) == ([[-1, -1, -1]], [3, -1, -1])


def test_assign_cuts_to_the_row_and_counts():
    rows, counters = oracle.assign([[7, 7], [7, 7]], [1, 0, 5], [1, 2, 3, 4], [0, 3, 2, 9])
    assert rows == [[7, 7], [1, 2]]
    assert counters == {"clipped": 2, "bad_row": 1}


# Of 2, 3 and 1 bytes a page, from bytes 0, 2 and 5 on. The sinks are bytes 0 to 5, and what they hold 6 to 9 (the lower
# end), 17 to 22 (the float), 35 and 36 (the upper end).
PICTURE = (
    Block(UP, 0, 2, seat=2, watermark=2),
    Block(FLOAT, 2, 3, seat=4, watermark=2, reach=9),
    Block(DOWN, 5, 1, seat=29, watermark=2),
)


def around(place, *changed, num=60, **words):
    blocks = list(PICTURE)
    for j, change in changed:
        blocks[j] = blocks[j]._replace(**change)
    own = blocks[place] = blocks[place]._replace(**words)
    return room(num, own.seat, own.watermark, Chain(tuple(blocks), place))


def test_each_of_a_chain_grows_to_its_neighbours():
    assert around(0).fresh == [5, 6, 7]  # bytes 10 to 15
    assert around(1).fresh == [7, 8, 9, 10, 4, 3]  # bytes 23 to 34, then 16 to 11
    assert around(1).below == [4, 3]
    assert around(2).fresh == list(range(29, 17, -1))  # bytes 34 to 23
    assert around(2, num=40).above == [32, 33, 34, 35, 36, 37, 38, 39]


def test_a_reach_counts_towards_a_neighbour_alone():
    assert around(1, (0, {"reach": 4})).below == [4]  # to byte 13
    assert around(1, (2, {"reach": 4})).above == [7, 8, 9]  # from byte 33
    assert around(1, (2, {"reach": 1})).above == [7, 8, 9, 10]
    assert around(0, reach=2**40).fresh == around(0, (1, {"reach": 0})).fresh == [5, 6, 7]
    assert around(1, (0, {"growth": DOWN, "reach": 4}), (2, {"growth": UP, "reach": 4})).fresh == around(1).fresh


def test_an_empty_neighbour_is_no_bound_and_an_empty_float_sits_in_the_middle():
    nothing = {"watermark": 0, "seat": 2**62}
    assert around(0, (1, nothing), num=30).fresh == list(range(5, 17))  # page 17 would be the bytes 34 and 35
    middle = around(1, watermark=0, seat=-7)
    assert (middle.seat, middle.watermark, middle.fresh) == (6, 0, [7, 8, 9, 10, 6, 5, 4, 3])
    assert around(1, (2, {"watermark": 2, "seat": 6}), watermark=0).fresh == []


def test_spoiled_positions_are_clamped_where_they_are_read():
    assert room(9, -5, 2**70, None) == room(9, 0, 8, None)
    assert room(9, 2**70, 3, None)[:3] == (5, 3, [])
    assert around(0, (1, {"seat": -(2**63)})).above == []
    assert around(0, (1, {"page_bytes": -4, "base": 2**63 - 1})).above == list(range(5, 17))


def test_taking_pages_moves_the_seat_where_growth_goes_down():
    def pool(place, num):
        chain = Chain(PICTURE, place)
        own = PICTURE[place]
        return SubPool(
            [0] + [-1] * 40, [0] + [-1] * num, list(range(40)), [9] * num, 40, 0, own.watermark, 0, own.seat, chain
        )

    after, _, pages, counters = oracle.alloc(pool(1, 20), 8)
    assert (pages, counters["starved"]) == ([7, 8, 9, 10, 4, 3, 0, 0], 2)
    assert (after.seat, after.watermark) == (2, 8)
    after, _, pages, _ = oracle.alloc(pool(2, 40), 2)
    assert (pages, after.seat, after.watermark) == ([29, 28], 27, 4)


def test_a_borrower_takes_pages_for_the_ids_it_is_given():
    pool = SubPool([0] + [-1] * 12, [0] + [-1] * 4, [9] * 12, [9] * 4, 7, 0, 1)
    after, ids, pages, counters = oracle.alloc(pool, [10, 0, 11, -1, 5])
    assert (ids, pages) == ([10, 0, 11, -1, 5], [2, 0, 3, 0, 0])
    assert (after.virtual_top, after.watermark, counters) == (7, 3, {"starved": 1, "bad_bind": 0})
    after, freed, counters = oracle.free(after, [10, 5, 10, 12], borrowed=True, pages=2)
    assert freed == [2, -1, -1, -1]
    assert counters == {"double_free": 1, "bad_free": 1, "count_mismatch": 1}
    assert (after.virtual_top, after.hole_top, after.virtual_stack) == (7, 1, [9] * 12)


def test_evict_takes_each_part_of_a_row():
    pool = SubPool([0, 1, 2, 3, 4, -1], [0, 1, 2, 3, 4, -1], [0] * 5, [0] * 5, 0, 0, 4, 6)

    def evict(part, start, length, first, capacity=4):
        after, moved, freed, counters = oracle.evict(
            [[2, 3, 4, 5, 8, 9, -1, -1]], [0], [start], [length], pool, [first], [7] * capacity, part=part, page_size=2
        )
        assert (after.virtual_top, after.epoch) == (0, 6)
        return moved, freed, counters["clipped"]

    assert evict("head", 0, 5, 0) == ([2], [1, 2, -1, -1], 0)
    assert evict("head", 3, 6, 0) == ([3], [4, -1, -1, -1], 0)
    assert evict("head", 0, 6, 0, 2) == ([2], [1, 2], 1)
    assert evict("head", 0, 1, 3) == ([3], [-1] * 4, 0)
    assert evict("tail", 3, 7, 1) == ([1], [4, -1, -1, -1], 0)
    assert evict("tail", 2, 5, 3) == ([1], [-1] * 4, 0)
    assert evict("row", 2, 6, 9) == ([0], [-1] * 4, 0)
    assert evict("row", 2, 9, -9) == ([0], [2, 4, -1, -1], 1)


def test_extend_tells_what_it_took():
    pool = SubPool([0, -1, 3, -1], [0, -1, -1, 2, -1, -1], [1, 0, 0], [0] * 5, 1, 0, 3)
    blank = Emitted([7] * 6, [7] * 3, [7] * 3)
    *_, told, _ = oracle.extend([[4, 5, 6, -1, -1, -1]], [0], [1], [0, 5], pool, [7] * 6, page_size=2, emitted=blank)
    assert told == Emitted([5, 2, 3, 0, 1, 7], [1, 0, -1], [4, 0, -1])
