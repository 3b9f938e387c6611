"""alloc where borrowed ids repeat and a page is bound already: an id may go without then, and no other."""

from __future__ import annotations

from dataclasses import replace

import outside
import pytest
import torch
from pagebind.operation import NoWarmup
from pagebind.ops import AllocSpec
from pagebind.words import BAD_BIND, WATERMARK

from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.alloc import alloc

SPEC = AllocSpec(max_items=8, borrowed=True)
FREE = -1
# Page 1 is bound though the span is empty: whichever lane asks first gets none.
POOL = SubPool([0, 2, FREE, FREE, FREE, FREE], [0, 1, FREE, FREE, FREE, FREE, FREE], [0] * 5, [0] * 6, 0, 0, 0)
ASKED = [3, 2, 3, 4, 4]


def serving(**lanes: int) -> Subject:
    """Return a subject whose alloc serves id by lane, lane i with page i + 1, and counts the other lanes."""

    def plan(spec, device, options):
        def run(tables, *, ids, pages):
            pages.zero_()
            for lane in lanes.values():
                v = int(ids[lane])
                tables.v2p[v], tables.p2v[lane + 1], pages[lane] = lane + 1, v, lane + 1
            tables.state[WATERMARK] = len(ids)
            tables.state[BAD_BIND] += len(ids) - len(lanes)

        return NoWarmup(run)

    planners = {**outside.PLANNERS, "alloc": plan}
    backend = replace(outside.BACKEND, planners=planners, features=outside.FEATURES | {"borrowed"})
    return Subject(backend, torch.device("cpu"))


@pytest.mark.parametrize(
    "lanes",
    [{"two": 1, "three": 2, "four": 3}, {"two": 1, "four": 3}, {"two": 1, "four": 4}],
    ids=["in turn", "at once", "at once, the later one"],
)
def test_an_id_whose_first_lane_has_a_bound_page_may_go_without(lanes):
    after, _, pages = alloc(serving(**lanes), SPEC, POOL, ASKED)
    assert [i for i, p in enumerate(pages) if p] == list(lanes.values())
    assert sorted(v for v, p in enumerate(after.v2p) if p != POOL.v2p[v]) == sorted(ASKED[i] for i in lanes.values())


@pytest.mark.parametrize(
    ("lanes", "told"),
    [
        ({"three": 2, "four": 3}, r"\[3, 4\] were served, not \[2, 3, 4\]"),
        ({"two": 1, "three": 2}, r"\[2, 3\] were served, not \[2, 3, 4\]"),
        ({"two": 1, "three": 2, "four": 3, "again": 4}, "an id more than once"),
        ({"three": 0, "two": 1, "four": 3}, "lane 0 asks as number 0 and got page 1, not 0"),
    ],
    ids=["none for an id asked once", "none for an id whose pages are free", "an id twice", "a bound page"],
)
def test_anything_else_fails(lanes, told):
    with pytest.raises(AssertionError, match=told):
        alloc(serving(**lanes), SPEC, POOL, ASKED)
