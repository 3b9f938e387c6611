"""compact: close holes. A frontier retreats by R pages; live pages of the band it leaves move into holes elsewhere.

    span [1, 8], R = 3          1  .  3  .  5 |.  7  8|       holes 2, 4, 6; hole stack from the top: 6, 4, 2
    band [6, 8]                                live in the band, ascending: 7, 8
                                               holes outside it, from the top: 4, 2
    moves 7 -> 4, 8 -> 2        1  8  3  7  5                 span [1, 5]; the other holes outside keep their order

The k-th live page of the band (ascending) moves to the k-th hole outside it in stack order from the top. A sub-pool
with H holes may retreat by any R <= H: the holes outside are enough, whichever pages are live, and the counts after it
follow without looking: span - R, holes H - R. Bytes move with their pages, then both tables are rebound.

The band lies at the high end of the span or at the low one. A float may retreat by R > H: after the holes outside
the band it takes R - H fresh pages at its other end, and has no hole afterwards. Where all of it leaves (R = span) the
fresh pages may begin `skip` pages away from that end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import (
    INT32_MAX,
    Launch,
    LaunchOptions,
    Operation,
    Planner,
    need_at_most,
    need_choice,
    need_count,
    need_index_dtypes,
    need_length,
    need_tables,
    need_tensor,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.bind import BindSpec, bindable
from pagebind.ops.composed import Composed
from pagebind.ops.span import read_span
from pagebind.ops.unbind import UnbindSpec
from pagebind.words import COUNT_MISMATCH, EPOCH, HOLE, HOLE_TOP, SEAT, SINK, TOMBSTONE, WATERMARK, PageTables

ALIGNMENT = 16
"""Bytes; a page's size and address are multiples of it, so that kernels copy 16 bytes at a time."""


Side = Literal["high", "low"]
"""An end of a span."""

SIDES = ("high", "low")


@dataclass(frozen=True, kw_only=True)
class CompactSpec:
    """What a compaction's plan decides: retreats of at most `max_pages`, pages of `page_bytes` (0 moves no bytes)."""

    max_pages: int
    page_bytes: int = 0
    index_dtype: torch.dtype = torch.int32  # of the tables and stacks
    id_dtype: torch.dtype = torch.int32  # of sources and targets

    def __post_init__(self) -> None:
        need_count("max_pages", self.max_pages, 0, INT32_MAX)
        need_count("page_bytes", self.page_bytes, 0)
        if self.page_bytes % ALIGNMENT:
            raise InvalidArgument(f"page_bytes is {self.page_bytes}; it must be a multiple of {ALIGNMENT}")
        need_index_dtypes(index_dtype=self.index_dtype, id_dtype=self.id_dtype)


class Compact(Protocol):
    """The planned call."""

    def __call__(
        self,
        tables: PageTables,  # written
        *,
        retreat: int,  # pages; the host's choice, at most the holes it counts and `fresh`
        sources: torch.Tensor,  # [>= retreat], id_dtype; physical pages that moved; written
        targets: torch.Tensor,  # [>= retreat], id_dtype; where to; written
        buffer: torch.Tensor | None = None,  # [>= num_physical * page_bytes], uint8; page p at p * page_bytes; written
        side: Side = "high",  # the end of the span that retreats
        fresh: int = 0,  # pages taken at the other end
        skip: int = 0,  # pages between that end and the fresh ones
    ) -> None:
        """Retreat one end of the span by `retreat` pages, moving what is live there; or change nothing.

        The span is the pages `(seat, seat + watermark]`. Let the band be the `retreat` pages of it at its high or low
        end, L those of them that are live (their row of p2v holds a virtual page), and O the cells of the hole stack
        that hold a page of the span outside the band whose row of p2v is a tombstone. Fresh pages are, with side low,
        `seat + watermark + skip + 1` and up, with side high `seat - skip` and down; the first is fresh page 0.

        Nothing is moved and `count_mismatch` counts once where the host's counts are not the device's: the hole top,
        the seat or the watermark below 0, `seat + watermark` outside the tables, the watermark below `retreat`, the
        hole top above the watermark or below `retreat - fresh`, `skip` above 0 though `retreat` is not the watermark,
        `skip + fresh` above the pages that are free at that end (`above` or `below` of
        `pagebind.ops.span.read_span`), or more in L than in O and `fresh` together, or fewer while `fresh` is above 0.
        Where the tables are not inverse, a page is twice on the hole stack, or a fresh page is bound, nothing outside
        the tables and the buffer is touched, tables that were inverse stay so, and what they hold after is not
        specified otherwise.

        Else the k-th of L moves, k from 0, to the k-th of O from the top, and past O to the fresh page of number
        k - O: `sources[k]`, `targets[k]`; the first `retreat` cells of both from L on are -1, and in the refused call
        all of them. The hole stack keeps the other cells of O in their order, `hole top = max(O - L, 0)`,
        `watermark += fresh - retreat`, `epoch += 1`; with side low `seat += retreat + skip`, with side high
        `seat -= fresh + skip`. No byte of the buffer changes but those of the targets. Raises InvalidArgument before
        launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: CompactSpec,
    device: torch.device,
    tables: PageTables,
    *,
    retreat: int,
    sources: torch.Tensor,
    targets: torch.Tensor,
    buffer: torch.Tensor | None = None,
    side: Side = "high",
    fresh: int = 0,
    skip: int = 0,
) -> bool:
    """Check a call; False for a retreat of no page."""
    need_tables(tables, spec.index_dtype, device)
    need_count("retreat", retreat, 0)
    need_choice("side", side, SIDES)
    need_count("fresh", fresh, 0, retreat)
    need_count("skip", skip, 0, INT32_MAX)
    need_at_most("retreat", retreat, spec.max_pages, "max_pages")
    for name, value in (("sources", sources), ("targets", targets)):
        need_tensor(name, value, spec.id_dtype, 1, device)
        if value.shape[0] < retreat:
            raise InvalidArgument(f"{name} has {value.shape[0]} element(s); a retreat of {retreat} needs as many")
    need_length("targets", targets, sources.shape[0], "sources")
    need_memory_of_its_own("sources targets", (sources, targets), "", ())
    if (buffer is not None) != (spec.page_bytes > 0):
        raise InvalidArgument(f"buffer is {'given' if buffer is not None else 'None'}, page_bytes={spec.page_bytes}")
    if buffer is not None:
        need_tensor("buffer", buffer, torch.uint8, 1, device)
        needed = (tables.p2v.shape[0] - 1) * spec.page_bytes
        if buffer.shape[0] < needed:
            raise InvalidArgument(f"buffer has {buffer.shape[0]} bytes; num_physical * page_bytes is {needed}")
        if buffer.data_ptr() % ALIGNMENT:
            raise InvalidArgument(f"buffer begins at {buffer.data_ptr():#x}; it must be aligned to {ALIGNMENT} bytes")
    return retreat > 0


def bytes_moved(spec: CompactSpec, *, lanes: int, items: int) -> int:
    """Return the bytes to move `items` pages: each read and written, and three table rows."""
    return items * (2 * spec.page_bytes + 4 * spec.index_dtype.itemsize + 2 * spec.id_dtype.itemsize)


def features(spec: CompactSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return frozenset({"page_bytes"} if spec.page_bytes else ())


def faults(
    spec: CompactSpec,
    tables: PageTables,
    *,
    retreat: int,
    sources: torch.Tensor,
    targets: torch.Tensor,
    buffer: torch.Tensor | None = None,
    side: Side = "high",
    fresh: int = 0,
    skip: int = 0,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: the holes that were found, where they are not what the host counts."""
    found = _pick(tables, retreat, side, fresh, skip)
    return {} if found is not None else {"count_mismatch": [int(tables.state[HOLE_TOP])]}


def compose(spec: CompactSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Copy pages with torch; unbind and bind them with the core operations."""
    uncounted = LaunchOptions(options.threads, options.programs, count=False)
    dtype = spec.index_dtype
    unbind = planners["unbind"](
        UnbindSpec(max_items=spec.max_pages, index_dtype=dtype, id_dtype=dtype), device, uncounted
    )
    bind = planners["bind"](BindSpec(max_items=spec.max_pages, index_dtype=dtype, id_dtype=dtype), device, uncounted)

    def run(
        tables: PageTables,
        *,
        retreat: int,
        sources: torch.Tensor,
        targets: torch.Tensor,
        buffer: torch.Tensor | None = None,
        side: Side = "high",
        fresh: int = 0,
        skip: int = 0,
    ) -> None:
        sources[:retreat] = TOMBSTONE
        targets[:retreat] = TOMBSTONE
        found = _pick(tables, retreat, side, fresh, skip)
        if found is None:
            if options.count:
                tables.state[COUNT_MISMATCH] += 1
            return
        live, holes, more = found
        moves, kept = live.shape[0], max(holes.shape[0] - live.shape[0], 0)
        if moves:
            to = torch.cat((holes[kept:].flip(0), more))[:moves]
            sources[:moves] = live
            targets[:moves] = to
            if buffer is not None:
                pages = buffer[: (tables.p2v.shape[0] - 1) * spec.page_bytes].view(-1, spec.page_bytes)
                pages[to.long()] = pages[live.long()]
            virtual = tables.p2v[live.long()]
            unbind(virtual, tables.v2p, tables.p2v, freed=torch.empty_like(virtual), state=None)
            free = bindable(virtual, to, tables.v2p, tables.p2v)
            bind(virtual.masked_fill(~free, HOLE), to, tables.v2p, tables.p2v, state=None)
        tables.hole_stack[:kept] = holes[:kept]
        tables.state[HOLE_TOP] = kept
        tables.state[WATERMARK] += fresh - retreat
        tables.state[SEAT] += retreat + skip if side == "low" else -(fresh + skip)
        tables.state[EPOCH] += 1

    return Composed("compact", device, run, unbind, bind)


def _pick(
    tables: PageTables, retreat: int, side: Side, fresh: int, skip: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return the band's live pages, ascending, the holes outside from the bottom, the fresh pages; None if refused."""
    words = tables.state.tolist()
    hole_top, watermark, seat = words[HOLE_TOP], words[WATERMARK], words[SEAT]
    num_physical = tables.p2v.shape[0] - 1
    if min(seat, watermark) < 0 or seat + watermark >= num_physical:
        return None
    if not (max(retreat - fresh, 0) <= hole_top <= watermark and retreat <= watermark):
        return None
    span = read_span(tables)
    if (skip and retreat != watermark) or skip + fresh > (span.above if side == "low" else span.below):
        return None
    low = side == "low"
    first, end = seat + 1, seat + watermark + 1  # of the span, then of what stays
    band = slice(first, first + retreat) if low else slice(end - retreat, end)
    first, end = (first + retreat, end) if low else (first, end - retreat)
    held = tables.p2v[band]
    stack = tables.hole_stack[:hole_top]
    live = (((held > SINK) & (held < tables.v2p.shape[0] - 1)).nonzero().flatten() + band.start).to(stack.dtype)
    inside = (stack >= first) & (stack < end)
    holes = stack[inside & (tables.p2v[stack.long().where(inside, SINK)] == TOMBSTONE)]
    begin = seat + watermark + skip + 1 if low else seat - skip
    step = 1 if low else -1
    more = torch.arange(begin, begin + step * fresh, step, dtype=stack.dtype, device=stack.device)
    missing = live.shape[0] - holes.shape[0]
    if missing > fresh or (fresh and missing != fresh):
        return None
    return live, holes, more


COMPACT: Operation[CompactSpec, Compact] = Operation(
    name="compact",
    level="extended",
    spec=CompactSpec,
    arguments=arguments,
    bytes_moved=bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
