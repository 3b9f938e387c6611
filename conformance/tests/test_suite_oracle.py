"""The oracle against literal values: those of the published faults it has to know, and each line of the contracts."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

from pagebind_conformance import oracle
from pagebind_conformance.oracle import SubPool


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
    assert counters == {"double_free": 1, "bad_free": 0}
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
    rows, after, slots, counters = oracle.extend([[4, 5, 6, -1, -1, -1]], [0], [1], [0, 5], pool, [7] * 5, page_size=2)
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
