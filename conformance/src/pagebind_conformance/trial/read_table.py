"""A read table on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import READ_TABLE, ReadTableSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, shape_of, state_words


def read_table(
    subject: Subject,
    spec: ReadTableSpec,
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    *,
    width: int,
    rows: int | None = None,
    before: int | None = None,
    starts: Sequence[int] | None = None,
    seq_len_delta: int = 0,
    how: How = USUAL,
) -> list[list[int]]:
    """Build a table of `rows` x `width` cells that held `before` (poison), and return it."""
    arguments, expected = read_table_case(
        subject.device, spec, request_table, req_rows, seq_lens, v2p, width, rows, before, starts, seq_len_delta, how
    )
    hold(subject, READ_TABLE, spec, arguments, expected, how)
    values: list[list[int]] = arguments["out"].values()
    return values


def read_table_case(
    device: torch.device,
    spec: ReadTableSpec,
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    width: int,
    rows: int | None = None,
    before: int | None = None,
    starts: Sequence[int] | None = None,
    seq_len_delta: int = 0,
    how: How = USUAL,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the call's arguments, placed between guard bands, and what they must hold after it."""
    words = state_words()

    def place(name: str, values: Sequence[Any], dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Guarded:
        return Guarded(values, dtype, device, how.layout(name), shape)

    rows = len(req_rows) if rows is None else rows
    out = [[POISON[spec.out_dtype] if before is None else before] * width for _ in range(rows)]
    arguments: dict[str, Any] = {
        "request_table": place("request_table", request_table, torch.int32, shape_of(request_table, width)),
        "req_rows": place("req_rows", req_rows, spec.row_dtype),
        "seq_lens": place("seq_lens", seq_lens, spec.length_dtype),
        "v2p": place("v2p", v2p, spec.index_dtype),
        "out": place("out", out, spec.out_dtype, (rows, width)),
        "starts": None if starts is None else place("starts", starts, spec.length_dtype),
        "seq_len_delta": seq_len_delta,
        "state": place("state", words, torch.int64) if how.counted else None,
    }
    after, counters = oracle.read_table(
        request_table,
        req_rows,
        seq_lens,
        v2p,
        out,
        page_size=spec.page_size,
        form=spec.form,
        granularity=spec.granularity,
        fill=spec.fill,
        multiplier=spec.multiplier,
        starts=starts,
        seq_len_delta=seq_len_delta,
    )
    return arguments, {"out": after, "state": counted(words, counters if how.checks != "off" else {})}
