"""refresh_table: bring a read table up to date by writing only what changed, in one launch.

    small lanes   few cells to change: the lane's owner writes them, and what was built, at once
    large lanes   their cells are shared out evenly to all programs; what was built is written by the last program,
                  after all have read what was before

Every program judges all lanes, and so finds by itself whether one is large. Mostly none is, and the launch is done: an
appended column costs three loads that wait for each other (the lane's words; the row's words and the column's id; the
page) and no look at other programs. The grid follows from planned sizes, never from a length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from pagebind.operation import INT32_MAX, LaunchOptions
from pagebind.ops.read_table import table_tokens
from pagebind.ops.refresh_table import RefreshTableSpec

from pagebind_triton.build import constants, count_cells, highest_id
from pagebind_triton.guards import BAD_ID, BAD_ROW, CLIPPED, EPOCH, TICKET, count_lanes, is_last, within
from pagebind_triton.launch import MOST_WARPS, WARP, Grid, PlannedLaunch, Variant, plan_grid
from pagebind_triton.refresh import (
    BUILT_WORDS,
    find,
    judge,
    load_built,
    load_lane,
    load_now,
    open_lane,
    store_built,
)
from pagebind_triton.refresh_cells import cells_left, column_entries, column_ids, write_changes
from pagebind_triton.refresh_share import write_share

# One program fits each multiprocessor of an H200; it has 8 cells of a thread in flight where it writes large lanes.
GPU_BLOCK, GPU_PROGRAMS = 2048, 132

MOST_LANES = 1024
"""Lanes that a program judges at once, as many as 4 a thread."""
LANES_A_THREAD = 4

MOST_OWN = 16
"""Lanes of them that a program owns."""

FEW = 8
"""Columns at the end of a row that are read before it is known whether they are new: those of a step's new tokens."""

SMALL = 128
"""Cells that a lane may have to change without being large: its owner writes them at once."""

PAIR = 8
"""Bytes of two words: of tables that are aligned so, they are read at once."""


@dataclass(frozen=True)
class Sizes:
    """Launch sizes of a refresh: powers of two but for `programs`; lanes <= programs * own."""

    programs: int
    own: int
    few: int
    small: int
    lanes: int


def plan_sizes(spec: RefreshTableSpec, grid: Grid) -> Sizes:
    """Return launch sizes by what a plan knows: a program for a quarter of a block, or for every other lane."""
    wanted = max(-(-4 * spec.max_bs * spec.max_width // grid.block), -(-spec.max_bs // 2), 1)
    programs = min(grid.most, wanted)
    most = min(MOST_LANES, LANES_A_THREAD * min(grid.block, MOST_WARPS * WARP), MOST_OWN * programs)
    lanes = min(1 << (max(spec.max_bs, 1) - 1).bit_length(), 1 << (most.bit_length() - 1))
    own = 1 << (-(-lanes // programs) - 1).bit_length()
    few = max(1, min(FEW, grid.block // 8))
    return Sizes(programs, own, few, max(few, min(SMALL, grid.block // own)), lanes)


@triton.jit
def refresh_table_kernel(
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= rows, width], int32 or int64; written
    built: tl.tensor,  # [>= rows, BUILT_WORDS], int32; written
    versions: tl.tensor,  # [num_rows, VERSION_WORDS], int32
    live_pages: tl.tensor,  # [num_rows], int32; read with BORROWED
    state: tl.tensor,  # [32], int64
    bs: tl.int64,
    rows: tl.int64,  # of `out` that are brought up to date; those past `bs` are emptied
    width: tl.int64,
    fitting: tl.int64,  # tokens that fit both tables
    num_rows: tl.int64,
    request_stride: tl.int64,
    out_stride: tl.int64,
    num_virtual: tl.int64,
    seq_len_delta: tl.int64,
    PAGE_SIZE: tl.constexpr,
    MULTIPLIER: tl.constexpr,
    TOKEN_FORM: tl.constexpr,
    TOKEN_GRAIN: tl.constexpr,
    WINDOWED: tl.constexpr,
    COUNT: tl.constexpr,
    SINK_FILL: tl.constexpr,
    BORROWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    OWN: tl.constexpr,
    FEW: tl.constexpr,
    SMALL: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write every small lane; share out the large ones, if there are any."""
    programs = tl.num_programs(0)
    last_id = highest_id(num_virtual)
    any_large = tl.zeros((LANES,), tl.int32)
    for base in range(0, rows, LANES):
        # What does not wait for anything is read first, for the owner's lanes and for everybody's.
        lane = tl.arange(0, LANES)
        mine = tl.program_id(0) + (programs * tl.arange(0, OWN))[:, None]
        rows_here = tl.minimum(rows - base, LANES).to(tl.int32)
        bs_here = within(bs - base, 0, LANES).to(tl.int32)
        owned = mine < rows_here
        words = built + base * BUILT_WORDS
        epoch = tl.load(state + EPOCH).to(tl.int32)
        my_asked, my_length, my_start = load_lane(
            req_rows + base, seq_lens + base, starts + base, mine, bs_here, WINDOWED
        )
        asked, length, start = load_lane(req_rows + base, seq_lens + base, starts + base, lane, bs_here, WINDOWED)
        was_row, was_version, was_epoch, was_first, was_end, was_live = load_built(words, mine, owned, ALIGNED)
        row_was, version_was, epoch_was, first_was, end_was, live_was = load_built(
            words, lane, lane < rows_here, ALIGNED
        )

        # Then what waits for the row: the ids of its last columns, before it is known which are new, and its words.
        my_row, begin, end, has_row, clipped = open_lane(
            my_asked, my_length, my_start, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
        )
        ids = request_table + my_row.to(tl.int64) * request_stride
        column = end - 1 - tl.arange(0, FEW)[None, :]
        held = column_ids(ids, column, column >= begin, PAGE_SIZE, TOKEN_FORM, TOKEN_GRAIN)
        # All threads have read a lane's words before one of them writes new ones.
        tl.debug_barrier()
        my_version, my_changed, my_live = load_now(versions, live_pages, my_row, has_row, BORROWED, ALIGNED)
        row, first, last, good, _cut = open_lane(
            asked, length, start, num_rows, seq_len_delta, fitting, PAGE_SIZE, TOKEN_GRAIN, WINDOWED
        )
        version, changed, live = load_now(versions, live_pages, row, good, BORROWED, ALIGNED)
        # It always is, but no compiler knows: behind a branch it waits for loads only when all are on their way.
        if base + width > 0:
            low, high, old_begin, old_end, cells = judge(
                my_row, begin, end, has_row, my_version, my_changed, my_live, epoch,
                was_row, was_version, was_epoch, was_first, was_end, was_live, width,
                PAGE_SIZE, TOKEN_GRAIN, SINK_FILL, BORROWED,
            )  # fmt: skip
            small = owned & (cells <= SMALL)
            fresh = small & (column >= high) & (column >= begin)
            entries, beyond = column_entries(
                held, column, fresh, v2p, last_id, PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN
            )
            _, _, _, _, cells_of_all = judge(
                row, first, last, good, version, changed, live, epoch,
                row_was, version_was, epoch_was, first_was, end_was, live_was, width,
                PAGE_SIZE, TOKEN_GRAIN, SINK_FILL, BORROWED,
            )  # fmt: skip
            any_large = tl.maximum(any_large, (cells_of_all > SMALL).to(tl.int32))
            my_cells = out + (base + mine) * out_stride
            tl.store(my_cells + column, entries.to(out.dtype.element_ty), mask=fresh)

            store_built(words, mine, small, has_row, my_row, my_version, epoch, begin, end, my_live)
            if COUNT:
                count_lanes(state, CLIPPED, clipped)
                count_lanes(state, BAD_ROW, (mine < bs_here) & (has_row == 0))
                count_lanes(state, BAD_ID, beyond)
            stop = tl.maximum(high, end - FEW)
            left = tl.where(small, cells_left(begin, low, high, stop, end, old_begin, old_end, SINK_FILL), 0)
            if tl.max(left) > 0:
                past_too = write_changes(
                    ids, my_cells, tl.arange(0, SMALL)[None, :].to(tl.uint32), left > 0,
                    begin, low, high, stop, end, old_begin, old_end, v2p, last_id,
                    PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, SINK_FILL,
                )  # fmt: skip
                if COUNT:
                    count_lanes(state, BAD_ID, past_too)
    if tl.max(any_large, 0) > 0:
        past = write_share(
            request_table, req_rows, seq_lens, starts, v2p, out, built, versions, live_pages,
            state, bs, rows, width, fitting, num_rows, request_stride, out_stride, last_id, seq_len_delta,
            PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, SINK_FILL, BORROWED, ALIGNED,
            SMALL, LANES, WIDE, BLOCK,
        )  # fmt: skip
        if COUNT:
            count_cells(state, BAD_ID, past)
        if is_last(state, programs):
            for base in range(0, rows, LANES):
                lane = tl.arange(0, LANES)
                row, first, last, _, _, _, _, cells, good, version, epoch, live = find(
                    req_rows, seq_lens, starts, built, versions, live_pages, lane, base, bs, rows, state,
                    width, num_rows, seq_len_delta, fitting,
                    PAGE_SIZE, TOKEN_GRAIN, WINDOWED, SINK_FILL, BORROWED, ALIGNED, LANES,
                )  # fmt: skip
                words = built + base * BUILT_WORDS
                store_built(words, lane, cells > SMALL, good, row, version, epoch, first, last, live)
            tl.store(state + TICKET, 0)


def plan(spec: RefreshTableSpec, device: torch.device, options: LaunchOptions) -> PlannedLaunch:
    """Plan a refresh: one kernel, for tables whose words are aligned and for others."""
    grid = plan_grid(device, options, GPU_BLOCK, GPU_PROGRAMS, GPU_PROGRAMS)
    sizes = plan_sizes(spec, grid)
    programs, sink = sizes.programs, spec.fill == "sink"
    dtypes = [torch.int32, spec.row_dtype, spec.length_dtype, spec.length_dtype, spec.index_dtype, spec.out_dtype]

    def variant(aligned: bool) -> Variant:
        return Variant(
            refresh_table_kernel,
            [*dtypes, torch.int32, torch.int32, torch.int32, torch.int64],
            constants(spec, options)
            | {
                "SINK_FILL": sink,
                "BORROWED": spec.borrowed,
                "ALIGNED": aligned,
                "OWN": sizes.own,
                "FEW": sizes.few,
                "SMALL": sizes.small,
                "LANES": sizes.lanes,
                "WIDE": sizes.lanes * spec.max_width > INT32_MAX,
                "BLOCK": grid.block,
            },
            device,
        )

    kernels = variant(False), variant(True)
    unit = spec.page_size if spec.granularity == "page" else 1

    def refresh_table(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        *,
        out: torch.Tensor,
        built: torch.Tensor,
        versions: torch.Tensor,
        state: torch.Tensor,
        first: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
    ) -> None:
        bs = req_rows.shape[0]
        out_rows, width = out.shape
        kernels[(built.data_ptr() | versions.data_ptr()) % PAIR == 0](
            programs,
            request_table,
            req_rows,
            seq_lens,
            seq_lens if starts is None else starts,
            v2p,
            out,
            built,
            versions,
            versions if first is None else first,
            state,
            bs,
            out_rows if sink else bs,
            width,
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            request_table.shape[0],
            request_table.stride(0),
            out.stride(0),
            v2p.shape[0] - 1,
            seq_len_delta,
        )

    return PlannedLaunch(refresh_table, kernels, device)
