"""The unified pool under any sequence of public calls, against a model on plain Python: counts, tables, bytes, answers.

The steps and the model are in `pagebind_conformance.pool_*`; here they are driven, by Hypothesis and by seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from pagebind_conformance.pool_driver import command, drive, new_world, one_thread, plan_steps
from pagebind_conformance.pool_setups import SETUPS
from pagebind_conformance.pool_steps import STEPS
from pagebind_conformance.pool_world import need
from pagebind_conformance.subject import Subject, core_only

GROUP = "pool"
LEVEL = "extended"

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = sorted({setup.shape for setup in SETUPS.values()})
LONG = ("up", "full+window", "full+window+state")
"""One setup of each shape, which a seed drives ten times as far as the others."""


class Pools(RuleBasedStateMachine):
    """A pool of one shape; every step is a rule."""

    subject: Subject
    shape: str

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Start with an empty pool."""
        self.setup = data.draw(st.sampled_from([name for name, setup in SETUPS.items() if setup.shape == self.shape]))
        self.world = new_world(self.subject, self.setup)
        self.taken: list[tuple[str, int]] = []

    def take(self, name: str, seed: int) -> None:
        """Take a step; where it fails, tell the lines that repeat all of them."""
        self.taken.append((name, seed))
        how = command(self.subject, self.setup, repr(self.taken))
        with one_thread():
            drive(self.world, [(name, seed)], how, first=len(self.taken) - 1)


def as_rule(name: str) -> Callable[[Pools, int], None]:
    """Return a step as a rule of the machine."""

    def take(self: Pools, seed: int) -> None:
        self.take(name, seed)

    take.__name__, take.__doc__ = name, STEPS[name].__doc__
    return rule(seed=SEEDS)(take)


for _name in STEPS:
    setattr(Pools, _name, as_rule(_name))


@pytest.mark.parametrize("shape", SHAPES)
def test_any_sequence_of_calls_keeps_the_pool(subject: Subject, shape: str) -> None:
    machine = type("Machine", (Pools,), {"subject": subject, "shape": shape})
    steps = 12 if subject.slow else 100
    run_state_machine_as_test(machine, settings=settings(subject.generated(0.25), stateful_step_count=steps))


@pytest.mark.parametrize("setup", SETUPS)
def test_a_long_history_keeps_the_pool(subject: Subject, setup: str) -> None:
    count = 3000 if setup in LONG and not subject.composed else 300
    count = min(count, 60 if setup in LONG else 15) if subject.slow else count
    seed = list(SETUPS).index(setup)
    world = new_world(subject, setup)
    drive(world, plan_steps(seed, count), command(subject, setup, f"plan_steps({seed}, {count})"))
    assert world.steps == count


@pytest.mark.parametrize("setup", ["full+window+state", "full+near+far"])
def test_ranks_that_make_the_same_calls_hold_the_same_tables(subject: Subject, setup: str) -> None:
    """Whatever their forms: one rank has the backend's own operations, the other those composed from its core."""
    own, other = new_world(subject, setup), new_world(subject, setup, core_only(subject.backend))
    steps = plan_steps(2**16, 20 if subject.slow else 200)
    for i, step in enumerate(steps):
        for world in (own, other):
            drive(world, [step], command(subject, setup, repr(steps[: i + 1])), first=i)
        need(f"the digest after {step}", other.pool.digest(), own.pool.digest())
        need(f"the counts after {step}", other.stats(), own.stats())


@pytest.mark.parametrize("setup", ["up", "down", "full+window", "full+window+state", "full+near+far", "state+rows+aux"])
def test_calls_that_outrun_their_lease_starve_and_touch_only_the_sink(subject: Subject, setup: str) -> None:
    """Lanes that find no page are counted; every neighbour keeps its bytes, tables and frontier."""
    rounds = 2 if subject.slow else 12
    steps = [("open_row", 0), ("open_row", 1)]
    for seed in range(rounds):
        steps += [(name, seed) for name in ("extend", "alloc", "outrun", "free", "compact")]
    steps += [("fill", 0), *[("outrun", seed) for seed in range(rounds)]]
    world = new_world(subject, setup)
    drive(world, steps, command(subject, setup, repr(steps)))
    starved = sum(part.counters["starved"] for part in world.parts.values())
    assert starved > 0, "no lane starved: the case shows nothing"
