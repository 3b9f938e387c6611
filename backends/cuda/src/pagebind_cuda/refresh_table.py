"""refresh_table: bring a read table up to date, in one launch of refresh_table.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.read_table import table_tokens
from pagebind.ops.refresh_table import RefreshTableSpec

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
    )
    most = limits(device, options, threads=MOST_THREADS, programs=BLOCKS)
    sink, counting = spec.fill == "sink", int(options.count)
    unit = spec.page_size if spec.granularity == "page" else 1

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
        kernel(
            blocks,
            threads,
            request_table.data_ptr(),
            request_table.shape[0],
            request_table.stride(0),
            req_rows.data_ptr(),
            seq_lens.data_ptr(),
            pointer(starts),
            v2p.data_ptr(),
            v2p.shape[0] - 1,
            out.data_ptr(),
            width,
            out.stride(0),
            bs,
            rows,
            words,
            row_words,
            int(words % ALIGNED_BUILT == 0 and row_words % ALIGNED_VERSIONS == 0) | counting << 1,
            pointer(first),
            min(width * unit, table_tokens(spec.form, spec.page_size, request_table)),
            min(SMALL, blocks * threads // WARP),
            1 << (blocks.bit_length() - 1),
            seq_len_delta,
            spec.multiplier,
            state.data_ptr(),
        )

    return KernelLaunch(run, kernel)
