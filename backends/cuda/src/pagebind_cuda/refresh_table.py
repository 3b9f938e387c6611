"""refresh_table: bring a read table up to date, in one launch of refresh_table.cu."""

from __future__ import annotations

import torch
from pagebind.operation import INT32_MAX, LaunchOptions
from pagebind.ops.read_table import table_tokens
from pagebind.ops.refresh_table import RefreshTableSpec, steady_span

from pagebind_cuda.launch import WARP, KernelLaunch, limits, plan_kernel, pointer, wide

MOST_THREADS, BLOCKS = 1024, 132
"""One block on each multiprocessor of an H200."""


def shape_of(rows: int) -> tuple[int, int]:
    """Return threads of a block and blocks at most for `rows` rows.

    Every block judges all rows, a thread a row, so that many rows want fewer blocks; rebuilding wants many threads.
    """
    if rows <= 128:
        return 256, BLOCKS
    return (512 if rows <= 512 else MOST_THREADS), BLOCKS // 2


SMALL = 128
"""Cells that one warp writes of a lane by itself, in one trip of 4 a thread."""

CELLS = 4
"""Cells of a thread below which a further block has nothing to do."""

MOST_IDS = 2**31
"""As entry.cuh has it: no id of a request table reaches it."""

ALIGNED_BUILT, ALIGNED_VERSIONS = 16, 8
"""Bytes of an access to `built` and `versions`."""


def plan_refresh_table(spec: RefreshTableSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a refresh: a lane that has fewer cells to change than SMALL, or than there are warps, is not shared out."""
    kernel = plan_kernel(
        "refresh_table",
        device,
        index_dtype=spec.index_dtype,
        out_dtype=spec.out_dtype,
        page_size=spec.page_size,
        form_token=spec.form == "token",
        granularity_token=spec.granularity == "token",
        fill_sink=spec.fill == "sink",
        row_wide=wide(spec.row_dtype),
        length_wide=wide(spec.length_dtype),
        borrowed=spec.borrowed,
        windowed=spec.windowed,
    )
    most = limits(device, options, threads=MOST_THREADS, programs=BLOCKS)
    sink, counting = spec.fill == "sink", int(options.count)
    unit = spec.page_size if spec.granularity == "page" else 1
    ids_a_row = spec.page_size if spec.form == "token" else 1

    def run(
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32
        req_rows: torch.Tensor,  # [bs], row_dtype
        seq_lens: torch.Tensor,  # [bs], length_dtype
        v2p: torch.Tensor,  # [num_virtual + 1], index_dtype
        *,
        out: torch.Tensor,  # [>= bs, width], out_dtype
        built: torch.Tensor,  # [rows of out, BUILT_WORDS], int32
        versions: torch.Tensor,  # [max_requests, VERSION_WORDS], int32
        state: torch.Tensor,  # [32], int64
        first: torch.Tensor | None = None,  # [max_requests], int32
        starts: torch.Tensor | None = None,  # [bs], length_dtype
        seq_len_delta: int = 0,
    ) -> None:
        bs = req_rows.shape[0]
        out_rows, width = out.shape
        rows = out_rows if sink else bs
        threads, blocks = shape_of(rows)
        threads = most.block(threads)
        blocks = min(most.programs, blocks, -(-rows * width // (CELLS * threads)))
        words, row_words = built.data_ptr(), versions.data_ptr()
        aligned = words % ALIGNED_BUILT == 0 and row_words % ALIGNED_VERSIONS == 0
        fitting = min(width * unit, table_tokens(spec.form, spec.page_size, request_table))
        kernel(
            blocks,
            threads,
            state.data_ptr(),
            words,
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            row_words,
            request_table.data_ptr(),
            _pair(1 << (blocks.bit_length() - 1), aligned | counting << 1),
            _pair(rows, bs),
            _pair(steady_span(fitting, seq_len_delta), seq_len_delta),
            _pair(min(request_table.shape[0], INT32_MAX), min((v2p.shape[0] - 1) * ids_a_row, MOST_IDS)),
            request_table.stride(0),
            v2p.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            spec.multiplier,
            fitting,
            _pair(width, min(SMALL, blocks * threads // WARP)),
            pointer(starts),
            pointer(first),
        )

    return KernelLaunch(run, kernel)


def _pair(low: int, high: int) -> int:
    """Return two numbers of 32 bits as one argument: they come by lines of 64 bytes, which take as long as loads."""
    both = low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32
    return both - (both >> 63 << 64)
