"""Operation.faults: what a call would count, with the ids; checks=full raises it before anything is written."""

import copy

import pytest
import torch
from extended_cases import CASES, V2P, ints, rows, sevens
from pagebind import plan
from pagebind.errors import FaultError
from pagebind.ops import (
    BIND,
    READ_TABLE,
    TRANSLATE,
    UNBIND,
    BindSpec,
    ReadTableSpec,
    TranslateSpec,
    UnbindSpec,
)
from pagebind.words import new_state, read_counters

P2V = [0, -1, 2, -1, 1, 3, -1, -1]
FAULTY = [case for case in CASES if case.faults]
CLEAN = [case for case in CASES if not case.faults]

CORE = [
    (
        READ_TABLE,
        ReadTableSpec(max_bs=4, max_width=2, page_size=2, num_physical=7),
        lambda: {
            "request_table": rows([2, 3, 12, 13, 99, -1], [4, 5, 6, 7, 8, 9]),
            "req_rows": ints(0, 1, -1, 0),
            "seq_lens": ints(4, 5, 9, -(2**31)),
            "v2p": ints(*V2P),
            "out": sevens(4, 2),
            "state": new_state("cpu"),
        },
        {"clipped": [1, 3], "bad_row": [2], "bad_id": [6]},
    ),
    (
        TRANSLATE,
        TranslateSpec(max_items=8, page_size=2, num_physical=7, ranks=2, rank=1),
        lambda: {
            "ids": ints(4, 24, -1, 30, 23, 2**31 - 1),
            "v2p": ints(*V2P),
            "out": sevens(6),
            "state": new_state("cpu"),
        },
        {"bad_id": [6, 7, (2**31 - 1) // 4]},
    ),
    (
        BIND,
        BindSpec(max_items=8),
        lambda: {
            "virtual": ints(4, 1, -1, 0, 5, 6),
            "physical": ints(1, 3, 3, 3, 4, 6),
            "v2p": ints(*V2P),
            "p2v": ints(*P2V),
            "state": new_state("cpu"),
        },
        {"bad_bind": [1, 0, 5, 6]},
    ),
    (
        UNBIND,
        UnbindSpec(max_items=8),
        lambda: {
            "ids": ints(2, 4, 0, -1, 6, 2),
            "v2p": ints(*V2P),
            "p2v": ints(*P2V),
            "freed": sevens(6),
            "state": new_state("cpu"),
        },
        {"double_free": [4, 2], "bad_free": [0, 6]},
    ),
]
CALLS = [*CORE, *((case.operation, case.spec, case.build, case.faults) for case in FAULTY)]
NAMES = [*(operation.name for operation, *_ in CORE), *(case.name for case in FAULTY)]


def found(faults):
    return {name: list(ids) for name, ids in faults.items() if len(ids)}


def state_of(arguments):
    return arguments["tables"].state if "tables" in arguments else arguments["state"]


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, tuple):
        return all(map(same, left, right))
    return left == right


@pytest.mark.parametrize(("operation", "spec", "build", "faults"), CALLS, ids=NAMES)
def test_faults_are_named_and_as_many_as_the_call_counts(operation, spec, build, faults):
    arguments = build()
    before = copy.deepcopy(arguments)
    assert found(operation.faults(spec, **arguments)) == faults
    assert all(same(arguments[name], before[name]) for name in before), "looking for faults writes nothing"
    plan(operation, spec, backend="cpu", device="cpu")(**arguments)
    counted = {name: n for name, n in read_counters(state_of(arguments)).items() if n}
    assert counted == {name: len(ids) for name, ids in faults.items()}


@pytest.mark.parametrize(("operation", "spec", "build", "faults"), CALLS, ids=NAMES)
def test_checks_full_names_the_ids_and_writes_nothing(operation, spec, build, faults):
    arguments = build()
    before = copy.deepcopy(arguments)
    with pytest.raises(FaultError) as raised:
        plan(operation, spec, backend="cpu", device="cpu", checks="full")(**arguments)
    assert raised.value.counters == {name: len(ids) for name, ids in faults.items()}
    for name, ids in faults.items():
        assert f"{name}: {', '.join(map(str, ids[:8]))}" in str(raised.value)
    assert all(same(arguments[name], before[name]) for name in before)


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_checks_full_lets_a_clean_call_through(case):
    arguments = case.build()
    assert not found(case.operation.faults(case.spec, **arguments))
    plan(case.operation, case.spec, backend="cpu", device="cpu", checks="full")(**arguments)
    assert {name: arguments[name].tolist() for name in case.after} == dict(case.after)
