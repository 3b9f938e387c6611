"""The extended operations but read_stream: what core composes, over this backend's bind and unbind.

Torch on the CPU is what a composed form is written in already, so a native one would be the same lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pagebind.operation import Launch, LaunchOptions, Planner
from pagebind.ops import alloc as core_alloc
from pagebind.ops import assign as core_assign
from pagebind.ops import compact as core_compact
from pagebind.ops import evict as core_evict
from pagebind.ops import extend as core_extend
from pagebind.ops import free as core_free
from pagebind.ops import release as core_release
from pagebind.ops import truncate as core_truncate

from pagebind_cpu import bind, unbind

CORE: Mapping[str, Planner] = {"bind": bind.plan_judged, "unbind": unbind.plan}
"""What the forms are composed of; those that bind judge their pairs before, so this binding does not."""


def _over_core(compose: Callable[..., Launch]) -> Planner:
    """Return a planner that composes an operation over this backend's core planners."""

    def plan(spec: Any, device: torch.device, options: LaunchOptions) -> Launch:
        return compose(spec, device, CORE, options)

    return plan


alloc = _over_core(core_alloc.compose)
free = _over_core(core_free.compose)
extend = _over_core(core_extend.compose)
truncate = _over_core(core_truncate.compose)
assign = _over_core(core_assign.compose)
release = _over_core(core_release.compose)
evict = _over_core(core_evict.compose)
compact = _over_core(core_compact.compose)
