"""What a replay is run with, and what has to fit into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pagebind.errors import InvalidArgument
from pagebind.words import Form

from pagebind_bench.replay.split import PoolKind
from pagebind_bench.replay.traces import Request

Verify = Literal["every", "sample", "off"]
MAX_COST = 1e12
"""Largest cost constant, in whichever unit it has."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every replay is run with. All of it stands in the report."""

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
    speed: float = 1.0  # arrivals are this many times as fast as in the trace
    threads: int = 1  # of torch for one operation on the CPU; more cost more than they give on tensors this small


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What a replay of one kind of page is run with."""

    pages: int


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Common):
    """What a replay of a model's kinds of page is run with."""

    model: str
    pool: PoolKind
    budget: int  # bytes of the pool, sinks and all
    real_bytes: bool  # whether the pool has its buffer; without, it plans tables only
    window_ratio: float  # of a static split: window tokens / full tokens
    state_ratio: float  # of a static split: state bytes / other bytes
    cost_move_us: float  # a MiB that relief moves


def need_largest_fits(requests: Sequence[Request], settings: Settings) -> None:
    """Refuse requests the largest of which could not be served even alone."""
    number, largest = max(enumerate(requests, 1), key=lambda pair: pair[1].tokens)
    told = f"request {number}, the largest ({largest.input_tokens} tokens in, {largest.output_tokens} out),"
    if largest.tokens > settings.max_context:
        raise InvalidArgument(
            f"{told} needs a row of {largest.tokens} tokens, --max-context is {settings.max_context}: "
            f"pass --max-context {largest.tokens} or more, or leave it out"
        )
    need = -(-largest.tokens // settings.page_size)
    if need > settings.pages:
        raise InvalidArgument(
            f"{told} needs {need} pages of {settings.page_size} tokens, the pool has {settings.pages}: "
            f"pass --pages {need} or more, or leave it out"
        )


def need_numbers(**options: float) -> None:
    """Refuse options that are infinite, no number, or so large that sums over a replay would lose all meaning."""
    for name, value in options.items():
        if not math.isfinite(value) or value > MAX_COST:
            raise InvalidArgument(
                f"--{name.replace('_', '-')} is {value}; it must be a finite number, at most {MAX_COST:g}"
            )
