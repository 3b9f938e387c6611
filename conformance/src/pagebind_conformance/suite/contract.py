"""What holds for every operation alike: refusals that change nothing, empty batches, features, warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from pagebind import LaunchOptions, Operation, ops
from pagebind.errors import InvalidArgument, Unsupported
from pagebind.operation import NoWarmup
from pagebind.ops import OPERATIONS
from pagebind.plan import plan_with

from pagebind_conformance.guarded import Guarded, Unspecified
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import GuardedPool, call, compare
from pagebind_conformance.trial.sample import NUM, Call, same, sample

GROUP = "contract"

every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))

WITH_POOL = [ops.ALLOC, ops.FREE, ops.EXTEND, ops.TRUNCATE, ops.RELEASE, ops.COMPACT]

WITH_FEATURES = [ops.READ_TABLE, ops.TRANSLATE, ops.READ_STREAM, ops.EXTEND, ops.TRUNCATE, ops.RELEASE, ops.COMPACT]

FLAWS: list[tuple[str, Any]] = [
    ("page_size", 0),
    ("multiplier", 0),
    ("max_bs", -1),
    ("max_bs", True),
    ("max_items", 1.5),
    ("form", "tokens"),
    ("fill", "zero"),
    ("index_dtype", torch.int16),
    ("num_physical", 2**62),
    ("rank", 9),
    ("max_pages", -1),
    ("page_bytes", -16),
    ("page_bytes", 24),
]
FLAWED = [
    pytest.param(operation, field, value, id=f"{operation.name}-{field}-{value}")
    for operation in OPERATIONS.values()
    for field, value in FLAWS
    if field in {one.name for one in fields(operation.spec)}
]


def wrong(name: str, tensor: torch.Tensor, operation: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors no plan takes in the place of `tensor`, each wrong in one way."""
    yield "dtype", tensor.to(torch.int16)
    yield "kind", tensor.to(torch.float32)
    yield "dimensions", tensor[None, None]
    yield "device", torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if operation != "translate" or name not in ("ids", "out"):
        doubled = tensor.repeat_interleave(2, dim=-1)
        yield "stride", doubled[..., ::2]
    if name in ("v2p", "p2v"):
        yield "length", tensor[:1]
    elif name == "request_table":
        yield "width", tensor[:, :1]
    elif tensor.dim() == 1 and name not in ("slots", "freed", "out", "ids", "req_rows"):
        yield "length", tensor[:-1]


def flawed(operation: Operation[Any, Any], arguments: Call) -> Iterator[tuple[str, Call]]:
    """Yield the arguments of a call with one tensor wrong in one way, and what is wrong."""
    for name, value in arguments.items():
        if isinstance(value, GuardedPool):
            for part, tensor in value.parts.items():
                for flaw, view in wrong(part, tensor.view, operation.name):
                    if (part, flaw) not in (("v2p", "stride"), ("p2v", "stride")) or view.stride(-1) != 1:
                        yield f"{flaw} of {part}", arguments | {name: value.tables._replace(**{part: view})}
        elif isinstance(value, Guarded):
            for flaw, view in wrong(name, value.view, operation.name):
                if (operation.name, flaw) not in NO_FLAW:
                    yield f"{flaw} of {name}", arguments | {name: view}


NO_FLAW = {("extend", "width"), ("truncate", "width"), ("release", "width"), ("assign", "width")}
"""Rows too narrow for a call's lengths are clipped, not refused, by these."""


@every_operation
def test_a_flawed_argument_is_refused_and_changes_nothing(subject: Subject, operation: Operation[Any, Any]) -> None:
    spec, arguments = sample(operation, subject.device)
    planned = plan_with(subject.backend, operation, spec, subject.device, "count", subject.options)
    for flaw, bad in flawed(operation, arguments):
        try:
            call(planned, operation, bad)
        except InvalidArgument:
            compare(arguments)
        else:
            pytest.fail(f"the {flaw} is wrong and the call went through")


@every_operation
def test_a_batch_larger_than_planned_is_refused_and_changes_nothing(
    subject: Subject, operation: Operation[Any, Any]
) -> None:
    spec, arguments = sample(operation, subject.device)
    sizes = {"max_bs", "max_items", "max_width", "max_tokens", "max_pages", "num_virtual", "num_physical"}
    for field in sizes & set(vars(spec)):
        if field == "num_physical" and operation.name not in ("extend",):
            continue
        small = replace(spec, **{field: 2})
        planned = plan_with(subject.backend, operation, small, subject.device, "count", subject.options)
        with pytest.raises(InvalidArgument, match=field):
            call(planned, operation, arguments)
        compare(arguments)


def test_a_table_wider_than_its_request_table_is_refused(subject: Subject) -> None:
    spec, arguments = sample(ops.READ_TABLE, subject.device)
    planned = subject.plan(ops.READ_TABLE, replace(spec, max_width=99))
    wide = Guarded.poisoned((5, 7), torch.int32, subject.device)
    with pytest.raises(InvalidArgument, match="7 columns"):
        call(planned, ops.READ_TABLE, arguments | {"out": wide})
    compare(arguments | {"out": wide})


def test_outputs_whose_cells_share_memory_are_refused(subject: Subject) -> None:
    spec, arguments = sample(ops.READ_TABLE, subject.device)
    planned = subject.plan(ops.READ_TABLE, spec)
    with pytest.raises(InvalidArgument, match="overlap"):
        call(planned, ops.READ_TABLE, arguments | {"out": arguments["out"].view.as_strided((5, 6), (3, 1))})
    compare(arguments)
    spec, arguments = sample(ops.TRANSLATE, subject.device)
    planned = subject.plan(ops.TRANSLATE, spec)
    with pytest.raises(InvalidArgument, match="share memory"):
        call(planned, ops.TRANSLATE, arguments | {"out": arguments["out"].view[:1].expand(5)})
    compare(arguments)


@pytest.mark.parametrize(("operation", "field", "value"), FLAWED)
def test_a_flawed_spec_is_refused_when_planned(
    subject: Subject, operation: Operation[Any, Any], field: str, value: Any
) -> None:
    spec, _ = sample(operation, subject.device)
    with pytest.raises(InvalidArgument):
        replace(spec, **{field: value})


@every_operation
def test_an_empty_batch_launches_nothing(subject: Subject, operation: Operation[Any, Any]) -> None:
    spec, arguments = sample(operation, subject.device, bs=0)
    launched = []
    record = replace(
        subject.backend,
        planners={operation.name: lambda *planned: NoWarmup(lambda *a, **k: launched.append(a))},
        features=operation.features(spec),
    )
    call(plan_with(record, operation, spec, subject.device, "count", LaunchOptions()), operation, arguments)
    assert not launched
    call(plan_with(subject.backend, operation, spec, subject.device, "count", subject.options), operation, arguments)
    compare(arguments)


@pytest.mark.parametrize("operation", WITH_FEATURES, ids=lambda operation: operation.name)
def test_features_that_are_not_declared_are_refused_by_name(subject: Subject, operation: Operation[Any, Any]) -> None:
    subject.need(operation)
    spec, _ = sample(operation, subject.device)
    if operation.name == "translate":
        spec = replace(spec, ranks=2)
    asked = operation.features(spec)
    bare = replace(subject.backend, features=frozenset())
    with pytest.raises(Unsupported, match=min(asked)):
        plan_with(bare, operation, spec, subject.device, "count", LaunchOptions())
    for name in asked:
        lacking = replace(subject.backend, features=asked - {name})
        with pytest.raises(Unsupported, match=name):
            plan_with(lacking, operation, spec, subject.device, "count", LaunchOptions())


@every_operation
def test_warming_up_changes_no_result(subject: Subject, operation: Operation[Any, Any]) -> None:
    spec, arguments = sample(operation, subject.device)
    cold = plan_with(subject.backend, operation, spec, subject.device, "count", subject.options)
    call(cold, operation, arguments)
    warm = plan_with(subject.backend, operation, spec, subject.device, "count", subject.options)
    warm.warmup()
    warm.warmup()
    _, again = sample(operation, subject.device)
    call(warm, operation, again)
    assert same(again, arguments) is None


@pytest.mark.parametrize("operation", WITH_POOL, ids=lambda operation: operation.name)
@pytest.mark.parametrize(
    "words", [(10**9, 10**9, 0), (-5, -7, -9), (2**62, -(2**62), 2**62), (NUM, NUM, NUM)], ids=["huge", "negative",
    "overflow", "full"]
)  # fmt: skip
def test_a_state_block_of_garbage_touches_no_other_memory(
    subject: Subject, operation: Operation[Any, Any], words: tuple[int, ...]
) -> None:
    subject.need(operation)
    spec, arguments = sample(operation, subject.device)
    pool = arguments["tables"]
    garbage = pool.parts["state"].before_values()
    garbage[: len(words)] = words
    pool.parts["state"] = Guarded(garbage, torch.int64, subject.device)
    call(subject.plan(operation, spec), operation, arguments)
    written = {"request_table", "ids", "pages", "slots", "freed", "sources", "targets", "buffer", *pool.parts}
    if operation is ops.FREE:
        written -= {"ids"}
    compare(arguments, {part: Unspecified(lambda got: None) for part in written})
