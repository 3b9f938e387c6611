"""The cases, as data: what was published, what was promised, and one axis at a time from a centre point.

A case is an input's whole description; its `groups` say why it is measured, and figures pick their points by them. An
operation that is added later is a dataclass, a list here and a maker in `pagebind_bench.bench.makers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

from pagebind.words import Form

Dtype = Literal["int32", "int64"]
"""Of the page tables: `v2p`, and `p2v` and the stacks where the operation has them."""
Layout = Literal["contiguous", "scattered"]
"""How ids lie in rows and on stacks, and pages behind ids: one after another, or at random."""
Lengths = Literal["even", "skewed", "trace"]
"""Of the lanes: all `length`; one of them that, the others 1/128 of it; drawn from a trace's quantiles."""
L2 = Literal["warm", "cold"]
"""What the second-level cache holds when a call begins: what the call before left, or nothing of it."""

SKEW = 128
"""A skewed batch's short rows are the long one's length over this: 1,024 beside 131,072."""
TRACE = "prefix-chat"
"""The profile of `pagebind replay` that trace-drawn lengths follow; they are cut at the table's width."""
MILLION = 2**20
KIB, MIB, GIB = 2**10, 2**20, 2**30

CaseT = TypeVar("CaseT", bound="Case")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What all cases share."""

    op: ClassVar[str]
    dtype: Dtype = "int32"
    l2: L2 = "warm"
    groups: tuple[str, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """Name of the case, unique for its operation: each field's value, in order."""
        return "-".join(f"{_SHORT.get(name, '')}{value}" for name, value in self.parameters().items())

    @property
    def label(self) -> str:
        """Name of the case for people: what sets it apart from the centre point."""
        return " ".join(self._apart()) or "centre"

    def _apart(self, *told: str) -> list[str]:
        """Return the values that are not those of the centre point, but for fields that are told already."""
        centre = type(self)().parameters()
        values = {k: v for k, v in self.parameters().items() if v != centre[k] and k not in told}
        return [f"{_SHORT.get(name, '')}{_sized(name, value)}" for name, value in values.items()]

    def parameters(self) -> dict[str, Any]:
        """Return what sets the case apart, by field."""
        own = [f.name for f in fields(self) if f.name not in {"dtype", "l2", "groups"}]
        return {name: getattr(self, name) for name in (*own, "dtype", "l2")}

    @property
    def footprint(self) -> int:
        """Bytes of memory its inputs and outputs take, about."""
        raise NotImplementedError


def _sized(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_bytes"):
        for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return f"{value:,}" if isinstance(value, int) else str(value)


_SHORT = {
    "bs": "bs",
    "length": "len",
    "width": "w",
    "page_size": "ps",
    "pages": "n",
    "holes": "holes",
    "pool": "pool",
    "page_bytes": "page",
    "moved_bytes": "moved",
}


@dataclass(frozen=True, kw_only=True)
class TableCase(Case):
    """A read table. `length` and `width` are tokens; `width` is that of the request table, so of the captured grid."""

    op = "read_table"
    bs: int = 64
    length: int = 8_224
    width: int = 131_072
    page_size: int = 1
    form: Form = "token"
    layout: Layout = "scattered"
    lengths: Lengths = "even"

    @property
    def label(self) -> str:
        """Batch and length, then what else sets the case apart from the centre point."""
        return " ".join([f"{self.bs} x {self.length:,}", *self._apart("bs", "length")])

    @property
    def footprint(self) -> int:
        """Two request tables, two read tables, two page tables, and the ids they are made of."""
        return self.bs * (4 * self.width + 4 * self.width + 40 * min(self.length, self.width) // self.page_size)


@dataclass(frozen=True, kw_only=True)
class AllocCase(Case):
    """An allocation of `pages` from a pool half of which is live, with `holes` freed pages in its span."""

    op = "alloc"
    pages: int = 256
    holes: int = 128
    pool: int = 65_536
    layout: Layout = "scattered"

    @property
    def footprint(self) -> int:
        """Tables and stacks, twice, for both dtypes."""
        return 4 * 2 * 16 * self.pool


@dataclass(frozen=True, kw_only=True)
class FreeCase(Case):
    """A free of `pages` ids of a pool half of which is live, with `holes` freed pages in its span before."""

    op = "free"
    pages: int = 512
    holes: int = 128
    pool: int = 65_536
    layout: Layout = "scattered"

    @property
    def footprint(self) -> int:
        """Tables and stacks, twice, for both dtypes."""
        return 4 * 2 * 16 * self.pool


@dataclass(frozen=True, kw_only=True)
class CompactCase(Case):
    """A compaction that moves `moved_bytes`: live pages scattered over a band, into holes scattered outside of it."""

    op = "compact"
    page_bytes: int = 64 * KIB
    moved_bytes: int = GIB

    @property
    def pages(self) -> int:
        """Pages that move."""
        return self.moved_bytes // self.page_bytes

    @property
    def footprint(self) -> int:
        """The buffer: a band of twice what moves, and as much below it; and the tables."""
        return 4 * self.moved_bytes + 4 * 64 * self.pages


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


TABLE, ALLOC, FREE, COMPACT = TableCase(), AllocCase(), FreeCase(), CompactCase()
"""The centre points."""

PUBLISHED = tuple(
    TableCase(bs=bs, length=length, width=MILLION, layout=layout)
    for layout in ("scattered", "contiguous")
    for bs, length in ((64, 8_224), (64, 1_024), (256, 8_224), (256, 131_072), (1, 8_224))
)
"""The shapes of the published table, captured at a width of 1M tokens; the layout is not published."""

# What the promises are about; pagebind_bench.bench.promises holds them to it.
WIDE_BATCH = TableCase(bs=256)
SKEWED = {lay: TableCase(bs=256, length=131_072, lengths="skewed", layout=lay) for lay in ("scattered", "contiguous")}
PAGED = {
    lay: TableCase(bs=256, length=131_072, page_size=16, form="page", layout=lay) for lay in ("scattered", "contiguous")
}
SKEWED_64 = TableCase(length=131_072, lengths="skewed")
LARGE_FREE = FreeCase(pages=8_192)

CASES: dict[str, tuple[Case, ...]] = {
    "read_table": merged(
        [
            *of("promise", TABLE, WIDE_BATCH, *SKEWED.values(), *PAGED.values(), SKEWED_64),
            *of("quick", TABLE, SKEWED_64, replace(TABLE, layout="contiguous")),
            *of("quick", replace(TABLE, page_size=16, form="page"), replace(TABLE, bs=1)),
            *of("sweep", TABLE, WIDE_BATCH, SKEWED["scattered"], PAGED["scattered"]),
            *of("published", *PUBLISHED),
            *axis(TABLE, "bs", 1, 4, 16, 64, 256, 1_024),
            *axis(TABLE, "length", 1_024, 4_096, 8_224, 32_768, 131_072),
            *axis(TABLE, "length", MILLION, width=MILLION),
            *axis(TABLE, "page_size", 1, 3, 16, 64, 256),
            *axis(replace(TABLE, form="page"), "page_size", 1, 3, 16, 64, 256),
            *axis(TABLE, "layout", "contiguous", "scattered"),
            *axis(TABLE, "lengths", "even", "skewed", "trace"),
            *axis(replace(TABLE, length=131_072), "lengths", "even", "skewed", "trace"),
            *axis(TABLE, "l2", "warm", "cold"),
            *axis(replace(TABLE, layout="contiguous"), "l2", "warm", "cold"),
            *axis(TABLE, "dtype", "int32", "int64"),
            *axis(WIDE_BATCH, "dtype", "int32", "int64"),
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
