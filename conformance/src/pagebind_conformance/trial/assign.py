"""An assignment on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import ASSIGN, AssignSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, shape_of, state_words


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
    rows, counters = oracle.assign(table.before_values(), req_rows, ids, indptr)
    expected = {"request_table": rows, "state": counted(words, counters if how.checks != "off" else {})}
    hold(subject, ASSIGN, spec, arguments, expected, how)
    return rows
