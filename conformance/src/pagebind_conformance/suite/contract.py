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
from pagebind_conformance.trial.call import GROUPS, GuardedPool, call, compare, parts_of
from pagebind_conformance.trial.sample import CALL_PARAMS, NUM, VARIANTS, Call, same, sample

GROUP = "contract"

every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
every_call = pytest.mark.parametrize(("operation", "variant"), CALL_PARAMS)

WITH_POOL = [
    (operation, variant)
    for operation in (ops.ALLOC, ops.FREE, ops.EXTEND, ops.ADVANCE, ops.TRUNCATE, ops.RELEASE, ops.EVICT, ops.COMPACT)
    for variant in ("", *VARIANTS.get(operation.name, {}))
]

WITH_FEATURES: list[tuple[Operation[Any, Any], dict[str, Any]]] = [
    (ops.READ_TABLE, {}),
    (ops.TRANSLATE, {"ranks": 2}),
    (ops.READ_STREAM, {}),
    (ops.ALLOC, {"borrowed": True}),
    (ops.FREE, {"borrowed": True}),
    (ops.EXTEND, {"emits": True}),
    (ops.ADVANCE, {"emits": True, "appends": True}),
    (ops.TRUNCATE, {}),
    (ops.RELEASE, {}),
    (ops.EVICT, {}),
    (ops.COMPACT, {}),
    (ops.REFRESH_TABLE, {"borrowed": True}),
]
"""Operations whose specs ask for features, with what asks for the most."""


def planned_sample(
    subject: Subject, operation: Operation[Any, Any], variant: str, bs: int = 5
) -> tuple[Any, Any, Call]:
    """Return a new plan of the backend's own or of a composed form, its spec, and the arguments of a call."""
    spec, arguments = sample(operation, subject.device, bs, variant)
    if operation.name in subject.backend.planners:
        subject.need(operation, spec)
    return plan_with(subject.backend, operation, spec, subject.device, "count", subject.options), spec, arguments


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
    if name == "chain":
        yield "memory", tensor.clone()  # the state block is no row of it
        yield "width", tensor[:, :-1]
    elif name in ("v2p", "p2v"):
        yield "length", tensor[:1]
    elif name == "request_table":
        yield "width", tensor[:, :1]
    elif tensor.dim() == 1 and name not in ("slots", "freed", "out", "ids", "req_rows"):
        yield "length", tensor[:-1]


def flawed(operation: Operation[Any, Any], arguments: Call) -> Iterator[tuple[str, Call]]:
    """Yield the arguments of a call with one tensor wrong in one way, and what is wrong."""
    for name, value in arguments.items():
        if isinstance(value, GROUPS):
            for whole, tensor in value.parts.items():
                part = whole.rpartition(".")[2]
                for flaw, view in wrong(part, tensor.view, operation.name):
                    if (part, flaw) not in (("v2p", "stride"), ("p2v", "stride")) or view.stride(-1) != 1:
                        changed: dict[str, Any] = {part: view}
                        yield f"{flaw} of {part}", arguments | {name: value.tables._replace(**changed)}
        elif isinstance(value, Guarded):
            for flaw, view in wrong(name, value.view, operation.name):
                if (operation.name, flaw) not in NO_FLAW:
                    yield f"{flaw} of {name}", arguments | {name: view}


NO_FLAW = {(name, "width") for name in ("extend", "advance", "truncate", "release", "assign", "evict")}
"""Rows too narrow for a call's lengths are clipped, not refused, by these."""


@every_call
def test_a_flawed_argument_is_refused_and_changes_nothing(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    planned, _, arguments = planned_sample(subject, operation, variant)
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
        if field == "num_physical" and operation.name not in ("extend", "advance"):
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


def test_a_state_block_that_is_not_its_row_of_the_chain_is_refused(subject: Subject) -> None:
    planned, _, arguments = planned_sample(subject, ops.ALLOC, "float")
    tables = arguments["tables"].tables
    for wrong_tables in (
        tables._replace(place=0),
        tables._replace(place=3),
        tables._replace(place=-1),
        tables._replace(state=tables.chain[2]),
    ):
        with pytest.raises(InvalidArgument, match="place"):
            call(planned, ops.ALLOC, arguments | {"tables": wrong_tables})
        compare(arguments)


@every_call
def test_an_empty_batch_launches_nothing(subject: Subject, operation: Operation[Any, Any], variant: str) -> None:
    own, spec, arguments = planned_sample(subject, operation, variant, bs=0)
    launched = []
    record = replace(
        subject.backend,
        planners={operation.name: lambda *planned: NoWarmup(lambda *a, **k: launched.append(a))},
        features=operation.features(spec),
    )
    call(plan_with(record, operation, spec, subject.device, "count", LaunchOptions()), operation, arguments)
    assert not launched
    call(own, operation, arguments)
    compare(arguments)


@pytest.mark.parametrize(("operation", "asking"), WITH_FEATURES, ids=[one[0].name for one in WITH_FEATURES])
def test_features_that_are_not_declared_are_refused_by_name(
    subject: Subject, operation: Operation[Any, Any], asking: dict[str, Any]
) -> None:
    subject.need(operation)
    spec = replace(sample(operation, subject.device)[0], **asking)
    asked = operation.features(spec)
    bare = replace(subject.backend, features=frozenset())
    with pytest.raises(Unsupported, match=min(asked)):
        plan_with(bare, operation, spec, subject.device, "count", LaunchOptions())
    for name in asked:
        lacking = replace(subject.backend, features=asked - {name})
        with pytest.raises(Unsupported, match=name):
            plan_with(lacking, operation, spec, subject.device, "count", LaunchOptions())


@every_call
def test_warming_up_changes_no_result(subject: Subject, operation: Operation[Any, Any], variant: str) -> None:
    cold, _, arguments = planned_sample(subject, operation, variant)
    call(cold, operation, arguments)
    warm, _, again = planned_sample(subject, operation, variant)
    warm.warmup()
    warm.warmup()
    call(warm, operation, again)
    assert same(again, arguments) is None


@every_call
def test_a_call_made_again_reads_and_writes_its_own_tensors_as_they_are_then(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    # Of a call that comes again a backend may keep all but the launch.
    own, _, one = planned_sample(subject, operation, variant)
    _, _, other = planned_sample(subject, operation, variant, bs=3)
    for _ in range(3):
        for arguments in (one, other):
            call(own, operation, arguments)
    for arguments in (one, other):
        for tensor in parts_of(arguments).values():
            tensor.buffer.copy_(tensor.before)
    for arguments in (one, other):
        call(own, operation, arguments)
    for arguments, bs in ((one, 5), (other, 3)):
        fresh, _, once = planned_sample(subject, operation, variant, bs)
        call(fresh, operation, once)
        assert same(arguments, once) is None


GARBAGE = {
    "huge": (10**9, 10**9, 0, 0, 10**9),
    "negative": (-5, -7, -9, 0, -3),
    "overflow": (2**62, -(2**62), 2**62, 0, 2**63 - 1),
    "full": (NUM, NUM, NUM, 0, 0),
}
"""The first words of a state block: both tops, watermark, epoch and seat."""


@pytest.mark.parametrize(
    ("operation", "variant"), WITH_POOL, ids=[f"{one.name}-{variant}".rstrip("-") for one, variant in WITH_POOL]
)
@pytest.mark.parametrize("words", GARBAGE.values(), ids=list(GARBAGE))
def test_a_state_block_of_garbage_touches_no_other_memory(
    subject: Subject, operation: Operation[Any, Any], variant: str, words: tuple[int, ...]
) -> None:
    spec, arguments = sample(operation, subject.device, variant=variant)
    subject.need(operation, spec)
    pool = arguments["tables"]
    blocks = pool.blocks[pool.place or 0]
    blocks[: len(words)] = words
    pool.parts["state" if pool.place is None else "chain"] = pool.placed_blocks(subject.device)
    call(subject.plan(operation, spec), operation, arguments)
    written = {*pool.parts, "request_table", "ids", "pages", "slots", "freed", "sources", "targets", "buffer", "first"}
    written |= {"token_ids", "new_ids", "new_pages"}
    if operation is ops.FREE or (operation is ops.ALLOC and spec.borrowed):
        written -= {"ids"}
    if operation is ops.ADVANCE:
        written |= {"seq_lens", "table"}
    if operation is ops.EVICT:
        written -= {"request_table"}
    allowed: dict[str, Any] = {part: Unspecified(lambda got: None) for part in written}
    if pool.place is not None:
        allowed["chain"] = Unspecified(lambda got: _others_changed(got, pool))
    compare(arguments, allowed)


def _others_changed(got: list[list[int]], pool: GuardedPool) -> str | None:
    changed = [j for j, words in enumerate(got) if j != pool.place and words != pool.blocks[j]]
    return f"of neighbours the blocks {changed} have changed" if changed else None
