"""Pools on the meta device: with a backend that launches nothing every count still follows, from the calls alone."""

import pytest
import torch
from pagebind.backend import Backend
from pagebind.operation import NoWarmup
from pagebind.ops import FEATURES, OPERATIONS
from pagebind.pool import page_pool
from pagebind.registry import get_backend
from pagebind_conformance.pool_driver import drive, plan_steps
from pagebind_conformance.pool_setups import SETUPS
from pagebind_conformance.pool_steps import READING, STEPS
from pagebind_conformance.pool_world import World

META = torch.device("meta")
NOTHING = Backend(
    name="nothing",
    version="1",
    distribution="none",
    modes={"meta": "cpu"},
    planners=dict.fromkeys(OPERATIONS, lambda spec, device, options: NoWarmup(lambda *args, **kwargs: None)),
    features=FEATURES,
)
UNCHECKED = [name for name, setup in SETUPS.items() if setup.checks != "full"]  # full checks look at values


@pytest.mark.parametrize("setup", UNCHECKED)
def test_the_same_calls_end_with_the_same_counts_where_nothing_can_be_read(setup):
    meta = World(SETUPS[setup], NOTHING, META, look=False)
    real = World(SETUPS[setup], get_backend("cpu"), torch.device("cpu"))
    steps = plan_steps(7, 400, without=READING)
    assert {name for name, _ in steps} == set(STEPS) - READING
    for i, step in enumerate(steps):
        for world in (meta, real):
            drive(world, [step], f"{setup}, plan_steps(7, {i + 1}, without=READING)", first=i)
        assert meta.stats() == real.stats(), (i, step)
        assert meta.pool.requests.open_rows == real.pool.requests.open_rows
    assert real.pool.audit() == []


def test_a_look_at_a_value_raises_there():
    pool = page_pool(
        8, 4, max_requests=1, max_context=8, max_bs=1, max_tokens=8, page_bytes=16, device="meta", backend=NOTHING
    )
    assert pool.alloc(3).device == META
    assert pool.stats().sub_pools["pages"].live == 3
    for look in (pool.audit, pool.check, pool.reconcile, pool.digest):
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            look()
    assert pool.stats().sub_pools["pages"].live == 3
