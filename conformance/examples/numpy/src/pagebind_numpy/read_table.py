"""read_table: translate each lane's virtual pages into the rectangle that attention kernels read."""

from __future__ import annotations

import numpy as np
import torch
from pagebind.operation import MAX_LENGTH, Launch, LaunchOptions, NoWarmup
from pagebind.ops import ReadTableSpec
from pagebind.ops.beside import SecondTable
from pagebind.ops.ragged import flat
from pagebind.words import SINK

from pagebind_numpy.arrays import Array, count, quotient
from pagebind_numpy.cells import Lanes, Target, Writer


def plan(spec: ReadTableSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a read table; work goes by live cells, but that sink fill writes the whole table."""
    writer = Writer(spec)
    second = writer if spec.beside is None else Writer(spec.second())
    per_cell, per_id = writer.per_cell, writer.per_id

    def build(
        writer: Writer,
        request_table: torch.Tensor,
        row: Array,  # [bs], int64
        wanted: Array,  # [bs], int64; tokens
        table: SecondTable,
    ) -> None:
        out, starts = table.out, table.starts
        if out.shape[1] == 0:
            return
        bad_row = (row < 0) | (row >= request_table.shape[0])
        length = wanted.clip(0, min(out.shape[1] * per_cell, request_table.shape[1] * per_id, MAX_LENGTH))
        cells = quotient(length + (per_cell - 1), per_cell)
        first = np.zeros_like(row)
        if starts is not None:
            first = quotient(starts.numpy().astype(np.int64).clip(0, MAX_LENGTH), per_cell)
            cells = (cells - first).clip(0)
        cells = cells * ~bad_row

        if spec.fill == "sink":
            out.fill_(SINK)
        begin = np.arange(row.size) * out.stride(0) + first
        target = Target(flat(out).numpy(), begin, cells)
        bad_id = writer.write(request_table, Lanes(row, first, cells), table.v2p.numpy(), [target])
        if options.count:
            clipped = np.count_nonzero((length != wanted) & ~bad_row)
            count(table.state, clipped=clipped, bad_row=np.count_nonzero(bad_row), bad_id=bad_id)

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
        row = req_rows.numpy().astype(np.int64)
        wanted = seq_lens.numpy().astype(np.int64).clip(-MAX_LENGTH, MAX_LENGTH) + seq_len_delta
        build(writer, request_table, row, wanted, SecondTable(v2p, out, starts, state))
        if beside is not None:
            build(second, request_table, row, wanted, beside)

    return NoWarmup(run)
