"""Backends with one fault each, made from the outside one: the suite must fail every one of them.

`faulty:NAME` is a backend. Each fault is a function `fault(launch, spec, *call)` that stands in for a launch, and is
listed with the case of the suite that is meant to find it.
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
from pagebind.words import COUNTERS, HOLE_TOP, TOMBSTONE, WATERMARK

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


def found_by(operation: str, test: str, module: str | None = None) -> Callable[[Callable[..., None]], Backend]:
    """Make a backend of a fault, and note the case that is meant to find it."""

    def make(run: Callable[..., None]) -> Backend:
        fault = Fault(OPERATIONS[operation], run, f"{module or operation}.py::{test}")
        FAULTS[run.__name__] = fault
        record = replace(
            outside.BACKEND,
            name=run.__name__,
            planners={**outside.PLANNERS, operation: partial(damaged, fault)},
            features=outside.FEATURES | {"shared"},
        )
        return record if module is None else replace(record, compile_count=lambda: len(COMPILED))

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


@found_by("read_table", "test_case_02_a_row_longer_than_the_table_stays_in_its_row")
def tail_cleared(self, table, rows, lens, v2p, *, out, seq_len_delta=0, **rest):
    self.launch(table, rows, lens, v2p, out=out, seq_len_delta=seq_len_delta, **rest)
    for b, end in enumerate(last_columns(self, table, lens, out, seq_len_delta)):
        out[b, end:] = 0


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


@found_by("read_table", "test_awkward_batches_and_widths")
def last_lane_skipped(self, table, rows, lens, v2p, *, out, **rest):
    if rest.get("starts") is not None:
        rest["starts"] = rest["starts"][:-1]
    self.launch(table, rows[:-1], lens[:-1], v2p, out=out, **rest)


@found_by("read_table", "test_rows_apart_by_any_stride")
def row_stride_ignored(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table.as_strided(table.shape, (table.shape[1], 1)), rows, lens, v2p, out=out, **rest)


@found_by("read_table", "test_case_02_a_row_longer_than_the_table_stays_in_its_row")
def clip_not_counted(self, table, rows, lens, v2p, *, out, state=None, **rest):
    before = None if state is None else state[COUNTERS["clipped"]].clone()
    self.launch(table, rows, lens, v2p, out=out, state=state, **rest)
    if state is not None:
        state[COUNTERS["clipped"]] = before


@found_by("read_table", "test_bad_lengths_rows_and_ids_are_clipped_sunk_and_counted")
def counter_set_and_not_added(self, table, rows, lens, v2p, *, out, state=None, **rest):
    if state is not None:
        state[COUNTERS["bad_id"]] = 0
    self.launch(table, rows, lens, v2p, out=out, state=state, **rest)


@found_by("read_table", "test_case_22_empty_rows_stay_untouched_between_others")
def one_cell_past_the_extent(self, table, rows, lens, v2p, *, out, seq_len_delta=0, **rest):
    self.launch(table, rows, lens, v2p, out=out, seq_len_delta=seq_len_delta, **rest)
    for b, end in enumerate(last_columns(self, table, lens, out, seq_len_delta)):
        out.as_strided((1,), (1,), out.storage_offset() + b * out.stride(0) + end)[0] = 0


@found_by("read_table", "test_case_09_padded_rows_show_no_page_of_a_finished_request")
def rows_past_the_batch_not_filled(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens, v2p, out=out[: rows.shape[0]], **rest)


@found_by("read_table", "test_case_10_an_entry_past_32_bits_is_exact_in_int64")
def narrowed_and_then_clamped(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens, v2p, out=out, **rest)
    out.copy_(out.to(torch.int32).clamp(min=0))


@found_by("read_table", "test_bad_lengths_rows_and_ids_are_clipped_sunk_and_counted")
def lengths_clipped_in_place(self, table, rows, lens, v2p, *, out, **rest):
    self.launch(table, rows, lens, v2p, out=out, **rest)
    lens.clamp_(min=0)


@found_by("read_table", "test_case_20_two_groups_of_one_shape_keep_their_own_tables")
def memo_by_shape(self, table, rows, lens, v2p, *, out, **rest):
    key = (table.shape, rows.shape, v2p.shape, out.shape)
    v2p = self.seen.setdefault(key, v2p.clone())
    self.launch(table, rows, lens, v2p, out=out, **rest)


@found_by("read_table", "test_counting_off_changes_no_value_and_no_counter")
def counts_when_counting_is_off(self, table, rows, lens, v2p, *, out, state=None, **rest):
    self.launch(table, rows, lens, v2p, out=out, **rest)
    counted(state, "clipped", int((lens < 0).sum()))


@found_by("read_table", "test_a_length_delta_widens_every_lane_before_clipping")
def delta_after_clipping(self, table, rows, lens, v2p, *, out, seq_len_delta=0, **rest):
    self.launch(table, rows, lens.clamp(min=0), v2p, out=out, seq_len_delta=max(seq_len_delta, 0), **rest)


COMPILED: set[Any] = set()


@found_by("read_table", "test_case_13_no_batch_width_or_stride_compiles_after_the_warm_up", "compiling")
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


@found_by("bind", "test_case_04_tables_of_another_size_than_the_owner_of_the_ids")
def one_size_for_both_tables(self, virtual, physical, v2p, p2v, **rest):
    num = min(v2p.shape[0], p2v.shape[0])
    self.launch(virtual, physical, v2p[:num], p2v[:num], **rest)


@found_by("unbind", "test_both_tables_get_a_tombstone_and_pages_come_out_in_lane_order")
def p2v_tombstone_dropped(self, ids, v2p, p2v, *, freed, **rest):
    before = p2v.clone()
    self.launch(ids, v2p, p2v, freed=freed, **rest)
    p2v.copy_(before)


@found_by("unbind", "test_case_11_the_same_id_twice_in_one_call_comes_back_once")
def repeated_id_comes_back_twice(self, ids, v2p, p2v, *, freed, **rest):
    before = v2p.clone()
    self.launch(ids, v2p, p2v, freed=freed, **rest)
    for i, v in enumerate(ids.tolist()):
        if 0 < v < v2p.shape[0] - 1:
            freed[i] = before[v]


@found_by("unbind", "test_case_12_the_same_id_over_two_calls_is_dropped_and_counted")
def tombstone_used_as_an_index(self, ids, v2p, p2v, *, freed, **rest):
    for v in ids.tolist():
        if 0 < v < v2p.shape[0] - 1 and v2p[v] == TOMBSTONE:
            p2v.as_strided((1,), (1,), p2v.storage_offset() - 1)[0] = TOMBSTONE
    self.launch(ids, v2p, p2v, freed=freed, **rest)


@found_by("translate", "test_case_07_each_rank_of_a_context_parallel_group_gets_its_own_tokens")
def context_parallel_hop_left_out(self, ids, v2p, *, out, **rest):
    before = ids.clone()
    self.launch(ids, v2p, out=out, **rest)
    out[out > 0] += ((before // self.spec.ranks) % self.spec.page_size)[out > 0].to(out.dtype)


@found_by("translate", "test_case_08_a_padded_slot_writes_the_sink_and_not_the_last_slot")
def pad_slot_passed_on(self, ids, v2p, *, out, **rest):
    before = ids.clone()
    self.launch(ids, v2p, out=out, **rest)
    out[before == -1] = -1


@found_by("translate", "test_case_21_row_strides_are_those_of_the_call")
def strides_frozen(self, ids, v2p, *, out, **rest):
    self.launch(ids.as_strided(ids.shape, (ids.shape[-1], 1)) if ids.dim() == 2 else ids, v2p, out=out, **rest)


@found_by("translate", "test_case_03_a_virtual_id_follows_its_page_when_it_moves")
def virtual_used_as_physical(self, ids, v2p, *, out, **rest):
    self.launch(ids, v2p, out=out, **rest)
    out.copy_(ids.clamp(min=0))


# ---- extended ----


@found_by("alloc", "test_the_last_freed_page_goes_first_and_then_the_frontier")
def watermark_not_moved(self, tables, *, ids, pages):
    before = tables.state[WATERMARK].clone()
    self.launch(tables, ids=ids, pages=pages)
    tables.state[WATERMARK] = before


@found_by("alloc", "test_what_is_not_found_is_the_sink_and_counted")
def starved_lanes_get_a_tombstone(self, tables, *, ids, pages):
    self.launch(tables, ids=ids, pages=pages)
    pages[ids == 0] = TOMBSTONE


@found_by("free", "test_case_12_an_id_over_two_calls_puts_no_tombstone_on_a_stack")
def tombstone_pushed(self, ids, tables, *, freed):
    self.launch(ids, tables, freed=freed)
    for i, v in enumerate(ids.tolist()):
        if v > 0 and freed[i] == TOMBSTONE:
            tables.hole_stack[tables.state[HOLE_TOP]] = TOMBSTONE
            tables.state[HOLE_TOP] += 1


@found_by("extend", "test_new_tokens_fill_the_last_page_and_then_take_new_ones")
def tokens_of_the_last_page_get_no_slot(self, table, rows, prefixes, indptr, tables, *, slots, pages=None):
    self.launch(table, rows, prefixes, indptr, tables, slots=slots, pages=pages)
    for b, prefix in enumerate(prefixes.tolist()):
        if prefix % self.spec.page_size:
            slots[indptr[b]] = 0


@found_by("truncate", "test_every_cut_of_a_row")
def a_page_with_kept_tokens_freed(self, table, rows, lens, keep, tables, *, freed, pages=None):
    ps = self.spec.page_size
    self.launch(table, rows, lens, keep // ps * ps, tables, freed=freed, pages=pages)


@found_by("release", "test_a_shared_prefix_stays_bound_and_leaves_the_row")
def shared_prefix_freed(self, table, rows, lens, tables, *, freed, starts=None, pages=None):
    starts = None if starts is None else starts * 0
    self.launch(table, rows, lens, tables, freed=freed, starts=starts, pages=pages)


@found_by("assign", "test_bad_rows_and_parts_are_clipped_and_counted")
def a_part_past_its_row(self, table, rows, ids, indptr, *, state=None):
    self.launch(table, rows, ids, indptr, state=state)
    for b, r in enumerate(rows.tolist()):
        if 0 <= r < table.shape[0] and indptr[b + 1] - indptr[b] > table.shape[1]:
            table.as_strided((1,), (1,), table.storage_offset() + (r + 1) * table.stride(0))[0] = 0


@found_by("read_stream", "test_case_02_a_lane_longer_than_its_part_stays_in_its_part")
def a_lane_past_its_part(self, table, rows, lens, v2p, indptr, *, out, **rest):
    self.launch(table, rows, lens, v2p, indptr, out=out, **rest)
    if rows.shape[0] > 1 and lens[0] > 0 and int(indptr[1]) < out.shape[0]:
        out[int(indptr[1])] = out[int(indptr[0])]
