"""assign where lanes repeat a row: what any of them writes is right, even what stood there, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import outside
import pytest
import torch
from pagebind.operation import NoWarmup
from pagebind.ops import AssignSpec

from pagebind_conformance.difference import Difference
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.assign import assign

SPEC = AssignSpec(max_bs=4, max_items=8)
WRITTEN = ([5, 5], [9, 5], [5])
"""What three lanes write to the head of one row, whose cells hold 5, 5 and 7."""


def leaving(*row: int) -> Subject:
    """Return a subject whose assign leaves those cells in row 1."""

    def plan(spec, device, options):
        def run(table, rows, ids, indptr, *, state=None):
            table[1] = torch.tensor(row, dtype=table.dtype)

        return NoWarmup(run)

    backend = replace(outside.BACKEND, planners={**outside.PLANNERS, "assign": plan})
    return Subject(backend, torch.device("cpu"))


def assign_all(subject: Subject, order: tuple[int, ...]) -> list[list[int]]:
    parts = [WRITTEN[i] for i in order]
    indptr = [sum(map(len, parts[:b])) for b in range(len(parts) + 1)]
    return assign(subject, SPEC, [[1, 2, 3], [5, 5, 7]], [1] * len(parts), [v for part in parts for v in part], indptr)


@pytest.mark.parametrize("row", [(5, 5, 7), (9, 5, 7)], ids=["as it stood", "changed"])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_a_lane_that_writes_what_stood_there_may_be_the_one_served(row, order):
    assert assign_all(leaving(*row), order) == [[1, 2, 3], list(row)]


@pytest.mark.parametrize("row", [(7, 5, 7), (9, 9, 7), (9, 5, 5)], ids=["neither", "of another cell", "past all"])
def test_what_no_lane_writes_is_told(row):
    with pytest.raises(Difference, match=r"holds \d, not one of"):
        assign_all(leaving(*row), (0, 1, 2))
