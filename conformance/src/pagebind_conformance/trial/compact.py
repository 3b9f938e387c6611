"""A compaction on lists, held against the oracle; every page carries bytes that tell whose it is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from pagebind.ops import COMPACT, CompactSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded, Unspecified
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, hold
from pagebind_conformance.trial.free import as_left

NOBODY = 2**40
"""Markers of pages that no virtual page owns begin here, past any id."""


class Compacted(NamedTuple):
    """What a compaction left."""

    pool: SubPool
    sources: list[int]  # [capacity]
    targets: list[int]  # [capacity]
    buffer: bytes | None


def compact(
    subject: Subject,
    spec: CompactSpec,
    pool: SubPool,
    retreat: int,
    *,
    capacity: int | None = None,
    past: int = 0,
    placed: GuardedPool | None = None,
    how: How = USUAL,
    **retreating: Any,
) -> Compacted:
    """Compact a sub-pool whose pages are `marked` before; afterwards every page must carry its owner's bytes.

    `retreating` are side, fresh and skip, left out as the operation has them.
    """
    arguments = compact_case(
        subject, spec, pool, retreat, capacity=capacity, past=past, placed=placed, how=how, **retreating
    )
    expected, after = expect(spec, pool, arguments, how)
    hold(subject, COMPACT, spec, arguments, expected, how)
    data = _bytes(arguments["buffer"])
    if data is not None:
        follow(after, data, spec.page_bytes)
    left = as_left(after, arguments["tables"])
    return Compacted(left, arguments["sources"].values(), arguments["targets"].values(), data)


def compact_case(
    subject: Subject,
    spec: CompactSpec,
    pool: SubPool,
    retreat: int,
    *,
    capacity: int | None = None,
    past: int = 0,
    placed: GuardedPool | None = None,
    how: How = USUAL,
    **retreating: Any,
) -> dict[str, Any]:
    """Return the arguments of a call on a `marked` sub-pool.

    `capacity` is the length of sources and targets, left out the retreat; the buffer has `past` bytes behind its pages.
    """
    data = marked(pool, spec.page_bytes)
    if data is not None:
        data += bytes([POISON[torch.uint8]]) * past
    arguments: dict[str, Any] = {
        "tables": placed or GuardedPool(pool, spec.index_dtype, subject.device, how),
        "retreat": retreat,
        "buffer": None if data is None else Guarded(data, torch.uint8, subject.device, how.layout("buffer")),
        **retreating,
    }
    for name in ("sources", "targets"):
        shape = (retreat if capacity is None else capacity,)
        arguments[name] = Guarded.poisoned(shape, spec.id_dtype, subject.device, how.layout(name))
    return arguments


def expect(
    spec: CompactSpec, pool: SubPool, arguments: dict[str, Any], how: How = USUAL
) -> tuple[dict[str, Any], SubPool]:
    """Return what each tensor of a call must hold after it, and the sub-pool then; `pool` is what it is before.

    What a hole stack holds from its new top to its old one is left open.
    """
    after, sources, targets, data, counters = oracle.compact(
        pool,
        arguments["retreat"],
        arguments["sources"].before_values(),
        arguments["targets"].before_values(),
        _bytes(arguments["buffer"], before=True),
        spec.page_bytes,
        **{name: arguments[name] for name in ("side", "fresh", "skip") if name in arguments},
    )
    expected = arguments["tables"].expected(pool, after, counters if how.checks != "off" else {})
    if after.hole_top < pool.hole_top:
        expected["hole_stack"] = Unspecified(_holes(after, pool.hole_top))
    return expected | {"sources": sources, "targets": targets, "buffer": data}, after


def marker(owner: int, page_bytes: int) -> bytes:
    """Return the bytes of a page of `owner`."""
    return Random(owner).randbytes(page_bytes)


def marked(pool: SubPool, page_bytes: int) -> bytes | None:
    """Return the bytes of a sub-pool whose pages carry their virtual pages' markers; None where pages have no bytes."""
    if not page_bytes:
        return None
    owners = [v if v > 0 else NOBODY + p for p, v in enumerate(pool.p2v[:-1])]
    return b"".join(marker(owner, page_bytes) for owner in owners)


def follow(pool: SubPool, data: bytes, page_bytes: int) -> None:
    """Hold that the page of every bound virtual page carries its marker."""
    for v, p in enumerate(pool.v2p[:-1]):
        if v > 0 and p > 0:
            page = data[p * page_bytes : (p + 1) * page_bytes]
            assert page == marker(v, page_bytes), f"page {p} does not hold the bytes of id {v}"


def _bytes(buffer: Guarded | None, before: bool = False) -> bytes | None:
    if buffer is None:
        return None
    return buffer.raw(before=before)


def _holes(after: SubPool, old_top: int) -> Callable[[list[int]], str | None]:
    top, wanted = after.hole_top, after.hole_stack

    def check(got: list[int]) -> str | None:
        if got[:top] != wanted[:top]:
            return f"below its top {top} it holds {got[:top]}, expected {wanted[:top]}"
        if got[old_top:] != wanted[old_top:]:
            return f"above the old top {old_top} it holds {got[old_top:]}, expected {wanted[old_top:]}"
        return None

    return check
