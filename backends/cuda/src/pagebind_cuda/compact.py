"""compact: close holes by moving pages, in two launches of compact.cu."""

from __future__ import annotations

import torch
from pagebind.operation import LaunchOptions
from pagebind.ops.compact import CompactSpec, Side
from pagebind.words import PageTables

from pagebind_cuda.launch import WARP, KernelLaunch, chain_of, limits, plan_kernel, pointer

# Phases of the kernel, and what one lane copies there: as in compact.cu.
PICK, MOVE = 1, 2
WORD_BYTES = 16
PART_BYTES = 4 * WARP * WORD_BYTES


def plan_compact(spec: CompactSpec, device: torch.device, options: LaunchOptions) -> KernelLaunch:
    """Plan a compaction: one block picks the moves, then warps copy parts of pages and threads rebind.

    The second launch has room for `retreat` moves, and ends at those that the first one found.
    """
    kernel = plan_kernel("compact", device, index_dtype=spec.index_dtype, out_dtype=spec.id_dtype)
    alone = limits(device, options, threads=1024, programs=1)
    most = limits(device, options, threads=256, programs=4096)
    threads_of_move = max(-(-spec.page_bytes // PART_BYTES) * WARP, 1)
    counting = options.count

    def run(
        tables: PageTables,
        *,
        retreat: int,
        sources: torch.Tensor,  # [>= retreat], id_dtype
        targets: torch.Tensor,  # [>= retreat], id_dtype
        buffer: torch.Tensor | None = None,  # [>= num_physical * page_bytes], uint8
        side: Side = "high",
        fresh: int = 0,
        skip: int = 0,
    ) -> None:
        num_physical = tables.p2v.shape[0] - 1
        state = tables.state.data_ptr()
        arguments = (
            tables.v2p.data_ptr(),
            tables.v2p.shape[0] - 1,
            tables.p2v.data_ptr(),
            num_physical,
            tables.hole_stack.data_ptr(),
            state,
            *chain_of(tables),
            retreat,
            side == "low",
            fresh,
            skip,
            sources.data_ptr(),
            targets.data_ptr(),
            pointer(buffer),
            spec.page_bytes // WORD_BYTES,
            state if counting else 0,
        )
        kernel(1, alone.block(num_physical), *arguments, PICK)
        kernel(*most.spread(retreat * threads_of_move), *arguments, MOVE)

    return KernelLaunch(run, kernel)
