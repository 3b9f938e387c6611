"""Backends with one fault each, made from the outside one: the suite must fail every one of them.

Faults of real backends are patches of their sources, in the package `faults`. Here is what no patch of a line shows: a
call that is made with something else, an output that is spoiled afterwards, a memo; and faults of composed forms, in
plain Python. All run in mode cpu. `faulty:NAME` is a backend. Each fault is a function `fault(launch, spec, *call)`
that stands in for a launch, and is listed with the case of the suite that is meant to find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import outside
import torch
from pagebind import Backend, LaunchOptions, Operation
from pagebind.ops import OPERATIONS
from pagebind.words import (
    BASE,
    COUNTERS,
    DOWN,
    FLOAT,
    GROWTH,
    PAGE_BYTES,
    REACH,
    SEAT,
    SINK,
    TOMBSTONE,
    UP,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
)

FAULTS: dict[str, Fault] = {}


@dataclass(frozen=True)
class Fault:
    """One fault, and the case that finds it."""

    operation: Operation[Any, Any]
    run: Callable[..., None]
    case: str


class Damaged:
    """A launch with a fault around it; `seen` is what a fault keeps from call to call."""

    def __init__(self, launch: Any, spec: Any, fault: Callable[..., None]) -> None:
        self.launch, self.spec, self.fault = launch, spec, fault
        self.seen: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.fault(self, *args, **kwargs)

    def warmup(self) -> None:
        self.launch.warmup()


def found_by(
    operation: str, test: str, module: str | None = None, compiles: bool = False
) -> Callable[[Callable[..., None]], Backend]:
    """Make a backend of a fault, and note the case that is meant to find it, in the operation's module or another."""

    def make(run: Callable[..., None]) -> Backend:
        fault = Fault(OPERATIONS[operation], run, f"{module or operation}.py::{test}")
        FAULTS[run.__name__] = fault
        record = replace(
            outside.BACKEND,
            name=run.__name__,
            planners={**outside.PLANNERS, operation: partial(damaged, fault)},
            features=outside.FEATURES | {"shared", "borrowed", "emits", "page_bytes"},
        )
        return replace(record, compile_count=lambda: len(COMPILED)) if compiles else record

    return make


def damaged(fault: Fault, spec: Any, device: torch.device, options: LaunchOptions) -> Damaged:
    compose = fault.operation.compose
    if compose is None:
        return Damaged(outside.PLANNERS[fault.operation.name](spec, device, options), spec, fault.run)
    return Damaged(compose(spec, device, outside.PLANNERS, options), spec, fault.run)


def counted(state: torch.Tensor | None, name: str, by: int) -> None:
    if state is not None:
        state[COUNTERS[name]] += by


# ---- read_table ----


def last_columns(self: Damaged, table: Any, lens: Any, out: Any, delta: int) -> list[int]:
    """Return the column behind each lane's extent, for page entries."""
    ps = self.spec.page_size
    most = min(table.shape[1] * (1 if self.spec.form == "token" else ps), out.shape[1] * ps)
    return [-(-min(max(n + delta, 0), most) // ps) for n in lens.tolist()]


@found_by("read_table", "test_a_page_that_is_begun_has_its_entry")
def floor_instead_of_ceil(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens // self.spec.page_size * self.spec.page_size, v2p, out=out, **rest)


@found_by("read_table", "test_case_01_a_hole_reads_page_0_and_not_the_cell_before_the_table")
def hole_read_before_the_table(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens, v2p, out=out, **rest)
    before = v2p.as_strided((1,), (1,), v2p.storage_offset() - 1)
    unit = self.spec.page_size if self.spec.form == "token" else 1
    for b, r in enumerate(rows.tolist()):
        holes = table[r, ::unit][: out.shape[1]] == -1
        out[b, : holes.shape[0]][holes] = before[0]


@found_by("read_table", "test_case_02_a_row_longer_than_the_table_stays_in_its_row")
def clip_not_counted(self, table, rows, lens, v2p, *, out, state=None, **rest):
    before = None if state is None else state[COUNTERS["clipped"]].clone()
    self.launch(table, rows, lens, v2p, out=out, state=state, **rest)
    if state is not None:
        state[COUNTERS["clipped"]] = before


@found_by("read_table", "test_case_22_empty_rows_stay_untouched_between_others")
def one_cell_past_the_extent(self, table, rows, lens, v2p, *, out, seq_len_delta=0, **rest):
    self.launch(table, rows, lens, v2p, out=out, seq_len_delta=seq_len_delta, **rest)
    for b, end in enumerate(last_columns(self, table, lens, out, seq_len_delta)):
        out.as_strided((1,), (1,), out.storage_offset() + b * out.stride(0) + end)[0] = 0


@found_by("read_table", "test_bad_lengths_rows_and_ids_are_clipped_sunk_and_counted")
def lengths_clipped_in_place(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens, v2p, out=out, **rest)
    lens.clamp_(min=0)


@found_by("read_table", "test_case_20_two_groups_of_one_shape_keep_their_own_tables")
def memo_by_shape(self, table, rows, lens, v2p, *, out, **rest):
    key = (table.shape, rows.shape, v2p.shape, out.shape)
    v2p = self.seen.setdefault(key, v2p.clone())
    self.launch(table, rows, lens, v2p, out=out, **rest)


@found_by("read_table", "test_a_length_delta_widens_every_lane_before_clipping")
def delta_after_clipping(self, table, rows, lens, v2p, *, out, seq_len_delta=0, **rest):
    self.launch(table, rows, lens.clamp(min=0), v2p, out=out, seq_len_delta=max(seq_len_delta, 0), **rest)


COMPILED: set[Any] = set()


@found_by("read_table", "test_case_13_no_batch_width_or_stride_compiles_after_the_warm_up", "compiling", compiles=True)
def compiles_while_serving(self, table, rows, lens, v2p, *, out, **rest):
    COMPILED.add((out.stride(0) % 16 == 0, rows.shape[0]))
    self.launch(table, rows, lens, v2p, out=out, **rest)


# ---- bind, unbind, translate ----


@found_by("bind", "test_what_is_bound_the_sink_and_ids_outside_are_dropped_and_counted")
def sink_bound(self, virtual, physical, v2p, p2v, **rest):
    self.launch(virtual, physical, v2p, p2v, **rest)
    for v, p in zip(virtual.tolist(), physical.tolist(), strict=True):
        if v == 0 and 0 < p < p2v.shape[0] - 1:
            v2p[0] = p


@found_by("bind", "test_of_lanes_that_repeat_a_page_at_most_one_is_served")
def every_lane_of_a_repeat_served(self, virtual, physical, v2p, p2v, **rest):
    free = (v2p == TOMBSTONE).tolist()
    self.launch(virtual, physical, v2p, p2v, **rest)
    for v, p in zip(virtual.tolist(), physical.tolist(), strict=True):
        if 0 < v < v2p.shape[0] - 1 and 0 < p < p2v.shape[0] - 1 and free[v]:
            v2p[v], p2v[p] = p, v


@found_by("unbind", "test_case_12_the_same_id_over_two_calls_is_dropped_and_counted")
def tombstone_used_as_an_index(self, ids, v2p, p2v, *, freed, **rest):
    for v in ids.tolist():
        if 0 < v < v2p.shape[0] - 1 and v2p[v] == TOMBSTONE:
            p2v.as_strided((1,), (1,), p2v.storage_offset() - 1)[0] = TOMBSTONE
    self.launch(ids, v2p, p2v, freed=freed, **rest)


@found_by("translate", "test_case_08_a_padded_slot_writes_the_sink_and_not_the_last_slot")
def pad_slot_passed_on(self, ids, v2p, *, out, **rest):
    before = ids.clone()
    self.launch(ids, v2p, out=out, **rest)
    out[before == -1] = -1


@found_by("translate", "test_case_03_a_virtual_id_follows_its_page_when_it_moves")
def virtual_used_as_physical(self, ids, v2p, *, out, **rest):
    self.launch(ids, v2p, out=out, **rest)
    out.copy_(ids.clamp(min=0))


# ---- chains: the call runs on a chain that is read wrongly, and leaves its own block as it comes out of that ----


def misread(self: Damaged, tables: PageTables, change: Callable[[torch.Tensor, int], None], **named: Any) -> None:
    """Call with the chain as `change(chain, place)` makes it; what only the maker writes stays."""
    if tables.chain is None:
        self.launch(tables, **named)
        return
    chain = tables.chain.clone()
    change(chain, tables.place)
    kept = tables.state[[REACH, GROWTH, BASE, PAGE_BYTES]].clone()
    self.launch(tables._replace(chain=chain, state=chain[tables.place]), **named)
    tables.state.copy_(chain[tables.place])
    tables.state[[REACH, GROWTH, BASE, PAGE_BYTES]] = kept


@found_by("alloc", "test_a_float_grows_up_while_there_is_room_above_and_then_down", "span")
def float_grows_down_first(self, tables, **named):
    def change(chain, place):
        if chain[place, GROWTH] == FLOAT:
            chain[place, GROWTH] = DOWN

    misread(self, tables, change, **named)


@found_by("alloc", "test_an_end_down_takes_the_next_lower_page", "span")
def every_end_grows_up(self, tables, **named):
    def change(chain, place):
        chain[place, GROWTH] = UP

    misread(self, tables, change, **named)


@found_by("alloc", "test_an_end_up_begins_above_the_sinks_of_all", "span")
def seat_of_an_end_up_ignored(self, tables, **named):
    def change(chain, place):
        if chain[place, GROWTH] == UP:
            chain[place, SEAT] = 0

    misread(self, tables, change, **named)


@found_by("alloc", "test_two_ends_meet_to_the_last_byte", "span")
def frontier_one_page_early(self, tables, **named):
    def change(chain, place):
        for j in range(place + 1, chain.shape[0]):
            if chain[j, WATERMARK] > 0:
                chain[j, SEAT] -= 1

    misread(self, tables, change, **named)


@found_by("alloc", "test_two_ends_meet_to_the_last_byte", "span")
def frontier_one_page_late(self, tables, **named):
    def change(chain, place):
        for j in range(place):
            if chain[j, WATERMARK] > 0:
                chain[j, SEAT] -= 1

    misread(self, tables, change, **named)


@found_by("alloc", "test_a_float_meets_both_ends", "span")
def neighbours_page_size_ignored(self, tables, **named):
    def change(chain, place):
        chain[:, PAGE_BYTES] = chain[place, PAGE_BYTES].clone()

    misread(self, tables, change, **named)


@found_by("alloc", "test_the_reach_of_an_empty_end_is_a_bound", "span")
def reach_of_an_empty_end_ignored(self, tables, **named):
    def change(chain, place):
        chain[chain[:, WATERMARK] == 0, REACH] = 0

    misread(self, tables, change, **named)


@found_by("alloc", "test_an_empty_neighbour_is_no_bound", "span")
def an_empty_neighbour_bounds(self, tables, **named):
    def change(chain, place):
        empty = chain[:, WATERMARK] == 0
        empty[place] = False
        chain[empty, WATERMARK] = 1

    misread(self, tables, change, **named)


@found_by("alloc", "test_an_empty_float_sits_in_the_middle_wherever_it_sat_before", "span")
def an_empty_float_stays_where_it_sat(self, tables, **named):
    def change(chain, place):
        if chain[place, GROWTH] == FLOAT and chain[place, WATERMARK] == 0 and 0 <= chain[place, SEAT] < 10:
            chain[place, GROWTH] = UP

    misread(self, tables, change, **named)


@found_by("alloc", "test_lanes_past_a_frontier_starve_and_touch_the_sink_alone", "span")
def starved_lanes_not_counted_in_a_chain(self, tables, **named):
    before = tables.state[COUNTERS["starved"]].clone()
    self.launch(tables, **named)
    if tables.chain is not None:
        tables.state[COUNTERS["starved"]] = before


@found_by("alloc", "test_a_spoiled_word_of_a_neighbour_leads_nowhere", "span")
def a_neighbours_counters_written(self, tables, **named):
    self.launch(tables, **named)
    if tables.chain is not None:
        tables.chain[tables.place - 1, COUNTERS["starved"]] += 1


# ---- borrowed ids ----


@found_by("alloc", "test_lanes_with_the_sink_or_a_hole_ask_for_nothing")
def holes_among_borrowed_ids_take_pages_along(self, tables, *, ids, pages):
    asks = ids > SINK
    given = ids.clone()
    if self.spec.borrowed and not bool(asks.all()):
        free = ((tables.v2p[1:-1] == TOMBSTONE).nonzero().flatten() + 1).tolist()
        given[~asks] = torch.tensor([v for v in free if v not in ids.tolist()][: int((~asks).sum())], dtype=ids.dtype)
        self.launch(tables, ids=given, pages=pages)
        pages[~asks] = SINK
        return
    self.launch(tables, ids=ids, pages=pages)


@found_by("alloc", "test_case_04_a_borrowers_v2p_is_sized_by_the_owners_ids")
def borrowed_ids_bounded_by_the_pages(self, tables, *, ids, pages):
    if not self.spec.borrowed:
        self.launch(tables, ids=ids, pages=pages)
        return
    self.launch(tables, ids=ids.masked_fill(ids >= tables.p2v.shape[0] - 1, -1), pages=pages)


@found_by("alloc", "test_the_virtual_stack_of_a_borrower_is_no_bound_and_stays")
def virtual_top_moved_by_a_borrower(self, tables, *, ids, pages):
    self.launch(tables, ids=ids, pages=pages)
    if self.spec.borrowed:
        tables.state[VIRTUAL_TOP] -= int((pages > SINK).sum())


@found_by("free", "test_a_borrower_pushes_pages_and_no_ids")
def borrowed_id_pushed(self, ids, tables, *, freed, **rest):
    self.launch(ids, tables, freed=freed, **rest)
    for i, v in enumerate(ids.tolist()):
        if self.spec.borrowed and freed[i] > SINK:
            tables.virtual_stack[tables.state[VIRTUAL_TOP]] = v
            tables.state[VIRTUAL_TOP] += 1


@found_by("free", "test_a_borrowed_id_without_a_page_here_is_a_hole")
def a_borrowed_id_without_a_page_counted(self, ids, tables, *, freed, **rest):
    inside = (ids > SINK) & (ids < tables.v2p.shape[0] - 1)
    gone = inside & (tables.v2p[ids.long().where(inside, SINK)] < SINK)
    self.launch(ids, tables, freed=freed, **rest)
    if self.spec.borrowed:
        counted(tables.state, "double_free", int(gone.sum()))


@found_by("free", "test_the_hosts_page_count_is_held_against_the_lanes_served")
def the_count_of_lanes_instead_of_those_served(self, ids, tables, *, freed, pages=None):
    self.launch(ids, tables, freed=freed)
    counted(tables.state, "count_mismatch", int(pages is not None and pages != ids.shape[0]))


# ---- what an extension tells ----


@found_by("extend", "test_pages_that_have_no_room_are_not_told_and_room_past_them_is_padded")
def new_ids_not_padded(self, *given, slots, new_ids=None, **rest):
    before = None if new_ids is None else new_ids.clone()
    self.launch(*given, slots=slots, new_ids=new_ids, **rest)
    if before is not None:
        new_ids[new_ids == TOMBSTONE] = before[new_ids == TOMBSTONE]


@found_by("extend", "test_pages_that_starve_or_are_bound_by_hand_are_told_as_the_sink")
def starved_pages_told_as_holes(self, *given, slots, new_ids=None, **rest):
    self.launch(*given, slots=slots, new_ids=new_ids, **rest)
    if new_ids is not None:
        new_ids[new_ids == SINK] = TOMBSTONE


@found_by("extend", "test_tokens_without_an_id_are_told_as_holes")
def tokens_without_an_id_told_as_the_sink(self, *given, slots, token_ids=None, **rest):
    self.launch(*given, slots=slots, token_ids=token_ids, **rest)
    if token_ids is not None:
        token_ids[token_ids == TOMBSTONE] = SINK


# ---- evict ----


@found_by("evict", "test_a_head_goes_up_to_the_page_that_holds_a_kept_token")
def first_page_not_moved(self, *given, first, **rest):
    before = first.clone()
    self.launch(*given, first=first, **rest)
    first.copy_(before)


@found_by("evict", "test_a_tail_goes_from_the_first_page_without_a_kept_token")
def a_tail_takes_the_page_of_a_kept_token(self, table, rows, starts, lens, tables, **rest):
    ps = self.spec.page_size
    self.launch(table, rows, starts // ps * ps if self.spec.part == "tail" else starts, lens, tables, **rest)


@found_by("evict", "test_ids_without_a_page_here_are_holes_and_no_fault")
def an_id_without_a_page_is_a_fault(self, *given, first, freed, **rest):
    self.launch(*given, first=first, freed=freed, **rest)
    counted(given[4].state, "double_free", 1)


@found_by("evict", "test_the_hosts_page_count_is_held_against_those_that_came_back")
def pages_asked_for_counted_instead_of_those_that_came_back(self, *given, first, freed, pages=None):
    self.launch(*given, first=first, freed=freed, pages=None)
    counted(given[4].state, "count_mismatch", int(pages is not None and pages != freed.shape[0]))


# ---- compact ----


@found_by("compact", "test_the_low_end_moves_its_live_pages_ascending_too")
def low_band_pairs_descending(self, tables, *, side="high", sources, targets, **rest):
    held, there = tables.p2v.clone(), tables.v2p.clone()
    self.launch(tables, side=side, sources=sources, targets=targets, **rest)
    moved = sources > SINK
    if side == "low" and bool(moved.any()):
        sources[moved] = sources[moved].flip(0)
        virtual = held[sources[moved].long()]
        there[virtual.long()] = targets[moved].to(there.dtype)
        tables.v2p.copy_(there)
        tables.p2v[targets[moved].long()] = virtual


@found_by("compact", "test_a_whole_span_is_seated_anew_away_from_where_it_was")
def skip_ignored(self, tables, *, skip=0, **rest):
    self.launch(tables, skip=0, **rest)


@found_by("compact", "test_the_low_end_moves_its_live_pages_ascending_too")
def seat_stays_at_the_low_end(self, tables, **rest):
    seat = tables.state[SEAT].clone()
    self.launch(tables, **rest)
    tables.state[SEAT] = seat


@found_by("compact", "test_retreats_in_a_chain_stop_at_its_neighbours")
def neighbours_ignored(self, tables, **rest):
    alone = tables._replace(chain=None, place=0)
    self.launch(alone, **rest)
