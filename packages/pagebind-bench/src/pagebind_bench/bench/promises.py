"""What is promised of speed, as data: each a ratio of two rows of one run, and whether they keep it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pagebind_bench.bench.cases import (
    ADVANCE,
    ALLOC,
    COMPACT,
    FREE,
    LARGE_FREE,
    LONG_BATCH,
    PAGED,
    PUBLISHED,
    REBUILT,
    REFRESH,
    REFRESHED,
    REFRESHED_MANY,
    REFRESHED_WIDE,
    SKEWED,
    SKEWED_64,
    TABLE,
    WIDE_BATCH,
)
from pagebind_bench.bench.kinds import Case, RefreshCase
from pagebind_bench.bench.record import Row, find

Metric = Literal["time", "host"]
COPY = "a plain copy"
"""As long as `torch.Tensor.copy_` takes, at its bandwidth in the run, for the bytes the case has to move."""
EMPTY = "an empty kernel"
BARE = "a bare launch"
"""What a launch by the same library takes the host, measured in turns with the call."""
ITSELF = "its own"
"""The same backend, on the other case of the promise."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A backend takes at most `most` times what `against` takes, or `slack_us` longer where that allows more."""

    what: str
    cases: tuple[Case, ...]
    """It holds for each; the worst is told."""
    most: float
    against: str = "sglang"
    """A contender, or one of the constants above."""
    than: Case | None = None
    """The case that `against` is measured on, where that is another one."""
    metric: Metric = "time"
    slack_us: float = 0.0
    device_type: str = "cuda"


@dataclass(frozen=True)
class Verdict:
    """What became of a promise: microseconds of the backend and of what it is held against, on the worst case."""

    promise: Promise
    case: Case
    contender: str
    own_us: float
    other_us: float
    measured: int = 1
    """Cases of the promise that the rows tell about."""

    @property
    def ratio(self) -> float:
        """What the backend takes of the other's time."""
        return self.own_us / self.other_us if self.other_us > 0 else math.inf

    @property
    def allowed_us(self) -> float:
        """What the promise lets the backend take."""
        allowed = self.promise.most * self.other_us
        return max(allowed, self.other_us + self.promise.slack_us) if self.promise.slack_us else allowed

    @property
    def kept(self) -> bool:
        """Whether the promise is kept."""
        return self.own_us <= self.allowed_us

    @property
    def what(self) -> str:
        """The promise in words, with the worst of several cases."""
        cases = len(self.promise.cases)
        if cases == 1:
            return self.promise.what
        return f"{self.promise.what}; {self.measured} of {cases} shapes, the worst: {self.case.label}"


def _promises() -> Iterator[Promise]:
    for case in PUBLISHED:
        what = f"full build, even, {case.bs} x {case.length:,} {case.layout}"
        yield Promise(what=what, cases=(case,), most=1.05, slack_us=0.1)
    yield Promise(what="full build, 256 x 8,224 scattered", cases=(WIDE_BATCH,), most=1 / 1.5)
    for layout, most in (("scattered", 1 / 6), ("contiguous", 1 / 5)):
        what = f"full build, one 131,072 among 255 of 1,024, {layout}"
        yield Promise(what=what, cases=(SKEWED[layout],), most=most)
    for layout, most in (("scattered", 1 / 2.6), ("contiguous", 1 / 7)):
        what = f"full build, 256 x 131,072, pages of 16, {layout}"
        yield Promise(what=what, cases=(PAGED[layout],), most=most)

    long = RefreshCase(bs=LONG_BATCH.bs, length=LONG_BATCH.length)
    yield Promise(what="refresh, 64 x 8,224 scattered", cases=(REFRESH,), than=TABLE, most=1 / 4.5)
    yield Promise(what="refresh, 256 x 131,072 scattered", cases=(long,), than=LONG_BATCH, most=1 / 250)
    yield Promise(what="refresh, 1 to 256 rows of 1k to 1M", cases=REFRESHED, most=3.0, against=EMPTY)
    yield Promise(what="refresh, 1,024 rows", cases=REFRESHED_MANY, most=4.0, against=EMPTY)
    for case, full in REBUILT.items():
        what = f"refresh of everything, {full.bs} x {full.length:,}, against a full build"
        yield Promise(what=what, cases=(case,), than=full, most=2.0, against=ITSELF)
    yield Promise(
        what="refresh, 64 x 8,224 of 1M, against the grid from the maximum context",
        cases=(REFRESHED_WIDE,),
        than=PUBLISHED[0],
        most=1 / 75,
        against="published-context",
    )

    yield Promise(what="advance of 256 rows", cases=(ADVANCE,), most=0.35)
    yield Promise(what="advance of 256 rows, host", cases=(ADVANCE,), most=0.2, metric="host")
    for what, pages, most in (
        ("alloc of 256 pages, half of them holes", ALLOC, 0.8),
        ("free of 512 pages", FREE, 0.7),
        ("free of 8,192 pages", LARGE_FREE, 1.0),
    ):
        yield Promise(what=what, cases=(pages,), most=most)
        yield Promise(what=f"{what}, host", cases=(pages,), most=0.3, metric="host")
    yield Promise(what="one table call, host", cases=(TABLE,), most=0.25, metric="host")
    yield Promise(what="one table call, host", cases=(TABLE,), most=1.3, metric="host", against=BARE)
    yield Promise(what="compaction of 1 GiB", cases=(COMPACT,), most=1 / 0.9, against=COPY)

    for what, table in (("64 x 8,224 scattered", TABLE), ("one 131,072 among 63 of 1,024", SKEWED_64)):
        yield Promise(what=f"full build on the CPU, {what}", cases=(table,), most=1 / 3, device_type="cpu")
    yield Promise(
        what="refresh on the CPU, 64 x 8,224, against a full build",
        cases=(REFRESH,),
        than=TABLE,
        most=1 / 20,
        against=ITSELF,
        device_type="cpu",
    )


PROMISES = tuple(_promises())


def verdicts(rows: Sequence[Row], contenders: Iterable[str], device_type: str) -> Iterator[Verdict]:
    """Return what became of each promise for each contender, of those that the rows tell about."""
    contenders = list(contenders)
    for promise in PROMISES:
        if promise.device_type != device_type:
            continue
        for contender in contenders:
            found = [one for case in promise.cases for one in _verdict(promise, case, contender, rows)]
            if found:
                yield replace(max(found, key=lambda one: one.ratio), measured=len(found))


def _verdict(promise: Promise, case: Case, contender: str, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Return the verdict on one case, if it and what it is held against were measured."""

    def row_of(case: Case, who: str) -> Row | None:
        return find(rows, op=case.op, case=case.id, metric=promise.metric, threads=None, contender=who)

    own = row_of(case, contender)
    if own is None:
        return
    other: float | None
    if promise.against == COPY:
        copy = find(rows, op="ceiling", contender="copy")
        other = None if copy is None else own["bytes"] / copy["bytes_per_s"] * 1e6
    elif promise.against in {EMPTY, BARE}:
        other = own.get("floor_us" if promise.against == EMPTY else "bare_us")
    else:
        row = row_of(promise.than or case, contender if promise.against == ITSELF else promise.against)
        other = None if row is None else row["p50"]
    if other is not None:
        yield Verdict(promise, case, contender, own["p50"], other)
