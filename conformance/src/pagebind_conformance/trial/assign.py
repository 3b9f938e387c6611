"""An assignment on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import ASSIGN, AssignSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded, Unspecified
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, repeating, shape_of, state_words


def assign(
    subject: Subject,
    spec: AssignSpec,
    request_table: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    ids: Sequence[int],
    indptr: Sequence[int],
    how: How = USUAL,
) -> list[list[int]]:
    """Copy the lanes' ids into their rows and return the request table."""
    words = state_words()
    table = request_table
    if not isinstance(table, Guarded):
        table = Guarded(table, torch.int32, subject.device, how.layout("request_table"), shape_of(table))
    arguments: dict[str, Any] = {
        "request_table": table,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "ids": Guarded(ids, torch.int32, subject.device, how.layout("ids")),
        "indptr": Guarded(indptr, spec.indptr_dtype, subject.device, how.layout("indptr")),
        "state": Guarded(words, torch.int64, subject.device) if how.counted else None,
    }
    before = table.before_values()
    rows, counters = oracle.assign(before, req_rows, ids, indptr)
    written: Any = rows
    if repeating(req_rows):
        # A cell that two lanes write holds what one of them writes, each taken alone here, on a table that tells
        # written cells from others even where a lane writes what stood there.
        blank: Any = [[None] * len(row) for row in before]
        one_lane = [[r if i == b else -1 for i, r in enumerate(req_rows)] for b in range(len(req_rows))]
        alone = [oracle.assign(blank, lane, ids, indptr)[0] for lane in one_lane]
        written = Unspecified(lambda got: _one_of(got, before, alone))
    expected = {"request_table": written, "state": counted(words, counters if how.checks != "off" else {})}
    hold(subject, ASSIGN, spec, arguments, expected, how)
    left: list[list[int]] = table.before_values()
    return left


def _one_of(got: list[list[int]], before: list[list[int]], alone: list[list[list[Any]]]) -> str | None:
    for r, row in enumerate(got):
        for c, value in enumerate(row):
            wanted = {written for rows in alone if (written := rows[r][c]) is not None} or {before[r][c]}
            if value not in wanted:
                return f"[{r}, {c}] holds {value}, not one of {sorted(wanted)}"
    return None
