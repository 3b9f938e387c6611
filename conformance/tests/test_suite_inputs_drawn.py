"""Drawn inputs: from their seeds alone, over every axis, of all sizes, and the same for backends and for the oracle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from itertools import product

import numpy as np
import outside
import pytest
import torch
from pagebind.ops import FEATURES, OPERATIONS
from pagebind.ops.refresh_table import BUILT_LIVE

from pagebind_conformance.guarded import POISON
from pagebind_conformance.inputs.arena import Arena
from pagebind_conformance.inputs.compare import draw_input
from pagebind_conformance.inputs.oracle import hold
from pagebind_conformance.inputs.plans import AXES, MORE, operation_of, plan_of
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.truncate import ids_to_free

CYCLE = len(OPERATIONS) + len(MORE)
PLANS = {operation_of(number).name: number for number in range(CYCLE)}
SIZED = ["read_table", "bind", "advance", "compact"]


def plan(name, *, seed=0, small=False):
    operation = OPERATIONS[name]
    return plan_of(seed, PLANS[name], operation, FEATURES, small=small)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_input_follows_from_its_seed_plan_and_number_alone(name):
    there = [draw_input(plan(name), index) for index in range(6)]
    alone = draw_input(plan(name), 5)
    first, again = (Arena(plan(name), [one]).image for one in (there[5], alone))
    assert np.array_equal(first, again)
    for seed, index in ((1, 5), (0, 4)):
        other = replace(plan(name), seed=seed)
        assert not np.array_equal(first, Arena(other, [draw_input(other, index)]).image)


def test_plans_are_the_same_however_many_and_cover_every_axis():
    plans = [plan_of(0, n, operation_of(n), FEATURES, small=False) for n in range(100)]
    assert plans == [plan_of(0, n, operation_of(n), FEATURES, small=False) for n in range(100)]
    assert {one.operation.name for one in plans} == set(OPERATIONS)
    assert frozenset().union(*(one.operation.features(one.spec) for one in plans)) == FEATURES
    drawn = {}
    for one in plans:
        for field in fields(one.spec):
            drawn.setdefault(field.name, set()).add(getattr(one.spec, field.name))
    for axis, choices in AXES.items():
        assert drawn[axis] == set(choices), axis
    for dtype in (name for name in drawn if name.endswith("_dtype")):
        assert drawn[dtype] == {torch.int32, torch.int64}, dtype


@pytest.mark.parametrize("name", SIZED)
def test_most_inputs_are_small_and_some_have_more_lanes_than_a_block(name):
    drawn = [draw_input(plan(name), index) for index in range(300)]
    longest = [max(max(one.shape) for name, one in call.tensors.items() if name != "buffer") for call in drawn]
    longest = [max(n, len(one.pool.v2p) if one.pool else 0) for n, one in zip(longest, drawn, strict=True)]
    assert max(longest) > 1100
    assert sum(n < 200 for n in longest) > 150


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_oracle_is_asked_about_the_very_call_that_backends_get(name):
    """Of a compaction, trials mark the bytes of pages themselves."""
    for one, index in product((plan(name, seed=seed, small=True) for seed in range(4)), range(8)):
        drawn = draw_input(one, index)
        seen = []
        hold_quietly(Recording(seen), one, drawn)
        arena = Arena(one, [drawn])
        whole = arena.on(torch.device("cpu"))
        wanted = flat(arena.arguments(0, {dtype: whole.view(dtype) for dtype in POISON}))
        got = flat(seen[0])
        assert got.keys() == wanted.keys()
        for key in wanted.keys() - {"buffer"}:
            if isinstance(wanted[key], torch.Tensor):
                assert torch.equal(got[key], wanted[key]), key
                assert got[key].stride() == wanted[key].stride() or 1 in got[key].shape or not got[key].numel(), key
            else:
                assert got[key] == wanted[key], key


class Recording(Subject):
    """A subject whose plans keep what they are called with, and call nothing."""

    def __init__(self, seen):
        super().__init__(outside.BACKEND, torch.device("cpu"))
        object.__setattr__(self, "seen", seen)

    def plan(self, operation, spec, checks="count", options=None):
        names = list(OPERATIONS[operation.name].arguments.__annotations__)[2:]
        return lambda *args, **kwargs: self.seen.append({**dict(zip(names, args, strict=False)), **kwargs})


def hold_quietly(subject, one, drawn):
    with suppress(AssertionError):  # nothing was called
        hold(subject, one, drawn)


def flat(call):
    found = {}
    for name, value in call.items():
        if hasattr(value, "_asdict"):
            found |= {f"{name}.{key}": part for key, part in value._asdict().items() if part is not None}
        elif value is not None and not (name == "seq_len_delta" and value == 0):
            found[name] = value
    return found


def test_rows_that_name_a_page_twice_are_left_open():
    seen = set()
    for seed, index in product(range(3), range(200)):
        one = plan("truncate", seed=seed, small=True)
        drawn = draw_input(one, index)
        names = ("request_table", "req_rows", "seq_lens", "keep_lens")
        lanes = [drawn.tensors[name].values.tolist() for name in names]
        capacity = drawn.tensors["freed"].shape[0]
        ids = [v for v in ids_to_free(*lanes, capacity, one.spec.page_size, one.spec.form) if v >= 0]
        assert drawn.open == (len(set(ids)) < len(ids))
        seen.add(drawn.open)
    assert seen == {True, False}


def test_words_of_a_read_table_that_nothing_reads_stay_zero_where_the_others_are_garbage():
    spoiled = [one for one in (draw_input(plan("refresh_table"), index) for index in range(400)) if one.open]
    built = np.concatenate([one.tensors["built"].values for one in spoiled])
    assert not built[:, BUILT_LIVE + 1 :].any()
    assert all((built[:, word] == 2**31 - 1).any() for word in range(BUILT_LIVE + 1))


def test_ids_repeat_in_a_free_only_where_the_stacks_have_room_for_all_that_comes_back():
    seen = set()
    for seed, index in product(range(3), range(600)):
        drawn = draw_input(plan("free", seed=seed, small=True), index)
        pool = drawn.pool
        ids = {v for v in drawn.tensors["ids"].values.tolist() if 0 < v < len(pool.v2p) - 1}
        back = sum(pool.v2p[v] > 0 for v in ids)
        fits = all(
            top + back <= len(stack)
            for top, stack in ((pool.virtual_top, pool.virtual_stack), (pool.hole_top, pool.hole_stack))
        )
        assert fits or not drawn.open
        seen.add((fits, drawn.open))
    assert seen == {(True, True), (True, False), (False, False)}
