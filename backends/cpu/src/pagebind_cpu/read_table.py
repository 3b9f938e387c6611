"""read_table: translate each lane's virtual pages into the rectangle that attention kernels read."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.ids import scale_of
from pagebind.ops.lanes import add
from pagebind.ops.ragged import flat
from pagebind.ops.read_table import ReadTableSpec, lanes_of
from pagebind.words import BAD_ID, SINK

from pagebind_cpu.cells import Lanes, Source, Target, write_entries
from pagebind_cpu.entries import Unit


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a read table; work goes by live cells, but that sink fill writes the whole table."""
    page_size = spec.page_size if spec.granularity == "token" else 1
    unit = Unit(page_size, scale_of(spec.num_physical, spec.multiplier, page_size), spec.out_dtype)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        v2p: torch.Tensor,
        *,
        out: torch.Tensor,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
        state: torch.Tensor | None = None,
    ) -> None:
        lanes = lanes_of(spec, request_table, req_rows, seq_lens, out.shape[1], starts, seq_len_delta)
        if spec.fill == "sink":
            out.fill_(SINK)
        begin = torch.arange(lanes.row.shape[0]) * out.stride(0) + lanes.first
        past = write_entries(
            Source(request_table, spec.form, spec.granularity, spec.page_size),
            Lanes(lanes.row, lanes.first, lanes.cells),
            v2p,
            unit,
            [Target(flat(out), begin, lanes.cells)],
        )
        if state is not None and options.count:
            add(state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            if past:
                state[BAD_ID] += past

    return NoWarmup(run)
