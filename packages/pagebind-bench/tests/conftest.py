from collections.abc import Callable
from typing import Any

import pytest
from pagebind_bench.replay.loop import Loop
from pagebind_bench.replay.settings import Settings

DEFAULTS: dict[str, Any] = {
    "page_size": 4,
    "max_batch": 4,
    "max_context": 64,
    "chunk": 16,
    "block_tokens": 0,
    "form": "page",
    "verify": "every",
    "sample_every": 4,
    "cost_step_ms": 1.0,
    "cost_prefill_us": 0.0,
    "cost_entry_us": 0.0,
}


@pytest.fixture
def make_loop() -> Callable[..., Loop]:
    """Build a loop over requests on the CPU, with settings replaced by keywords."""

    def make(requests, **settings):
        return Loop(requests, Settings(**{**DEFAULTS, **settings}), backend="cpu", device="cpu")

    return make
