"""Tables that follow a request table through any sequence of operations hold what a fresh build holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from pagebind.ops import REFRESH_TABLE

from pagebind_conformance import generate
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.refresh_table import spec
from pagebind_conformance.trial.world import World

OPERATION = REFRESH_TABLE

KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "1-token": (1, {"form": "token"}, {"form": "token", "fill": "sink"}),
    "1-page": (1, {"form": "page", "fill": "sink"}, {"form": "page"}),
    "3-token": (3, {"form": "token", "fill": "sink"}, {"form": "token", "granularity": "token"}),
    "3-page": (3, {"form": "page", "granularity": "token"}, {"form": "page", "fill": "sink"}),
    "16-token": (16, {"form": "token"}, {"form": "token", "fill": "sink", "multiplier": 3}),
    "16-page": (16, {"form": "page", "granularity": "token", "fill": "sink"}, {"form": "page"}),
}
"""Page size, and what the two tables are besides."""


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_two_tables_stay_fresh_through_any_sequence_of_operations(subject: Subject, kind: Any) -> None:
    page_size, full, window = kind
    specs = spec(page_size, **full), spec(page_size, windowed=True, borrowed=True, **window)

    @subject.generated()
    @given(rng=generate.RANDOM)
    def fresh(rng: Random) -> None:
        world = World(subject, rng, *specs)
        for _ in range(12 if subject.slow else 40):
            world.step()
        world.refresh_full()
        world.refresh_window()

    fresh()
