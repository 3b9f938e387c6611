"""Backends whose refresh_table or touch has one fault each, found by the case meant for it: `faulty_refresh:NAME`.

A fault rewrites what the call reads, and so decides wrongly what a table holds still, or spoils what it wrote.
"""

from __future__ import annotations

from typing import Any

import torch
from faulty import counted, found_by
from pagebind.ops.refresh_table import (
    BUILT_END,
    BUILT_FIRST,
    BUILT_LIVE,
    BUILT_ROW,
    BUILT_VERSION,
    NOTHING,
)
from pagebind.ops.touch import CHANGED, VERSION
from pagebind.words import EPOCH, SINK


def good_lanes(table: Any, rows: Any) -> list[tuple[int, int]]:
    """Return (lane, row) of the lanes whose row is one."""
    return [(b, r) for b, r in enumerate(rows.tolist()) if 0 <= r < table.shape[0]]


# ---- rows ----


@found_by("refresh_table", "test_versions_are_told_apart_by_being_equal_or_one_ahead")
def versions_compared_by_less(self, table, rows, *given, built, versions, **rest):
    for b, r in good_lanes(table, rows):
        if not built[b, BUILT_VERSION] < versions[r, VERSION]:
            built[b, BUILT_VERSION] = versions[r, VERSION]
    self.launch(table, rows, *given, built=built, versions=versions, **rest)


@found_by("refresh_table", "test_a_row_touched_once_is_written_from_the_column_of_that_token_on")
def changed_not_divided_by_the_page_size(self, *given, versions, **rest):
    wrong = versions.clone()
    wrong[:, CHANGED] *= self.spec.page_size if self.spec.granularity == "page" else 1
    self.launch(*given, versions=wrong, **rest)


@found_by("refresh_table", "test_a_row_touched_once_is_written_from_the_column_of_that_token_on")
def changed_rounded_up(self, *given, versions, **rest):
    wrong = versions.clone()
    wrong[:, CHANGED] += self.spec.page_size - 1 if self.spec.granularity == "page" else 0
    self.launch(*given, versions=wrong, **rest)


# ---- epochs ----


@found_by("refresh_table", "test_of_an_epoch_the_low_32_bits_are_compared")
def epochs_past_31_bits_never_equal(self, *given, built, state, **rest):
    if abs(int(state[EPOCH])) > 2**31 - 1:
        built[:, BUILT_ROW] = NOTHING
    self.launch(*given, built=built, state=state, **rest)


# ---- windows ----


@found_by("refresh_table", "test_columns_below_a_first_page_that_moved_are_written_anew")
def a_windows_evict_missed(self, table, rows, *given, built, first=None, **rest):
    for b, r in good_lanes(table, rows):
        if first is not None:
            built[b, BUILT_LIVE] = first[r]
    self.launch(table, rows, *given, built=built, first=first, **rest)


@found_by("refresh_table", "test_columns_below_a_first_page_that_moved_are_written_anew")
def a_first_page_that_moved_back_missed(self, table, rows, *given, built, first=None, **rest):
    for b, r in good_lanes(table, rows):
        if first is not None and first[r] < built[b, BUILT_LIVE]:
            built[b, BUILT_LIVE] = first[r]
    self.launch(table, rows, *given, built=built, first=first, **rest)


@found_by("refresh_table", "test_columns_below_a_first_page_that_moved_are_written_anew")
def a_first_page_read_as_a_column(self, *given, built, first=None, **rest):
    live = None
    if first is not None and self.spec.granularity == "token":
        live = first // self.spec.page_size
        built[:, BUILT_LIVE] //= self.spec.page_size
    self.launch(*given, built=built, first=first if live is None else live, **rest)


@found_by("refresh_table", "test_a_window_that_moves_on_writes_new_columns_and_empties_old_ones")
def columns_below_what_was_built_not_written(self, *given, built, **rest):
    built[:, BUILT_FIRST] *= built[:, BUILT_ROW] == NOTHING
    self.launch(*given, built=built, **rest)


# ---- extents ----


@found_by("refresh_table", "test_an_appended_row_writes_its_new_columns_alone")
def one_column_too_many_kept(self, *given, built, **rest):
    built[:, BUILT_END] += built[:, BUILT_ROW] != NOTHING
    self.launch(*given, built=built, **rest)


@found_by("refresh_table", "test_a_shorter_length_keeps_what_is_left")
def a_shorter_length_not_noted(self, *given, built, **rest):
    before = built.clone()
    self.launch(*given, built=built, **rest)
    same = before[:, BUILT_ROW] == built[:, BUILT_ROW]
    built[same, BUILT_END] = torch.maximum(before[same, BUILT_END], built[same, BUILT_END])


@found_by("refresh_table", "test_a_shorter_length_keeps_what_is_left")
def prefix_fill_empties_what_was_built(self, *given, out, built, **rest):
    before = built.clone()
    self.launch(*given, out=out, built=built, **rest)
    for b, (was, now) in enumerate(zip(before.tolist(), built.tolist(), strict=True)):
        if was[BUILT_ROW] == now[BUILT_ROW] != NOTHING:
            out[b, now[BUILT_END] : was[BUILT_END]] = SINK


@found_by("refresh_table", "test_rows_past_the_batch_are_emptied_once_with_sink_fill")
def rows_past_the_batch_forgotten(self, table, rows, *given, out, built, **rest):
    bs = rows.shape[0]
    self.launch(table, rows, *given, out=out[:bs], built=built[:bs], **rest)


@found_by("refresh_table", "test_rows_past_the_batch_stay_as_they_are_with_prefix_fill")
def words_past_the_batch_cleared_with_prefix_fill(self, table, rows, *given, built, **rest):
    self.launch(table, rows, *given, built=built, **rest)
    built[rows.shape[0] :, BUILT_ROW] = NOTHING


@found_by("refresh_table", "test_the_first_refresh_writes_the_whole_table_with_sink_fill")
def what_a_new_table_holds_not_emptied(self, *given, built, **rest):
    built[:, BUILT_END] *= built[:, BUILT_ROW] != NOTHING
    self.launch(*given, built=built, **rest)


# ---- faults ----


@found_by("refresh_table", "test_a_bad_row_is_an_empty_one_and_noted_as_nothing")
def a_bad_row_not_noted(self, table, rows, *given, built, **rest):
    before = built.clone()
    self.launch(table, rows, *given, built=built, **rest)
    for b in set(range(rows.shape[0])) - {b for b, _ in good_lanes(table, rows)}:
        built[b] = before[b]


@found_by("refresh_table", "test_lengths_that_are_clipped_are_counted_at_each_call")
def clipped_lanes_not_counted_again(self, table, rows, *given, built, state, **rest):
    known = (built[: rows.shape[0], BUILT_ROW] == rows).any()
    before = state.clone()
    self.launch(table, rows, *given, built=built, state=state, **rest)
    if known:
        state.copy_(before)


@found_by("refresh_table", "test_ids_past_the_table_are_counted_where_they_are_written")
def ids_past_the_table_counted_in_kept_cells(self, table, rows, lens, v2p, *, out, built, state, **rest):
    whole = built.clone()
    whole[:, BUILT_ROW] = NOTHING
    before = built.clone()
    self.launch(table, rows, lens, v2p, out=out.clone(), built=whole, state=state, **rest)
    self.launch(table, rows, lens, v2p, out=out, built=before, state=state.clone(), **rest)
    built.copy_(before)


# ---- touch ----


@found_by("touch", "test_a_touch_raises_the_version_and_notes_the_lowest_token")
def version_not_raised(self, versions, *given, **rest):
    before = versions[:, VERSION].clone()
    self.launch(versions, *given, **rest)
    versions[:, VERSION] = before


@found_by("touch", "test_a_touch_raises_the_version_and_notes_the_lowest_token")
def the_lowest_token_of_all_changes_noted(self, versions, rows, tokens, **rest):
    before = versions[:, CHANGED].clone()
    known = versions[:, VERSION] != 0
    self.launch(versions, rows, tokens, **rest)
    versions[known, CHANGED] = torch.minimum(versions[known, CHANGED], before[known])


@found_by("touch", "test_versions_wrap_around")
def versions_stop_at_the_largest(self, versions, *given, **rest):
    before = versions[:, VERSION].clone()
    self.launch(versions, *given, **rest)
    versions[:, VERSION] = torch.maximum(versions[:, VERSION], before)


@found_by("touch", "test_bad_rows_do_nothing_and_are_counted")
def bad_rows_touch_the_last_row(self, versions, rows, tokens, *, state=None):
    held = rows.clamp(max=versions.shape[0] - 1) if versions.shape[0] else rows
    counted(state, "bad_row", int((rows >= versions.shape[0]).sum()) if versions.shape[0] else 0)
    self.launch(versions, held, tokens, state=state)
