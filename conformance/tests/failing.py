"""A backend that fails, `failing:BACKEND`: of a part that is longer than its row it empties the cell behind the row."""

from __future__ import annotations

from dataclasses import replace

import outside
from pagebind.ops import ASSIGN
from pagebind.words import SINK


class PastTheRow:
    def __init__(self, launch):
        self.launch = launch

    def __call__(self, table, rows, ids, indptr, *, state=None):
        self.launch(table, rows, ids, indptr, state=state)
        for b, r in enumerate(rows.tolist()):
            if 0 <= r < table.shape[0] and indptr[b + 1] - indptr[b] > table.shape[1]:
                behind = table.storage_offset() + (r + 1) * table.stride(0)
                table.as_strided((1,), (1,), behind)[0] = SINK

    def warmup(self):
        self.launch.warmup()


def assign(spec, device, options):
    return PastTheRow(ASSIGN.compose(spec, device, outside.PLANNERS, options))


BACKEND = replace(outside.BACKEND, name="failing", planners={**outside.PLANNERS, "assign": assign})
