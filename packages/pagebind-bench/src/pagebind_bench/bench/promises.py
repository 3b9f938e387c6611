"""What is promised of speed, as data: each a ratio of two rows of one run, and whether they keep it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pagebind_bench.bench.cases import (
    ALLOC,
    COMPACT,
    FREE,
    LARGE_FREE,
    PAGED,
    PUBLISHED,
    SKEWED,
    SKEWED_64,
    TABLE,
    WIDE_BATCH,
    Case,
)
from pagebind_bench.bench.limits import Limits
from pagebind_bench.bench.record import Row, find

Metric = Literal["time", "host"]
COPY = "a plain copy"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A backend takes at most `most` times what `against` takes, or `slack_us` longer where that allows more."""

    what: str
    case: Case
    most: float
    against: str = "sglang"
    """A contender, or COPY: as long as a plain copy takes for the bytes the case has to move."""
    metric: Metric = "time"
    slack_us: float = 0.0
    device_type: str = "cuda"


@dataclass(frozen=True)
class Verdict:
    """What became of a promise: microseconds of the backend and of what it is held against."""

    promise: Promise
    contender: str
    own_us: float
    other_us: float

    @property
    def ratio(self) -> float:
        """What the backend takes of the other's time."""
        return self.own_us / self.other_us if self.other_us > 0 else math.inf

    @property
    def kept(self) -> bool:
        """Whether the promise is kept."""
        allowed = self.promise.most * self.other_us
        if self.promise.slack_us:
            allowed = max(allowed, self.other_us + self.promise.slack_us)
        return self.own_us <= allowed


PROMISES: tuple[Promise, ...] = (
    *(
        Promise(what=f"full build, even, {case.bs} x {case.length:,} {case.layout}", case=case, most=1.05, slack_us=0.1)
        for case in PUBLISHED
    ),
    Promise(what="full build, 256 x 8,224 scattered", case=WIDE_BATCH, most=1 / 1.5),
    Promise(what="full build, one 131,072 among 255 of 1,024, scattered", case=SKEWED["scattered"], most=1 / 6),
    Promise(what="full build, one 131,072 among 255 of 1,024, contiguous", case=SKEWED["contiguous"], most=1 / 5),
    Promise(what="full build, 256 x 131,072, pages of 16, scattered", case=PAGED["scattered"], most=1 / 2.6),
    Promise(what="full build, 256 x 131,072, pages of 16, contiguous", case=PAGED["contiguous"], most=1 / 7),
    Promise(what="alloc of 256 pages, half of them holes", case=ALLOC, most=0.8),
    Promise(what="free of 512 pages", case=FREE, most=0.7),
    Promise(what="free of 8,192 pages", case=LARGE_FREE, most=1.0),
    Promise(what="alloc of 256 pages, host", case=ALLOC, most=0.3, metric="host"),
    Promise(what="free of 512 pages, host", case=FREE, most=0.3, metric="host"),
    Promise(what="free of 8,192 pages, host", case=LARGE_FREE, most=0.3, metric="host"),
    Promise(what="one table call, host", case=TABLE, most=0.25, metric="host"),
    Promise(what="compaction of 1 GiB", case=COMPACT, most=1 / 0.9, against=COPY),
    Promise(what="full build on the CPU, 64 x 8,224 scattered", case=TABLE, most=1 / 3, device_type="cpu"),
    Promise(what="full build on the CPU, one 131,072 among 63 of 1,024", case=SKEWED_64, most=1 / 3, device_type="cpu"),
)


def verdicts(rows: Sequence[Row], contenders: Iterable[str], device_type: str, limits: Limits) -> Iterator[Verdict]:
    """Return what became of each promise for each contender, of those that the rows tell about."""
    contenders = list(contenders)
    for promise in PROMISES:
        if promise.device_type != device_type:
            continue
        at = {"op": promise.case.op, "case": promise.case.id, "metric": promise.metric, "threads": None}
        for contender in contenders:
            own = find(rows, contender=contender, **at)
            if own is None:
                continue
            if promise.against == COPY:
                yield Verdict(promise, contender, own["p50"], own["bytes"] / limits.copy_bytes_per_s * 1e6)
                continue
            other = find(rows, contender=promise.against, **at)
            if other is not None:
                yield Verdict(promise, contender, own["p50"], other["p50"])
