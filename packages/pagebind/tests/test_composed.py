"""Extended operations composed from core ones: a backend with the core alone keeps their values and counters."""

from dataclasses import replace

import pytest
import torch
from extended_cases import CASES, sub_pool_after
from pagebind import LaunchOptions, get_backend, plan
from pagebind.ops import FREE, FreeSpec
from pagebind.words import read_counters

CORE = ("read_table", "bind", "unbind", "translate")
STORED = ("ids", "pages", "freed", "slots", "request_table", "out", "table")


@pytest.fixture(scope="module", params=["core alone", "whole"])
def backend(request):
    """The CPU backend, as it is and without its extended operations."""
    whole = get_backend("cpu", device="cpu")
    if request.param == "whole":
        return whole
    return replace(whole, name="core-alone", planners={name: whole.planners[name] for name in CORE})


def planned(case, backend, **options):
    return plan(case.operation, case.spec, backend=backend, device="cpu", **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_counters_are_those_worked_out_by_hand(case, backend):
    arguments = case.build()
    call = planned(case, backend)
    assert call.composed is (case.operation.name not in backend.planners)
    call(**arguments)
    assert {name: arguments[name].tolist() for name in case.after} == dict(case.after)
    if "tables" in arguments:
        after = sub_pool_after(arguments["tables"])
        assert {name: after[name] for name in case.pool} == dict(case.pool)
        assert not arguments["tables"].state[16:].any()
    counted = {name: n for name, n in read_counters(case.state(arguments)).items() if n}
    assert counted == {name: len(ids) for name, ids in case.faults.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_checks_off_guards_the_same_and_counts_nothing(case, backend):
    counting, silent = case.build(), case.build()
    planned(case, backend)(**counting)
    planned(case, backend, checks="off")(**silent)
    for name in STORED:
        if isinstance(counting.get(name), torch.Tensor):
            assert torch.equal(counting[name], silent[name]), name
    if "tables" in silent:
        assert sub_pool_after(counting["tables"]) == sub_pool_after(silent["tables"])
    assert not any(read_counters(case.state(silent)).values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inputs_are_never_modified(case, backend):
    arguments, before = case.build(), case.build()
    planned(case, backend)(**arguments)
    written = {*case.after, "tables", "state", *(STORED if "tables" in arguments else ())} - {
        name for name in ("ids",) if case.operation is FREE
    }
    for name, value in before.items():
        if name not in written and isinstance(value, torch.Tensor):
            assert torch.equal(arguments[name], value), name


def test_warming_up_a_composed_call_warms_the_core_launch(backend):
    warmed = []

    class Spy:
        def __init__(self, launch) -> None:
            self.launch = launch

        def __call__(self, *args, **kwargs) -> None:
            self.launch(*args, **kwargs)

        def warmup(self) -> None:
            warmed.append("unbind")

    planners = {name: backend.planners[name] for name in CORE}
    planners["unbind"] = lambda *args: Spy(backend.planners["unbind"](*args))
    core = replace(backend, planners=planners)
    plan(FREE, FreeSpec(max_items=1), backend=core, device="cpu", options=LaunchOptions()).warmup()
    assert warmed == ["unbind"]
