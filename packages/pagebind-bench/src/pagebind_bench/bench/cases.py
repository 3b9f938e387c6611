"""The cases, as data: what was published, what was promised, and one axis at a time from a centre point.

A case is an input's whole description; its `groups` say why it is measured, and figures pick their points by them. An
operation that is added later is a dataclass in `kinds`, a list here and a maker in `pagebind_bench.bench.makers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from pagebind_bench.bench.kinds import (
    GIB,
    KIB,
    MIB,
    MILLION,
    SERVER,
    SKEW,
    AdvanceCase,
    AllocCase,
    Case,
    CompactCase,
    FreeCase,
    RefreshCase,
    TableCase,
)

CaseT = TypeVar("CaseT", bound=Case)


def axis(centre: CaseT, name: str, *values: Any, **more: Any) -> list[CaseT]:
    """Return the cases along one axis through a centre; their group is the axis."""
    return [replace(centre, **{**more, name: value, "groups": (name,)}) for value in values]


def of(group: str, *cases: CaseT) -> list[CaseT]:
    """Return cases with one more group."""
    return [replace(case, groups=(*case.groups, group)) for case in cases]


def merged(cases: Iterable[CaseT]) -> tuple[CaseT, ...]:
    """Return each case once, with the groups of all its mentions."""
    found: dict[CaseT, tuple[str, ...]] = {}
    for case in cases:
        found[case] = tuple(dict.fromkeys((*found.get(case, ()), *case.groups)))
    return tuple(replace(case, groups=groups) for case, groups in found.items())


TABLE, REFRESH, ADVANCE = TableCase(), RefreshCase(), AdvanceCase()
ALLOC, FREE, COMPACT = AllocCase(), FreeCase(), CompactCase()
"""The centre points."""

PUBLISHED = tuple(
    TableCase(bs=bs, length=length, width=MILLION, layout=layout)
    for layout in ("scattered", "contiguous")
    for bs, length in ((64, 8_224), (64, 1_024), (256, 8_224), (256, 131_072), (1, 8_224))
)
"""The shapes of the published table, captured at a width of 1M tokens; neither layout nor pool is published."""

# What the promises are about; pagebind_bench.bench.promises holds them to it.
WIDE_BATCH = TableCase(bs=256)
LONG_BATCH = TableCase(bs=256, length=131_072)
ONE_LONG = TableCase(bs=1, length=MILLION, width=MILLION)
SKEWED = {lay: TableCase(bs=256, length=131_072, lengths="skewed", layout=lay) for lay in ("scattered", "contiguous")}
UNSKEWED = TableCase(bs=256, length=(131_072 + 255 * 131_072 // SKEW) // 256)
"""As many tokens as a skewed batch has, all rows alike: what a perfect balance would make of it."""
PAGED = {
    lay: TableCase(bs=256, length=131_072, page_size=16, form="page", layout=lay) for lay in ("scattered", "contiguous")
}
SKEWED_64 = TableCase(length=131_072, lengths="skewed")
REFRESHED = tuple(
    RefreshCase(bs=bs, length=length, width=max(length, REFRESH.width))
    for bs in (1, 16, 64, 256)
    for length in (1_024, 8_224, 131_072, MILLION)
)
REFRESHED_MANY = tuple(RefreshCase(bs=1_024, length=length) for length in (1_024, 8_224, 131_072))
REFRESHED_WIDE = RefreshCase(width=MILLION)
"""Beside the grid from the maximum context of 1M."""
REBUILT = {
    RefreshCase(bs=full.bs, length=full.length, width=full.width, refresh="all"): full for full in (TABLE, ONE_LONG)
}
"""A refresh that rebuilds everything -> the full build of the same shape."""
LARGE_FREE = FreeCase(pages=8_192)

CASES: dict[str, tuple[Case, ...]] = {
    "read_table": merged(
        [
            *of("promise", TABLE, WIDE_BATCH, LONG_BATCH, ONE_LONG, *SKEWED.values(), *PAGED.values(), SKEWED_64),
            *of("quick", TABLE, SKEWED_64, replace(TABLE, layout="contiguous")),
            *of("quick", replace(TABLE, page_size=16, form="page"), replace(TABLE, bs=1)),
            *of("sweep", TABLE, WIDE_BATCH, SKEWED["scattered"], PAGED["scattered"]),
            *of("published", *PUBLISHED),
            *of("skew", UNSKEWED, *SKEWED.values(), SKEWED_64, replace(TABLE, length=131_072, lengths="trace")),
            *of("pool", *(replace(TABLE, memory=memory) for memory in (0, MILLION, SERVER, 4 * SERVER))),
            *axis(TABLE, "bs", 1, 4, 16, 64, 256, 1_024),
            *axis(TABLE, "length", 1_024, 4_096, 8_224, 32_768, 131_072),
            *axis(TABLE, "length", MILLION, width=MILLION),
            *axis(TABLE, "page_size", 1, 3, 16, 64, 256),
            *axis(replace(TABLE, form="page"), "page_size", 1, 3, 16, 64, 256),
            *axis(TABLE, "layout", "contiguous", "scattered"),
            *axis(TABLE, "lengths", "even", "skewed"),
            *axis(replace(TABLE, length=131_072), "lengths", "even", "skewed", "trace"),
            *axis(TABLE, "l2", "warm", "cold"),
            *axis(replace(TABLE, layout="contiguous"), "l2", "warm", "cold"),
            *axis(TABLE, "dtype", "int32", "int64"),
            *axis(WIDE_BATCH, "dtype", "int32", "int64"),
        ]
    ),
    "refresh_table": merged(
        [
            *of("promise", REFRESH, *REFRESHED, *REFRESHED_MANY, REFRESHED_WIDE, *REBUILT),
            *of("quick", REFRESH, replace(REFRESH, refresh="all")),
            *of("sweep", REFRESH, replace(REFRESH, bs=256), replace(REFRESH, refresh="all")),
            *axis(REFRESH, "bs", 1, 4, 16, 64, 256, 1_024),
            *axis(REFRESH, "length", 1_024, 4_096, 8_224, 32_768, 131_072),
            *axis(REFRESH, "length", MILLION, width=MILLION),
            *axis(REFRESH, "layout", "contiguous", "scattered"),
            *axis(REFRESH, "l2", "warm", "cold"),
            *axis(REFRESH, "dtype", "int32", "int64"),
            *axis(replace(REFRESH, form="page"), "page_size", 16),
            *axis(RefreshCase(bs=256, length=131_072, refresh="all"), "lengths", "skewed"),
        ]
    ),
    "advance": merged(
        [
            *of("promise", ADVANCE),
            *of("quick", replace(ADVANCE, bs=16), replace(ADVANCE, bs=16, page_size=16)),
            *of("sweep", ADVANCE, replace(ADVANCE, bs=1_024)),
            *axis(ADVANCE, "bs", 1, 4, 16, 64, 256, 1_024),
            *axis(ADVANCE, "length", 1_024, 8_224, 32_768, 131_072),
            *axis(ADVANCE, "page_size", 1, 16),
            *axis(replace(ADVANCE, page_size=16), "form", "token", "page"),
            *axis(ADVANCE, "layout", "contiguous", "scattered"),
            *axis(ADVANCE, "appends", True, False),
            *axis(ADVANCE, "l2", "warm", "cold"),
            *axis(ADVANCE, "dtype", "int32", "int64"),
        ]
    ),
    "alloc": merged(
        [
            *of("promise", ALLOC),
            *of("quick", ALLOC, replace(ALLOC, holes=0)),
            *of("sweep", ALLOC, replace(ALLOC, pages=16_384)),
            *axis(ALLOC, "pages", 1, 16, 64, 256, 1_024, 4_096, 16_384),
            *axis(ALLOC, "holes", 0, 128, 256, 4_096),
            *axis(ALLOC, "pool", 16_384, 65_536, 262_144, MILLION),
            *axis(ALLOC, "layout", "contiguous", "scattered"),
            *axis(ALLOC, "l2", "warm", "cold"),
            *axis(ALLOC, "dtype", "int32", "int64"),
        ]
    ),
    "free": merged(
        [
            *of("promise", FREE, LARGE_FREE),
            *of("quick", FREE, LARGE_FREE),
            *of("sweep", FREE, LARGE_FREE),
            *axis(FREE, "pages", 1, 16, 64, 512, 2_048, 8_192, 16_384),
            *axis(FREE, "pool", 16_384, 65_536, 262_144, MILLION),
            *axis(FREE, "layout", "contiguous", "scattered"),
            *axis(FREE, "l2", "warm", "cold"),
            *axis(FREE, "dtype", "int32", "int64"),
        ]
    ),
    "compact": merged(
        [
            *of("promise", COMPACT),
            *of("quick", replace(COMPACT, moved_bytes=16 * MIB)),
            *of("sweep", COMPACT, replace(COMPACT, moved_bytes=16 * MIB)),
            *axis(COMPACT, "page_bytes", 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB),
            *axis(COMPACT, "moved_bytes", 16 * MIB, 64 * MIB, 256 * MIB, GIB),
            *axis(COMPACT, "dtype", "int32", "int64"),
        ]
    ),
}
"""Every case of every operation, by the operation's name; at most 60 each."""

ORDER = ("promise", "published", "quick")
"""Groups measured first, so that a run that is cut short has what matters most."""


def chosen(ops: Iterable[str], *, group: str | None = None, named: str = "") -> list[Case]:
    """Return the cases of operations, of one group where given, whose id has `named` in it; what matters most first."""
    found = [
        case
        for op in ops
        for case in CASES[op]
        if (group is None or group in case.groups) and named in f"{case.op}/{case.id}"
    ]
    rank = {group: place for place, group in enumerate(ORDER)}
    return sorted(found, key=lambda case: min((rank.get(g, len(ORDER)) for g in case.groups), default=len(ORDER)))
