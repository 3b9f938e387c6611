"""The kinds of cases: what sets one apart, as fields; its names; the memory it takes. The cases are in `cases`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal

from pagebind.words import Form

from pagebind_bench.replay.generator import generate

Dtype = Literal["int32", "int64"]
"""Of the page tables: `v2p`, and `p2v` and the stacks where the operation has them."""
Layout = Literal["contiguous", "scattered"]
"""How ids lie in rows and on stacks, and pages behind ids: one after another, or at random."""
Lengths = Literal["even", "skewed", "trace"]
"""Of the lanes: all `length`; one of them that, the others 1/128 of it; drawn from a trace's quantiles."""
L2 = Literal["warm", "cold"]
"""What the second-level cache holds when a call begins: what the call before left, or nothing of it."""
Refresh = Literal["steady", "all"]
"""What a refresh finds: the same lanes with one token appended to each since the last one, or nothing that is right."""

SKEW = 128
"""A skewed batch's short rows are the long one's length over this: 1,024 beside 131,072."""
TRACE = "prefix-chat"
"""The profile of `pagebind replay` that trace-drawn lengths follow; they are cut at the table's width."""
MILLION = 2**20
KIB, MIB, GIB = 2**10, 2**20, 2**30

SERVER = 4 * MILLION
"""Tokens of a server's pool, which is sized by its memory and not by the batch at hand: a hybrid model that keeps 8 KiB
a token (seven layers of 576 bfloat16 latent values) fits 4 Mi tokens in 32 GiB. What a scattered batch reads of `v2p`
then lies anywhere in 16 MiB, or 32 with int64, where the pages of 64 rows of 8,224 tokens alone would take 2.5. An axis
over the pool's size shows what that costs.
"""
SPARE_IDS = 64


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """What all cases share."""

    op: ClassVar[str]
    dtype: Dtype = "int32"
    l2: L2 = "warm"
    groups: tuple[str, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """Name of the case, unique for its operation: each parameter's value, in order."""
        return "-".join(f"{_SHORT.get(name, '')}{value}" for name, value in self.parameters().items())

    @property
    def label(self) -> str:
        """Name of the case for people: what sets it apart from the centre point."""
        return " ".join(self._apart()) or "centre"

    def _apart(self, *told: str) -> list[str]:
        """Return the values that are not those of the centre point, but for parameters that are told already."""
        centre = type(self)().parameters()
        values = {k: v for k, v in self.parameters().items() if v != centre[k] and k not in told}
        return [f"{_SHORT.get(name, '')}{_sized(name, value)}" for name, value in values.items()]

    def parameters(self) -> dict[str, Any]:
        """Return what sets the case apart, by the name of a column."""
        own = [f.name for f in fields(self) if f.name not in {"dtype", "l2", "groups"}]
        return {name: getattr(self, name) for name in (*own, "dtype", "l2")}

    @property
    @abstractmethod
    def footprint(self) -> int:
        """Bytes of memory its inputs and outputs take, about."""


def _sized(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_bytes"):
        for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_SHORT = {
    "bs": "bs",
    "length": "len",
    "width": "w",
    "page_size": "ps",
    "appends": "appends",
    "pages": "n",
    "holes": "holes",
    "pool": "pool",
    "page_bytes": "page",
    "moved_bytes": "moved",
}


@dataclass(frozen=True, kw_only=True)
class TableCase(Case):
    """A read table. `length`, `width` and `memory` are tokens; `width` is that of the request table, so of the grid.

    `memory` is what the server's pool has room for; the pool is larger where the batch needs more.
    """

    op = "read_table"
    bs: int = 64
    length: int = 8_224
    width: int = 131_072
    page_size: int = 1
    form: Form = "token"
    layout: Layout = "scattered"
    lengths: Lengths = "even"
    memory: int = SERVER

    def seq_lens(self) -> tuple[int, ...]:
        """Return the tokens of each lane."""
        if self.lengths == "trace":
            return tuple(min(tokens, self.width) for tokens in _traced(self.bs))
        if self.lengths == "skewed":
            short = max(self.length // SKEW, 1)
            return tuple(self.length if lane == self.bs // 3 else short for lane in range(self.bs))
        return (self.length,) * self.bs

    @property
    def used(self) -> int:
        """Pages that the rows hold."""
        return sum(-(-length // self.page_size) for length in self.seq_lens())

    @property
    def pool(self) -> int:
        """Pages of the sub-pool, the sink not counted: at least 5/4 of those in use."""
        used = self.used
        return max(self.memory // self.page_size, used + used // 4 + SPARE_IDS)

    @property
    def label(self) -> str:
        """Batch and length, then what else sets the case apart from the centre point."""
        told = ["bs", "length"] + ["pool"] * (self.memory == SERVER)  # a pool that follows from the rest says nothing
        return " ".join([f"{self.bs} x {self.length:,}", *self._apart(*told)])

    def parameters(self) -> dict[str, Any]:
        """Return what sets the case apart; the memory as the pages that it comes to."""
        found = {**super().parameters(), "memory": self.pool}
        return {"pool" if name == "memory" else name: value for name, value in found.items()}

    @property
    def footprint(self) -> int:
        """Two request tables, a read table for each contender, page tables, and the permutations they are made of."""
        return self.bs * (2 + 6) * 4 * self.width // (1 if self.form == "token" else self.page_size) + 48 * self.pool


@dataclass(frozen=True, kw_only=True)
class RefreshCase(TableCase):
    """A refresh of a read table that was built over the same rows. A steady one ends at `length`."""

    op = "refresh_table"
    refresh: Refresh = "steady"


@dataclass(frozen=True, kw_only=True)
class AdvanceCase(TableCase):
    """A decode step of rows that end at `length`, a round of steps later; with pages above 1, lane by lane one less.

    Lengths that differ by lane are what a server has: each step as many lanes begin a page as the next. With `appends`
    the new column of a read table is part of the step.
    """

    op = "advance"
    bs: int = 256
    appends: bool = True

    def seq_lens(self) -> tuple[int, ...]:
        """Return the tokens of each lane after the round."""
        return tuple(max(most - lane % self.page_size, 0) for lane, most in enumerate(super().seq_lens()))

    @property
    def footprint(self) -> int:
        """A request table and a read table for each contender, as a table's case has; pools, twice, for both dtypes."""
        return super().footprint + 2 * self.bs * 4 * self.width + 4 * 2 * 16 * self.pool


@cache
def _traced(lanes: int) -> tuple[int, ...]:
    return tuple(request.tokens for request in generate(TRACE, lanes, seed=0))


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
