"""read_stream: the entries of a read table packed end to end, optionally with the table in one pass."""

from __future__ import annotations

import numpy as np
import torch
from pagebind.operation import MAX_LENGTH, Launch, LaunchOptions, NoWarmup
from pagebind.ops import ReadStreamSpec
from pagebind.ops.ragged import flat

from pagebind_numpy.arrays import Array, count, quotient
from pagebind_numpy.cells import Lanes, Target, Writer


def plan(spec: ReadStreamSpec, device: torch.device, options: LaunchOptions) -> Launch:
    """Plan a read stream; work goes by live items."""
    writer = Writer(spec)
    per_item, per_id = writer.per_cell, writer.per_id

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
        row = req_rows.numpy().astype(np.int64)
        bad_row = (row < 0) | (row >= request_table.shape[0])
        wanted = seq_lens.numpy().astype(np.int64).clip(-MAX_LENGTH, MAX_LENGTH) + seq_len_delta
        start = np.zeros_like(row)
        if starts is not None:
            start = starts.numpy().astype(np.int64).clip(0, MAX_LENGTH)
        most = min(request_table.shape[1] * per_id, MAX_LENGTH)
        length = np.minimum(wanted.clip(0), (most - start).clip(0))
        first = quotient(start, per_item)
        items = (quotient(start + length + (per_item - 1), per_item) - first) * ((length > 0) & ~bad_row)

        begin, room = _parts(indptr.numpy(), out.shape[0])
        streamed = np.minimum(items, room)
        cut = (length != wanted) | (streamed < items)
        targets = [Target(out.numpy(), begin, streamed)]
        if table is not None:
            tabled = np.minimum(items, (table.shape[1] - first).clip(0))
            cut |= tabled < items
            targets.append(Target(flat(table).numpy(), np.arange(row.size) * table.stride(0) + first, tabled))
        cells = streamed if table is None else np.maximum(streamed, targets[1].cells)
        bad_id = writer.write(request_table, Lanes(row, first, cells), v2p.numpy(), targets)
        if options.count:
            clipped = np.count_nonzero(cut & ~bad_row)
            count(state, clipped=clipped, bad_row=np.count_nonzero(bad_row), bad_id=bad_id)

    return NoWarmup(run)


def _parts(indptr: Array, capacity: int) -> tuple[Array, Array]:
    """Return where each lane's part of the stream begins, and its room there, int64 `[bs]`; none before the stream."""
    bound = indptr.astype(np.int64).clip(-1, capacity)
    begin = bound[:-1]
    return begin, (bound[1:] - begin).clip(0) * (begin >= 0)
