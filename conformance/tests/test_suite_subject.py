"""The launch sizes that plans get: small where a program is slow, and fewer programs where it is slowest."""

from dataclasses import replace

import pytest
import torch
from outside import BACKEND
from pagebind import LaunchOptions
from pagebind.operation import NoWarmup
from pagebind.ops import READ_TABLE, REFRESH_TABLE, ReadTableSpec, RefreshTableSpec

from pagebind_conformance.pool_driver import new_world
from pagebind_conformance.subject import SMALL, Subject

CPU = torch.device("cpu")
SIZES = {"max_bs": 2, "page_size": 4, "max_width": 6, "num_physical": 9}
READ, REFRESH = ReadTableSpec(**SIZES), RefreshTableSpec(**SIZES)
FEATURES = READ_TABLE.features(READ) | REFRESH_TABLE.features(REFRESH)


@pytest.fixture
def asked():
    """Return the launch sizes that planners were asked for, by operation."""
    return {}


@pytest.fixture
def subject_of(asked):
    """Make a subject of a mode whose planners note what they are asked for."""

    def noting(name):
        def plan(spec, device, options):
            asked[name] = options
            return BACKEND.planners.get(name, lambda *_: NoWarmup(lambda *_, **__: None))(spec, device, options)

        return plan

    planners = {name: noting(name) for name in (*BACKEND.planners, "refresh_table")}
    return lambda mode: Subject(
        replace(BACKEND, modes={"cpu": mode}, features=BACKEND.features | FEATURES, planners=planners), CPU
    )


@pytest.mark.parametrize(
    ("mode", "read", "refresh"),
    [
        ("cpu", LaunchOptions(), LaunchOptions()),
        ("host", SMALL, SMALL),
        ("interpreter", SMALL, replace(SMALL, programs=2)),
    ],
)
def test_a_plan_has_the_launch_sizes_that_its_mode_affords(subject_of, asked, mode, read, refresh):
    subject = subject_of(mode)
    subject.plan(READ_TABLE, READ)
    subject.plan(REFRESH_TABLE, REFRESH)
    assert asked == {"read_table": read, "refresh_table": refresh}


def test_a_case_that_names_launch_sizes_gets_them(subject_of, asked):
    options = LaunchOptions(threads=64, programs=3)
    subject_of("interpreter").plan(REFRESH_TABLE, REFRESH, options=options)
    assert asked == {"refresh_table": options}


def test_plans_that_a_pool_makes_have_the_same(subject_of, asked):
    pool = new_world(subject_of("interpreter"), "up").pool
    asked.clear()
    pool.read_table(8)
    pool.plan_read_table(8)
    assert asked["read_table"] == SMALL
    assert asked["refresh_table"] == replace(SMALL, programs=2)
