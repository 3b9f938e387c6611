"""A read stream on lists, with or without its table, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from pagebind.ops import READ_STREAM, ReadStreamSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded, Unspecified
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, shape_of, state_words


def read_stream(
    subject: Subject,
    spec: ReadStreamSpec,
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    indptr: Sequence[int],
    *,
    capacity: int,
    width: int = 0,
    starts: Sequence[int] | None = None,
    seq_len_delta: int = 0,
    how: How = USUAL,
) -> tuple[list[int], list[list[int]] | None]:
    """Pack a stream of `capacity` items, and with plans that have one a table of `width` columns; return both."""
    poison = POISON[spec.out_dtype]
    out = [poison] * capacity
    table = [[poison] * width for _ in req_rows] if spec.with_table else None
    words = state_words()

    def place(name: str, values: Sequence[Any], dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Guarded:
        return Guarded(values, dtype, subject.device, how.layout(name), shape)

    arguments: dict[str, Any] = {
        "request_table": place("request_table", request_table, torch.int32, shape_of(request_table, width)),
        "req_rows": place("req_rows", req_rows, spec.row_dtype),
        "seq_lens": place("seq_lens", seq_lens, spec.length_dtype),
        "v2p": place("v2p", v2p, spec.index_dtype),
        "indptr": place("indptr", indptr, spec.indptr_dtype),
        "out": place("out", out, spec.out_dtype),
        "starts": None if starts is None else place("starts", starts, spec.length_dtype),
        "table": None if table is None else place("table", table, spec.out_dtype, (len(req_rows), width)),
        "seq_len_delta": seq_len_delta,
        "state": place("state", words, torch.int64) if how.counted else None,
    }

    def expect(rows: Sequence[int]) -> tuple[list[int], list[list[int]] | None, dict[str, int]]:
        return oracle.read_stream(
            request_table,
            rows,
            seq_lens,
            v2p,
            indptr,
            out,
            page_size=spec.page_size,
            form=spec.form,
            granularity=spec.granularity,
            multiplier=spec.multiplier,
            starts=starts,
            table=table,
            seq_len_delta=seq_len_delta,
        )

    after, shown, counters = expect(req_rows)
    expected: dict[str, Any] = {"out": after, "table": shown}
    if any(low > high for low, high in pairwise(indptr)):
        # Parts may overlap: a cell holds what one of the lanes that share it writes, each taken alone here.
        alone = [expect([r if i == b else -1 for i, r in enumerate(req_rows)])[0] for b in range(len(req_rows))]
        expected["out"] = Unspecified(lambda got: _one_of(got, alone, poison))
    expected["state"] = counted(words, counters if how.checks != "off" else {})
    hold(subject, READ_STREAM, spec, arguments, expected, how)
    table_after = arguments["table"].values() if spec.with_table else None
    return arguments["out"].values(), table_after


def _one_of(got: list[int], alone: list[list[int]], poison: int) -> str | None:
    for i, value in enumerate(got):
        written = {lane[i] for lane in alone if lane[i] != poison} or {poison}
        if value not in written:
            return f"cell {i} holds {value}, which no lane writes there; they write {sorted(written)}"
    return None
