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


class Compacted(NamedTuple):
    """What a compaction left."""

    pool: SubPool
    sources: list[int]  # [capacity]
    targets: list[int]  # [capacity]
    buffer: bytes | None


def marker(owner: int, page_bytes: int) -> bytes:
    """Return the bytes of a page of `owner`: a virtual page, or a negative number for what nobody owns."""
    return Random(owner).randbytes(page_bytes)


def marked(pool: SubPool, page_bytes: int) -> bytes | None:
    """Return the bytes of a sub-pool whose pages carry the markers of their virtual pages; None where pages have none."""
    if not page_bytes:
        return None
    owners = [v if v > 0 else ~p for p, v in enumerate(pool.p2v[:-1])]
    return b"".join(marker(owner, page_bytes) for owner in owners)


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
) -> tuple[dict[str, Any], dict[str, Any], SubPool]:
    """Return the arguments of a call, what each must hold after it, and the sub-pool then.

    `capacity` is the length of sources and targets, left out the retreat; the buffer has `past` bytes behind its pages.
    """
    capacity = retreat if capacity is None else capacity
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    arguments: dict[str, Any] = {"tables": placed, "retreat": retreat, "buffer": None}
    for name in ("sources", "targets"):
        arguments[name] = Guarded.poisoned((capacity,), spec.id_dtype, subject.device, how.layout(name))
    before = marked(pool, spec.page_bytes)
    if before is not None:
        before += bytes([POISON[torch.uint8]]) * past
        arguments["buffer"] = Guarded(list(before), torch.uint8, subject.device, how.layout("buffer"))
    unwritten = [POISON[spec.id_dtype]] * capacity
    after, sources, targets, data, counters = oracle.compact(
        pool, retreat, unwritten, unwritten, before, spec.page_bytes
    )
    expected = placed.expected(pool, after, counters if how.checks != "off" else {})
    if after.watermark < pool.watermark:
        expected["hole_stack"] = Unspecified(_holes(after, pool.hole_top))
    expected |= {"sources": sources, "targets": targets, "buffer": list(data) if data is not None else None}
    return arguments, expected, after


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
) -> Compacted:
    """Compact a sub-pool whose pages are `marked` before; afterwards every page must carry its owner's bytes."""
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    arguments, expected, after = compact_case(
        subject, spec, pool, retreat, capacity=capacity, past=past, placed=placed, how=how
    )
    hold(subject, COMPACT, spec, arguments, expected, how)
    left = arguments["buffer"]
    data = bytes(left.values()) if left is not None else None
    if data is not None:
        follow(after, data, spec.page_bytes)
    return Compacted(as_left(after, placed), arguments["sources"].values(), arguments["targets"].values(), data)


def follow(pool: SubPool, data: bytes, page_bytes: int) -> None:
    """Hold that the page of every virtual page carries its marker."""
    for v, p in enumerate(pool.v2p[:-1]):
        if v > 0 and p > 0:
            assert data[p * page_bytes : (p + 1) * page_bytes] == marker(v, page_bytes), f"page {p} is not that of {v}"


def _holes(after: SubPool, old_top: int) -> Callable[[list[int]], str | None]:
    top, wanted = after.hole_top, after.hole_stack

    def check(got: list[int]) -> str | None:
        if got[:top] != wanted[:top]:
            return f"below its top {top} it holds {got[:top]}, expected {wanted[:top]}"
        if got[old_top:] != wanted[old_top:]:
            return f"above the old top {old_top} it holds {got[old_top:]}, expected {wanted[old_top:]}"
        return None

    return check
