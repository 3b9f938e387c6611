"""read_stream: the entries of a read table packed end to end, optionally with the table in one pass."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.ids import scale_of
from pagebind.ops.lanes import add
from pagebind.ops.ragged import flat
from pagebind.ops.read_stream import ReadStreamSpec, lanes_of
from pagebind.words import BAD_ID

from pagebind_cpu.cells import Lanes, Source, Target, write_entries
from pagebind_cpu.entries import Unit


def plan(spec: ReadStreamSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a read stream; work goes by live items."""
    page_size = spec.page_size if spec.granularity == "token" else 1
    unit = Unit(page_size, scale_of(spec.num_physical, spec.multiplier, page_size), spec.out_dtype)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        indptr: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
    ) -> None:
        lanes = lanes_of(spec, request_table, req_rows, seq_lens, indptr, out, starts, table, seq_len_delta)
        targets = [Target(out, lanes.begin, lanes.streamed)]
        if table is not None:
            begin = torch.arange(lanes.row.shape[0]) * table.stride(0) + lanes.first
            targets.append(Target(flat(table), begin, lanes.tabled))
        past = write_entries(
            Source(request_table, spec.form, spec.granularity, spec.page_size),
            Lanes(lanes.row, lanes.first, torch.maximum(lanes.streamed, lanes.tabled)),
            v2p,
            unit,
            targets,
        )
        if state is not None and options.count:
            add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            if past:
                state[BAD_ID] += past

    return NoWarmup(run)
