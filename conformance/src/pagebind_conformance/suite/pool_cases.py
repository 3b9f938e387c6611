"""Faults that public projects have had in a pool, told by small examples: capacity, pending steps, owners, bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pagebind.errors import InvalidArgument, OutOfPages
from pagebind.pool import SubPool, UnifiedPool, page_pool

from pagebind_conformance.subject import Subject

GROUP = "pool"
LEVEL = "extended"

CUDA: Any = torch.cuda  # parts of it have no types
STALL = 200_000_000  # cycles, some 0.1 s
SIZES: dict[str, Any] = {"max_requests": 2, "max_context": 16, "max_bs": 2, "max_tokens": 32}


def ends(subject: Subject, data: int, low: dict[str, Any], high: dict[str, Any], **settings: Any) -> UnifiedPool:
    """Return a pool of `a` that grows up and `b` that grows down, with `data` bytes above their sinks."""
    kinds = [
        SubPool(**{"name": name, "page_size": 1, "grows": grows, **kind})
        for name, grows, kind in (("a", "up", low), ("b", "down", high))
    ]
    total = data + sum(kind.page_bytes for kind in kinds)
    where = {"backend": subject.backend, "device": str(subject.device)}
    return UnifiedPool(total, kinds, **{"buffer": False, **SIZES, **where, **settings})


def state_of(pool: UnifiedPool) -> Any:
    """Return what a call that is refused must leave as it was. Waits for the device."""
    return pool.digest(), pool.stats(), [[t.cpu().tolist() for t in tables[:5]] for tables in pool.tables.values()]


def unchanged(pool: UnifiedPool, refused: Callable[[], Any], error: type[Exception], told: str) -> None:
    """Fail unless a call is refused with that error, and nothing has changed."""
    before = state_of(pool)
    with pytest.raises(error, match=told):
        refused()
    assert state_of(pool) == before


def test_case_05_capacity_honours_the_move_gate_and_keeps_no_memo_across_it(subject: Subject) -> None:
    pool = ends(subject, 8 + 3 * 4, {"page_bytes": 4}, {"page_bytes": 4})  # 8 bytes are free, 3 pages of b are holes
    pool.free(pool.alloc(3, name="b"), name="b")
    assert pool.free_pages("a") == 5
    with pool.hold_moves():
        assert pool.free_pages("a") == 2
        unchanged(pool, lambda: pool.alloc(3, name="a"), OutOfPages, "3 pages of 'a' asked, 2 free")
        assert pool.compact(name="b") == 0
    assert pool.free_pages("a") == 5
    pool.alloc(5, name="a")
    assert pool.audit() == []


def test_case_14_a_step_prepared_while_another_is_pending_changes_nothing_of_it(subject: Subject) -> None:
    def steps(pending: bool) -> Any:
        pool = page_pool(16, 4, backend=subject.backend, device=str(subject.device), **SIZES)
        rows = [pool.open_row() for _ in range(2)]

        def ints(*values: int) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=subject.device)

        lengths = (9, 14)
        calls = [(ints(row.index), ints(0), ints(0, n)) for row, n in zip(rows, lengths, strict=True)]
        slots = [torch.full((n,), -7, dtype=torch.int32, device=subject.device) for n in lengths]
        tables = [torch.full((1, 4), -7, dtype=torch.int32, device=subject.device) for _ in lengths]
        lens = [ints(n) for n in lengths]
        read_table = pool.plan_read_table(4, fill="sink")
        pool.warmup()
        read_table.warmup()
        if pending and subject.device.type == "cuda":
            CUDA._sleep(STALL)
        for (row, prefix, indptr), out, table, length, n in zip(calls, slots, tables, lens, lengths, strict=True):
            pool.extend(row, prefix, indptr, slots=out, pages=pool.new_pages(0, n))
            read_table(pool.requests.table, row, length, pool.tables["pages"].v2p, out=table)
            if not pending and subject.device.type == "cuda":
                CUDA.synchronize(subject.device)
        return [t.tolist() for t in (*tables, *slots)], pool.digest()

    assert steps(pending=True) == steps(pending=False)


def test_case_15_a_late_release_leaves_the_row_of_its_new_owner(subject: Subject) -> None:
    limits = {**SIZES, "max_requests": 1}
    pool = page_pool(8, 1, backend=subject.backend, device=str(subject.device), **limits)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=subject.device)

    def enter() -> Any:
        row = pool.open_row()
        slots = torch.full((2,), -7, dtype=torch.int32, device=subject.device)
        pool.extend(ints(row.index), ints(0), ints(0, 2), slots=slots, pages=2)
        return row

    def leave(row: Any) -> None:
        pool.release([row], ints(row.index), ints(2), pages=2)

    first = enter()
    leave(first)
    second = enter()
    assert second.index == first.index
    before = pool.requests.table.cpu()
    unchanged(pool, lambda: leave(first), InvalidArgument, "was released before")
    assert torch.equal(pool.requests.table.cpu(), before)
    assert pool.audit() == []


def test_case_16_bytes_that_two_kinds_share_are_counted_once(subject: Subject) -> None:
    pool = ends(subject, 12, {"page_bytes": 2}, {"page_bytes": 2})
    assert [pool.free_pages(name) for name in "ab"] == [6, 6]
    assert pool.can_reserve({"a": 6})
    assert pool.can_reserve({"b": 6})
    assert pool.can_reserve({"a": 3, "b": 3})
    assert not pool.can_reserve({"a": 4, "b": 4})
    unchanged(pool, lambda: pool.reserve({"a": 4, "b": 4}), OutOfPages, "asked, 6 free")


def test_case_18_ranks_of_different_capacity_agree_by_a_cap(subject: Subject) -> None:
    digests = []
    for room in (100, 63):
        pool = ends(subject, 4 * room, {"page_bytes": 2, "max_pages": 63}, {"page_bytes": 2})
        assert pool.free_pages("a") == 63
        ids = pool.alloc(60, name="a")
        pool.free(ids[::3].clone(), name="a")
        unchanged(pool, partial(pool.alloc, 24, name="a"), OutOfPages, "24 pages of 'a' asked, 23 free")
        pool.alloc(23, name="a")
        pool.free(ids[1::3].clone(), name="a")
        assert pool.compact(7, name="a") == 7
        digests.append([table.cpu().tolist()[:60] for table in pool.tables["a"][:2]])
        assert pool.audit() == []
    assert digests[0] == digests[1]


def test_case_19_bytes_recycled_to_another_kind_are_cleared_and_the_sink_stays_finite(subject: Subject) -> None:
    kinds: list[dict[str, Any]] = [{"page_bytes": 128}, {"page_bytes": 64, "page_size": 4, "zero_on_alloc": True}]
    pool = ends(subject, 320, *kinds, buffer=True, rows_of="b")
    states = pool.view("a", torch.bfloat16, (64,))
    keys = pool.view("b", torch.bfloat16, (32,))
    keys[0] = 0.0
    ids = pool.alloc(2, name="a")
    states[pool.tables["a"].v2p[ids.long()].long()] = float("nan")
    pool.free(ids, name="a")
    ids = pool.alloc(pool.free_pages("b"), name="b")  # the state's bytes among them
    assert keys[pool.tables["b"].v2p[ids.long()].long()].view(torch.int16).count_nonzero() == 0
    lease = pool.reserve({"b": 0})
    assert pool.alloc(2, name="b", on_lease=True).tolist() == [0, 0]
    lease.settle({"b": 0})
    assert bool(keys[0].isfinite().all())
