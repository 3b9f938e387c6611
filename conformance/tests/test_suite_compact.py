"""compact: the oracle by literal values, and backends that compact wrongly, each caught by the case meant for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import outside
import pytest
import torch
from pagebind import LaunchOptions
from pagebind.operation import NoWarmup
from pagebind.ops import COMPACT, CompactSpec
from pagebind.words import HOLE_TOP, PageTables

from pagebind_conformance import oracle
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite import compact as suite

CPU = torch.device("cpu")
BYTES = CompactSpec(max_pages=512, page_bytes=16)
PLAIN = CompactSpec(max_pages=512)

# Pages 1, 3, 5, 7, 8 are those of ids 4, 2, 6, 1, 3; the hole stack is 2, 4, 6 from the bottom.
PICTURE = SubPool(
    v2p=[0, 7, 3, 8, 1, -1, 5, -1],
    p2v=[0, 4, -1, 2, -1, 6, -1, 1, 3, -1, -1],
    virtual_stack=[5, 9, 9, 9, 9, 9, 9],
    hole_stack=[2, 4, 6, 9, 9, 9, 9, 9, 9, 9],
    virtual_top=1,
    hole_top=3,
    watermark=8,
    epoch=20,
)


def test_the_oracle_draws_the_picture_of_the_contract() -> None:
    after, sources, targets, buffer, counters = oracle.compact(PICTURE, 3, [9] * 4, [9] * 4, b"-A.B.C.DE.~past", 1)
    assert after.v2p == [0, 4, 3, 2, 1, -1, 5, -1]
    assert after.p2v == [0, 4, 3, 2, 1, 6, -1, -1, -1, -1, -1]
    assert (after.hole_top, after.watermark, after.epoch) == (0, 5, 21)
    assert (after.virtual_stack, after.virtual_top) == (PICTURE.virtual_stack, 1)
    assert (sources, targets) == ([7, 8, -1, 9], [4, 2, -1, 9])
    assert buffer == b"-AEBDC.DE.~past"
    assert counters == {"count_mismatch": 0}


def test_the_oracle_keeps_the_order_of_holes_that_nothing_moves_to() -> None:
    pool = PICTURE._replace(hole_stack=[4, 2, 6, *PICTURE.hole_stack[3:]])
    after, sources, targets, _, _ = oracle.compact(pool, 1, [9], [9])
    assert (sources, targets) == ([8], [6])
    assert (after.hole_stack[:2], after.hole_top, after.watermark) == ([4, 2], 2, 7)


def test_the_oracle_retreats_from_the_low_end_too() -> None:
    after, sources, targets, buffer, _ = oracle.compact(PICTURE, 1, [9] * 2, [9] * 2, b"-A.B.C.DE.", 1, side="low")
    assert (sources, targets, buffer) == ([1, 9], [6, 9], b"-A.B.CADE.")
    assert (after.hole_stack[:2], after.hole_top) == ([2, 4], 2)
    assert (after.seat, after.watermark) == (1, 7)


def test_the_oracle_takes_fresh_pages_past_the_holes() -> None:
    pool = PICTURE._replace(p2v=[*PICTURE.p2v[:-1], -1, -1])  # two pages above the span
    after, sources, targets, _, _ = oracle.compact(pool, 5, [9] * 5, [9] * 5, side="low", fresh=2)
    assert (sources, targets) == ([1, 3, 5, -1, -1], [6, 9, 10, -1, -1])
    assert (after.seat, after.watermark, after.hole_top) == (5, 5, 0)
    after, sources, targets, _, _ = oracle.compact(pool._replace(hole_top=0), 8, [9] * 8, [9] * 8, side="low", fresh=5)
    assert (after, sources) == (pool._replace(hole_top=0), [-1] * 8)


@pytest.mark.parametrize(
    ("pool", "retreat"),
    [
        (PICTURE, 4),
        (PICTURE._replace(watermark=2), 3),
        (PICTURE._replace(v2p=[0, 7, 3, 8, 1, 6, 5, -1], p2v=[0, 4, -1, 2, -1, 6, 5, 1, 3, -1, -1]), 3),
    ],
    ids=["holes", "watermark", "bound-by-hand"],
)
def test_the_oracle_refuses_what_has_no_room(pool: SubPool, retreat: int) -> None:
    after, sources, targets, buffer, counters = oracle.compact(pool, retreat, [9] * 5, [9] * 5, bytes(11), 1)
    assert (after, buffer, counters) == (pool, bytes(11), {"count_mismatch": 1})
    assert sources == targets == [-1] * retreat + [9] * (5 - retreat)


def test_the_oracle_does_nothing_for_a_retreat_of_no_page() -> None:
    assert oracle.compact(PICTURE, 0, [9], [9]) == (PICTURE, [9], [9], None, {"count_mismatch": 0})


Fault = Callable[..., None]


def faulty(fault: Fault) -> Subject:
    """Return the outside backend with a compact of its own: a right one, then `fault`, which knows what was before."""
    right = COMPACT.compose

    def plan(spec: CompactSpec, device: torch.device, options: LaunchOptions) -> NoWarmup:
        assert right is not None
        launch = right(spec, device, outside.PLANNERS, options)

        def run(tables: PageTables, **named: Any) -> None:
            before = PageTables(*(tensor.clone() for tensor in tables[:5]))
            bytes_before = named["buffer"].clone() if named["buffer"] is not None else None
            launch(tables, **named)
            fault(tables, before, bytes_before, **named)

        return NoWarmup(run)

    planners: dict[str, Any] = {**outside.PLANNERS, "compact": plan}
    backend = replace(outside.BACKEND, planners=planners, features=outside.FEATURES | {"page_bytes"})
    return Subject(backend, CPU, composed=True)  # as alloc and free are, which the cases use


def stack_reversed(tables: PageTables, *_: Any, **__: Any) -> None:
    top = int(tables.state[HOLE_TOP])
    tables.hole_stack[:top] = tables.hole_stack[:top].flip(0)


def bytes_left_behind(tables: PageTables, before: PageTables, bytes_before: torch.Tensor, **named: Any) -> None:
    named["buffer"].copy_(bytes_before)


def bytes_of_the_page_before(tables: PageTables, before: PageTables, bytes_before: torch.Tensor, **named: Any) -> None:
    pages, old = (buffer[: (len(tables.p2v) - 1) * 16].view(-1, 16) for buffer in (named["buffer"], bytes_before))
    moved = named["targets"] > 0
    pages[named["targets"][moved].long()] = old[named["sources"][moved].long() - 1]


def source_still_bound(tables: PageTables, before: PageTables, *_: Any, **named: Any) -> None:
    moved = named["sources"][named["sources"] > 0].long()
    tables.p2v[moved] = before.p2v[moved]


def past_the_retreat(tables: PageTables, *_: Any, **named: Any) -> None:
    named["sources"][named["retreat"] :] = -1


def uncounted(tables: PageTables, before: PageTables, *_: Any, **__: Any) -> None:
    tables.state[8:16] = before.state[8:16]


def test_the_right_one_passes_what_the_faulty_ones_fail() -> None:
    for _, case in CAUGHT:
        case(faulty(lambda *_, **__: None))


CAUGHT: list[tuple[Fault, Callable[[Subject], None]]] = [
    (stack_reversed, lambda subject: suite.test_the_other_holes_keep_their_order(subject, PLAIN)),
    (
        bytes_left_behind,
        lambda subject: suite.test_case_03_ids_read_their_new_pages_after_the_first_move(subject, BYTES),
    ),
    (bytes_of_the_page_before, lambda subject: suite.test_pages_that_are_all_in_the_band_all_move(subject, BYTES, 31)),
    (
        source_still_bound,
        lambda subject: suite.test_case_03_ids_read_their_new_pages_after_the_first_move(subject, PLAIN),
    ),
    (past_the_retreat, lambda subject: suite.test_memory_around_the_tensors_stays_as_it_was(subject, PLAIN)),
    (
        uncounted,
        lambda subject: suite.test_a_refused_retreat_is_counted_and_changes_nothing(
            subject, PLAIN, "bound-by-hand-in-the-band"
        ),
    ),
]


@pytest.mark.parametrize(("fault", "case"), CAUGHT, ids=[fault.__name__ for fault, _ in CAUGHT])
def test_a_backend_that_compacts_wrongly_is_caught(fault: Fault, case: Callable[[Subject], None]) -> None:
    with pytest.raises(AssertionError):
        case(faulty(fault))
