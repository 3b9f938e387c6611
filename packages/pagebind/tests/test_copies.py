"""A plan is shared and never changes: copies are the plan itself, and it is not carried to another process."""

import copy
import pickle

import pytest
import torch
from pagebind import plan
from pagebind.errors import NotPicklable, PagebindError
from pagebind.ops import BIND, BindSpec
from pagebind.pool import SubPool, UnifiedPool

SPEC = BindSpec(max_items=4)


@pytest.fixture(params=["off", "count", "full"])
def bind(request):
    return plan(BIND, SPEC, backend="cpu", device="cpu", checks=request.param)


def test_a_copy_of_a_plan_is_the_plan(bind):
    assert copy.copy(bind) is bind
    assert copy.deepcopy(bind) is bind
    runner = copy.deepcopy({"plans": [bind], "cells": torch.zeros(2)})
    assert runner["plans"][0] is bind


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plan_is_not_pickled_and_says_what_to_do(bind, protocol):
    with pytest.raises(NotPicklable, match=r"<bind by cpu on cpu> cannot be pickled.*plan\(BIND, spec\)") as caught:
        pickle.dumps({"plans": [bind]}, protocol)
    assert isinstance(caught.value, PagebindError)
    assert isinstance(caught.value, pickle.PicklingError), "what asks whether something can be pickled looks for this"
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC


def test_a_deep_copy_of_a_pool_goes_on_by_itself():
    full = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
    window = SubPool(name="window", page_size=4, page_bytes=32, grows="down", ids_of="full")
    sizes = {"max_requests": 4, "max_context": 32, "max_bs": 4, "max_tokens": 64}
    pool = UnifiedPool(2**12, [full, window], **sizes, device="cpu", backend="cpu")
    pool.alloc(3, also=["window"])
    before, digest = pool.stats(), pool.digest()
    other = copy.deepcopy(pool)
    other.free(other.alloc(2))
    other.alloc(5, also=["window"])
    assert other.audit() == []
    assert (pool.stats(), pool.digest(), pool.audit()) == (before, digest, [])
