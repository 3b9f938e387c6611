"""A read table on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from pagebind.ops import READ_TABLE, ReadTableSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedSecond, How, counted, hold, shape_of, state_words


class Second(NamedTuple):
    """A second table of a call; fields as the arguments for the first. Layouts go by names such as `beside.out`."""

    v2p: Sequence[int]
    width: int
    rows: int | None = None
    before: int | None = None
    starts: Sequence[int] | None = None
    counted: bool = True
    counts_in_first: bool = False
    """Whether it is given the state block of the first table, not one of its own."""


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


def read_tables(
    subject: Subject,
    spec: ReadTableSpec,
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    second: Second,
    *,
    how: How = USUAL,
    **first: Any,
) -> tuple[list[list[int]], list[list[int]]]:
    """Build two tables in one call, and return both."""
    batch = request_table, req_rows, seq_lens
    arguments, expected = read_tables_case(subject.device, spec, *batch, v2p, second, how=how, **first)
    hold(subject, READ_TABLE, spec, arguments, expected, how)
    return arguments["out"].values(), arguments["beside"].fields["out"].values()


def read_tables_case(
    device: torch.device,
    spec: ReadTableSpec,
    request_table: Sequence[Sequence[int]],
    req_rows: Sequence[int],
    seq_lens: Sequence[int],
    v2p: Sequence[int],
    second: Second,
    *,
    how: How = USUAL,
    **first: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call with a second table, and what they must hold: of two calls, one for each."""
    batch = request_table, req_rows, seq_lens
    arguments, expected = read_table_case(device, replace(spec, beside=None), *batch, v2p, how=how, **first)
    alone = replace(
        how,
        layouts={name.removeprefix("beside."): one for name, one in (how.layouts or {}).items() if "beside." in name},
        counted=how.counted and second.counted,
    )
    other, wanted = read_table_case(
        device,
        spec.second(),
        *batch,
        second.v2p,
        second.width,
        second.rows,
        second.before,
        second.starts,
        first.get("seq_len_delta", 0),
        alone,
    )
    fields = {name: other[name] for name in ("v2p", "out", "starts", "state")}
    if second.counts_in_first and arguments["state"] is not None:
        fields["state"] = arguments["state"]
        untouched = state_words()
        added = [after - before for after, before in zip(wanted.pop("state"), untouched, strict=True)]
        expected["state"] = [word + more for word, more in zip(expected["state"], added, strict=True)]
        expected["beside.state"] = expected["state"]
    arguments["beside"] = GuardedSecond(**fields)
    return arguments, {**expected, **{f"beside.{name}": values for name, values in wanted.items()}}


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
