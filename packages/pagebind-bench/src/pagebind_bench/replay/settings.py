"""What a replay is run with, and what has to fit into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pagebind.errors import InvalidArgument
from pagebind.words import Form

from pagebind_bench.replay.traces import Request

Verify = Literal["every", "sample", "off"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a replay is run with. All of it stands in the report."""

    pages: int
    page_size: int
    max_batch: int
    max_context: int  # tokens a row of the request table has room for
    chunk: int  # prefill tokens a step, at most
    block_tokens: int  # tokens of a hashed block; 0 shares nothing
    form: Form
    verify: Verify
    sample_every: int
    cost_step_ms: float
    cost_prefill_us: float  # a token
    cost_entry_us: float  # a read-table cell
    threads: int = 1  # of torch for one operation on the CPU; more cost more than they give on tensors this small


def need_rows_fit(requests: Sequence[Request], max_context: int) -> None:
    """Refuse a request that a row of the request table has no room for."""
    for number, request in enumerate(requests, 1):
        if request.tokens > max_context:
            raise InvalidArgument(
                f"request {number} ({request.input_tokens} tokens in, {request.output_tokens} out) needs a row of "
                f"{request.tokens} tokens, --max-context is {max_context}: pass --max-context {request.tokens} or more"
            )


def need_numbers(**options: float) -> None:
    """Refuse options that are infinite or no number."""
    for name, value in options.items():
        if not math.isfinite(value):
            raise InvalidArgument(f"--{name.replace('_', '-')} is {value}; it must be a finite number")
