"""read_table: translate each lane's virtual pages into the rectangle that attention kernels read."""

from __future__ import annotations

import torch
from pagebind.operation import Launch, LaunchOptions, NoWarmup
from pagebind.ops.beside import SecondTable
from pagebind.ops.ids import scale_of
from pagebind.ops.lanes import TableLanes, add, begun_at
from pagebind.ops.ragged import flat
from pagebind.ops.read_table import ReadTableSpec, lanes_of
from pagebind.words import BAD_ID, SINK

from pagebind_cpu.cells import Lanes, Source, Target, write_entries
from pagebind_cpu.entries import Unit


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a read table; work goes by live cells, but that sink fill writes the whole table."""
    page_size = spec.page_size if spec.granularity == "token" else 1
    cell = spec.page_size if spec.granularity == "page" else 1  # tokens of a column

    def unit_of(one: ReadTableSpec) -> Unit:
        return Unit(page_size, scale_of(one.num_physical, one.multiplier, page_size), spec.out_dtype)

    unit = unit_of(spec)
    second_unit = unit if spec.beside is None else unit_of(spec.second())

    def build(source: Source, whole: TableLanes, unit: Unit, table: SecondTable) -> None:
        lanes = whole if table.starts is None else begun_at(whole, table.starts, cell)
        if spec.fill == "sink":
            table.out.fill_(SINK)
        begin = torch.arange(lanes.row.shape[0]) * table.out.stride(0) + lanes.first
        past = write_entries(
            source,
            Lanes(lanes.row, lanes.first, lanes.cells),
            table.v2p,
            unit,
            [Target(flat(table.out), begin, lanes.cells)],
        )
        if table.state is not None and options.count:
            add(table.state, clipped=lanes.clipped, bad_row=lanes.bad_row)
            if past:
                table.state[BAD_ID] += past

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
        beside: SecondTable | None = None,
    ) -> None:
        source = Source(request_table, spec.form, spec.granularity, spec.page_size)

        def lanes(width: int) -> TableLanes:
            return lanes_of(spec, request_table, req_rows, seq_lens, width, None, seq_len_delta)

        width = out.shape[1]
        whole = lanes(width)
        if width > 0:
            build(source, whole, unit, SecondTable(v2p, out, starts, state))
        if beside is not None and beside.out.shape[1] > 0:
            # Lanes of tables of one width differ in their starts alone.
            other = whole if beside.out.shape[1] == width else lanes(beside.out.shape[1])
            build(source, other, second_unit, beside)

    return NoWarmup(run)
