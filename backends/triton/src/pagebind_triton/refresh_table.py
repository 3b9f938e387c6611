"""refresh_table: bring a read table up to date by writing only what changed, in one launch.

    steady lanes  as built, but for an appended column: the lane's owner, a program, writes it; so are padded lanes
    several       a few columns are appended: where all other lanes are steady, the owner writes them next
    small lanes   few cells to change: the lane's owner writes them, and what was built, at once
    large lanes   their cells are shared out evenly to all programs; what was built is written by the last program,
                  after all have read what was before

Every program judges all lanes, and so finds by itself whether all are steady, and whether one is large. Mostly all are
steady, and the launch is done: an appended column costs three loads that wait for each other (the lane's words; the
row's words and the column's id; the page) and no look at other programs. The grid follows from planned sizes, never
from a length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from pagebind.operation import INT32_MAX, LaunchOptions
from pagebind.ops.read_table import table_tokens
from pagebind.ops.refresh_table import RefreshTableSpec

from pagebind_triton.build import constants, count_cells
from pagebind_triton.guards import BAD_ID, BAD_ROW, TICKET, is_last, wait_for_previous
from pagebind_triton.lanes import last_id_of
from pagebind_triton.launch import MOST_WARPS, WARP, Grid, PlannedLaunch, Variant, plan_grid
from pagebind_triton.refresh import BUILT_WORDS, find, store_built
from pagebind_triton.refresh_share import write_share
from pagebind_triton.refresh_small import write_small
from pagebind_triton.refresh_steady import OTHER, SEVERAL, STEADY, narrow, write_several, write_steady

# One program for each multiprocessor of an H200; each judges all lanes, and past FEW_LANES of them half as many do.
GPU_BLOCK, GPU_PROGRAMS, FEW_LANES = 2048, 132, 128

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
    req_rows: tl.tensor,  # [bs], int32 or int64
    seq_lens: tl.tensor,  # [bs], int32 or int64; tokens
    built: tl.tensor,  # [>= rows, BUILT_WORDS], int32; written
    state: tl.tensor,  # [32], int64
    versions: tl.tensor,  # [num_rows, VERSION_WORDS], int32
    request_table: tl.tensor,  # [num_rows, tokens or pages], int32
    v2p: tl.tensor,  # [num_virtual + 1], int32 or int64
    out: tl.tensor,  # [>= rows, width], int32 or int64; written
    starts: tl.tensor,  # [bs], as seq_lens; tokens; read with WINDOWED
    live_pages: tl.tensor,  # [num_rows], int32; read with BORROWED
    span_and_rows: tl.int64,  # what steady lanes need of the numbers below, as `narrow` returns it
    num_rows_and_delta: tl.int64,
    strides: tl.int64,
    bs_and_last_id: tl.int64,
    bs: tl.int64,
    rows: tl.int64,  # of `out` that are brought up to date; those past `bs` are emptied
    width: tl.int64,
    fitting: tl.int64,  # tokens that fit both tables
    num_rows: tl.int64,
    request_stride: tl.int64,
    out_stride: tl.int64,
    last_id: tl.int64,  # of the table
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
    ONCE: tl.constexpr,
    OWNERS: tl.constexpr,
    OWN: tl.constexpr,
    FEW: tl.constexpr,
    SMALL: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Write steady lanes; if that is not all, every small lane; share out the large ones, if there are any."""
    if DEPENDENT:
        wait_for_previous()
    highest, padded = write_steady(
        request_table, req_rows, seq_lens, starts, v2p, out, built, versions, live_pages, state,
        span_and_rows, num_rows_and_delta, strides, bs_and_last_id,
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, SINK_FILL, BORROWED, ALIGNED, ONCE,
        OWNERS, FEW, LANES,
    )  # fmt: skip
    if COUNT:
        # Where lanes are judged anew they are counted there. In line: a jump to do it would wait for instructions.
        count_cells(state, BAD_ROW, tl.where(highest == OTHER, 0, padded))
    if highest == STEADY:
        return
    tl.debug_barrier()  # what an owner noted of its steady lanes is read below
    if highest == SEVERAL:
        write_several(
            request_table, req_rows, seq_lens, starts, v2p, out, built, state,
            span_and_rows, num_rows_and_delta, strides, bs_and_last_id,
            PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, OWNERS, OWN, FEW, LANES,
        )  # fmt: skip
        return
    programs = tl.num_programs(0)
    last_id = last_id.to(tl.int32)
    large = write_small(
        request_table, req_rows, seq_lens, starts, v2p, out, built, versions, live_pages,
        state, bs, rows, width, fitting, num_rows, request_stride, out_stride, last_id, seq_len_delta,
        PAGE_SIZE, MULTIPLIER, TOKEN_FORM, TOKEN_GRAIN, WINDOWED, COUNT, SINK_FILL, BORROWED, ALIGNED,
        OWNERS, OWN, FEW, SMALL, LANES,
    )  # fmt: skip
    if large > 0:
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
    most = GPU_PROGRAMS if spec.max_bs <= FEW_LANES else GPU_PROGRAMS // 2
    grid = plan_grid(device, options, GPU_BLOCK, most, most)
    sizes = plan_sizes(spec, grid)
    programs, sink = sizes.programs, spec.fill == "sink"
    words, lengths = torch.int32, spec.length_dtype
    pointers = [spec.row_dtype, lengths, words, torch.int64, words, words, spec.index_dtype, spec.out_dtype]

    def variant(aligned: bool) -> Variant:
        return Variant(
            refresh_table_kernel,
            [*pointers, lengths, words],
            constants(spec, options)
            | {
                "SINK_FILL": sink,
                "BORROWED": spec.borrowed,
                "ALIGNED": aligned,
                "ONCE": not sink and spec.max_bs <= sizes.lanes,
                "OWNERS": sizes.lanes // sizes.own,
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
        bs, num_rows, last_id = req_rows.shape[0], request_table.shape[0], last_id_of(v2p)
        out_rows, width = out.shape
        rows = out_rows if sink else bs
        fitting = min(width * unit, table_tokens(spec.form, spec.page_size, request_table))
        strides = request_table.stride(0), out.stride(0)
        kernels[(built.data_ptr() | versions.data_ptr()) % PAIR == 0](
            programs,
            req_rows,
            seq_lens,
            built,
            state,
            versions,
            request_table,
            v2p,
            out,
            seq_lens if starts is None else starts,
            versions if first is None else first,
            *narrow(bs, rows, num_rows, fitting, seq_len_delta, strides, last_id, sizes.lanes),
            bs,
            rows,
            width,
            fitting,
            num_rows,
            *strides,
            last_id,
            seq_len_delta,
        )

    return PlannedLaunch(refresh_table, kernels, device)
