"""advance: a decode step, as core composes it over this backend's bind.

Its composed form has a constant number of torch calls, whatever the batch; a native one would be the same lines again.
"""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions
from pagebind.ops.advance import AdvanceSpec, compose

from pagebind_cpu.composed import CORE


def plan(spec: AdvanceSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a decode step."""
    return compose(spec, device, CORE, options)
