"""refresh_table: bring a table up to date, with one token appended to each lane since the last time, or all of it.

    steady   the table is built at `length - ROUND`; then refreshed at lengths one larger each time, up to `length`
    all      the table is refreshed by turns under two state blocks whose epochs differ

So every timed call of a steady round has one new column a lane to write (with a page size above 1, one in `page_size`
calls has), and nothing else: what would undo that, a copy of the remembered words from before the round, is outside of
the time. Every timed call of the other kind finds a table of another epoch, and has to write all of its cells. Neither
changes anything between calls on the device, so no time is subtracted. Before it is timed, each kind runs over a table
whose cells it has to write were overwritten, and the whole table is held against the page tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from pagebind import Backend
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.refresh_table import new_built
from pagebind.ops.touch import new_versions
from pagebind.words import EPOCH, new_state

from pagebind_bench.bench.inputs import DTYPES, WORN, Batch, batch
from pagebind_bench.bench.kinds import RefreshCase
from pagebind_bench.bench.lab import Contender, Fault, Lab, Work
from pagebind_bench.bench.timing import Round

ROUND = 128
"""Tokens that a steady round appends to each lane, one a call."""


def contenders(case: RefreshCase, lab: Lab) -> list[Contender]:
    """Return who refreshes the table of a case: ours alone; peers build theirs anew, which read_table's cases time."""

    @cache
    def given() -> Batch:
        return batch(case, lab.device)

    @cache
    def request_table() -> torch.Tensor:
        return given().request_table(case.form)

    def own(backend: Backend) -> Work:
        dtype = DTYPES[case.dtype]
        spec = RefreshTableSpec(
            max_bs=case.bs,
            max_width=given().columns,
            page_size=case.page_size,
            num_physical=given().v2p.shape[0] - 1,
            form=case.form,
            index_dtype=dtype,
        )
        planned = lab.plan(backend, REFRESH_TABLE, spec)
        rows, lens = given().lanes()
        table, v2p, out = request_table(), given().v2p.to(dtype), given().new_table()
        built, versions = new_built(case.bs, given().columns, lab.device), new_versions(case.bs, lab.device)
        states = [new_state(lab.device) for _ in range(2)]
        states[1][EPOCH] = 1

        def refresh(lens: torch.Tensor, state: torch.Tensor) -> Callable[[], None]:
            def call() -> None:
                planned(table, rows, lens, v2p, out=out, built=built, versions=versions, state=state)

            return call

        def moved(entries: int) -> int:
            return REFRESH_TABLE.bytes_moved(spec, lanes=case.bs, items=entries)

        if case.refresh == "all":
            calls = tuple(refresh(lens, state) for state in states)
            for call in (*calls, *calls):  # the first one finds no table at all
                out.fill_(WORN)
                call()
                _need_right(given(), out)
            return Work(calls[1], moved(given().entries), lambda: out, turns=Round(calls), state=states[1])

        steps = [(lens - (ROUND - step)).clamp_(min=0) for step in range(ROUND + 1)]
        calls = tuple(refresh(step, states[0]) for step in steps)
        calls[0]()
        saved = built.clone()

        def rewind() -> None:
            built.copy_(saved)

        appended = 0
        for lane, (first, length) in enumerate(zip(steps[0].tolist(), given().lengths, strict=True)):
            kept = -(-first // case.page_size)
            out[lane, kept:] = WORN
            appended += -(-length // case.page_size) - kept
        for call in calls[1:]:
            call()
        _need_right(given(), out)
        turns = Round(calls[1:], rewind)
        return Work(calls[-1], moved(round(appended / ROUND)), lambda: out, turns=turns, state=states[0])

    return lab.own(own)


def _need_right(given: Batch, table: torch.Tensor) -> None:
    wrong = given.differs(table)
    if wrong is not None:
        raise Fault(wrong)
