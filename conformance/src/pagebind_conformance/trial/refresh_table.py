"""A table that is refreshed again and again, held against the oracle and against a fresh build.

Before each call its cells are overwritten by a value that no table holds: what is to be written shows, and so does what
was written and had to be kept. What the cells would hold is kept on lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.refresh_table import new_built
from pagebind.words import EPOCH

from pagebind_conformance import oracle
from pagebind_conformance.guarded import POISON, Guarded, Unspecified
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, counted, hold, shape_of, state_words

LIVE = 5
"""Word of `built` that holds what `first` says of the row."""

Cells = list[list[int]]


class Refreshed:
    """One table of `rows` x `width` cells between guard bands, which follows a request table.

    `cells` is what it holds, poison where nothing was ever written; `written` which columns the last call wrote, a list
    for each row; `counted` what it counted; `built` the table's words.
    """

    def __init__(
        self,
        subject: Subject,
        spec: RefreshTableSpec,
        rows: int,
        width: int,
        how: How = USUAL,
        built: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Place a table that was never built, or one whose words are `built`."""
        self.subject, self.spec, self.how, self.width = subject, spec, how, width
        self.poison = POISON[spec.out_dtype]
        words = new_built(rows, width, "cpu")
        placed = words.tolist() if built is None else built
        self.words = Guarded(placed, torch.int32, subject.device, how.layout("built"), tuple(words.shape))
        self.out = Guarded.poisoned((rows, width), spec.out_dtype, subject.device, how.layout("out"))
        self.cells: Cells = self.out.before_values()
        self.written: Cells = [[] for _ in range(rows)]
        self.counted: dict[str, int] = {}

    @property
    def built(self) -> Cells:
        """The words of every row."""
        values: Cells = self.words.before_values()
        return values

    def arguments(
        self,
        request_table: Sequence[Sequence[int]] | Guarded,
        req_rows: Sequence[int] | Guarded,
        seq_lens: Sequence[int] | Guarded,
        v2p: Sequence[int] | Guarded,
        versions: Sequence[Sequence[int]] | Guarded,
        *,
        epoch: int = 0,
        state: Guarded | None = None,
        first: Sequence[int] | Guarded | None = None,
        starts: Sequence[int] | Guarded | None = None,
        seq_len_delta: int = 0,
    ) -> dict[str, Any]:
        """Return a call's arguments, placed between guard bands; a `state` block tells the epoch itself."""
        spec, how, device = self.spec, self.how, self.subject.device

        def place(name: str, values: Any, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Any:
            if values is None or isinstance(values, Guarded):
                return values
            return Guarded(values, dtype, device, how.layout(name), shape)

        words = state_words()
        words[EPOCH] = epoch
        shape = None if isinstance(request_table, Guarded) else shape_of(request_table, self.width)
        pairs = None if isinstance(versions, Guarded) else (len(versions), 2)
        return {
            "request_table": place("request_table", request_table, torch.int32, shape),
            "req_rows": place("req_rows", req_rows, spec.row_dtype),
            "seq_lens": place("seq_lens", seq_lens, spec.length_dtype),
            "v2p": place("v2p", v2p, spec.index_dtype),
            "out": self.out,
            "built": self.words,
            "versions": place("versions", versions, torch.int32, pairs),
            "state": place("state", state or words, torch.int64),
            "first": place("first", first, torch.int32),
            "starts": place("starts", starts, spec.length_dtype),
            "seq_len_delta": seq_len_delta,
        }

    def refresh(
        self,
        *given: Any,
        pool: tuple[SubPool, GuardedPool] | None = None,
        stale: bool = False,
        garbage: bool = False,
        **named: Any,
    ) -> Cells:
        """Bring the table up to date, and return its cells. What is given is as `arguments` takes it.

        With a `pool` and where it lies, its own state block tells the epoch and counts. A `stale` table need not be as
        a fresh one: its rows changed and nothing told it. With `garbage` in its words, a cell that was not written may
        hold anything that it held.
        """
        __tracebackhide__ = True
        arguments = self.arguments(*given, **named)
        if pool is not None:
            arguments |= {"tables": pool[1], "state": pool[1].tables.state}  # `tables` is only compared
        self.spoil()
        epoch = None if pool is None else pool[0].epoch
        expected, self.counted = expected_of(self.spec, arguments, epoch, self.how)
        if pool is not None:
            expected |= pool[1].expected(pool[0], pool[0], self.counted)
        fresh = fresh_of(self.spec, arguments)
        if garbage:
            expected["out"] = Unspecified(lambda got: _kept_or_fresh(got, fresh, self.poison))
        hold(self.subject, REFRESH_TABLE, self.spec, arguments, expected, self.how)

        got: Cells = self.out.before_values()
        self.written = [[c for c, cell in enumerate(row) if cell != self.poison] for row in got]
        for row, columns, values in zip(self.cells, self.written, got, strict=True):
            for c in columns:
                row[c] = values[c]
        if not stale and not garbage:
            self._as_fresh(fresh)
        return self.cells

    def spoil(self) -> None:
        """Overwrite every cell by a value that no table holds."""
        self.out.view.fill_(self.poison)
        self.out.before = self.out.buffer.to("cpu", copy=True)

    def _as_fresh(self, fresh: Cells) -> None:
        __tracebackhide__ = True
        for b, row in enumerate(fresh):
            for c, cell in enumerate(row):
                if cell not in (self.poison, self.cells[b][c]):
                    raise AssertionError(f"out[{b}, {c}] is {self.cells[b][c]} after a refresh and {cell} built anew")


def rewrite(tensor: Guarded, values: Sequence[Any]) -> None:
    """Put other values into a tensor where it lies."""
    tensor.view.copy_(torch.tensor(values, dtype=tensor.view.dtype))
    tensor.before = tensor.buffer.to("cpu", copy=True)


def expected_of(
    spec: RefreshTableSpec, arguments: dict[str, Any], epoch: int | None = None, how: How = USUAL
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the tensors of a call must hold after it, and what it counts; `epoch` None is the state block's."""
    lists = _lists(arguments)
    words = lists.get("state", state_words())
    out, built, counters = oracle.refresh_table(
        **{name: lists[name] for name in ("request_table", "req_rows", "seq_lens", "v2p", "out", "built", "versions")},
        epoch=words[EPOCH] if epoch is None else epoch,
        first=lists.get("first"),
        **_kinds(spec, arguments, lists),
    )
    expected: dict[str, Any] = {"out": out, "built": built}
    expected["state"] = counted(words, counters if how.checks != "off" else {})
    if min(lists.get("first") or [0]) < 0:
        expected["built"] = Unspecified(lambda got: _all_but_live(got, built))
    return expected, counters


def fresh_of(spec: RefreshTableSpec, arguments: dict[str, Any]) -> Cells:
    """Return what a table of poison holds after a full build."""
    lists = _lists(arguments)
    blank = [[POISON[spec.out_dtype]] * len(row) for row in lists["out"]]
    given = {name: lists[name] for name in ("request_table", "req_rows", "seq_lens", "v2p")}
    return oracle.read_table(**given, out=blank, **_kinds(spec, arguments, lists))[0]


def _lists(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.before_values() for name, value in arguments.items() if isinstance(value, Guarded)}


def _kinds(spec: RefreshTableSpec, arguments: dict[str, Any], lists: dict[str, Any]) -> dict[str, Any]:
    kinds: dict[str, Any] = {"page_size": spec.page_size, "form": spec.form, "granularity": spec.granularity}
    kinds |= {"fill": spec.fill, "multiplier": spec.multiplier, "starts": lists.get("starts")}
    return kinds | {"seq_len_delta": arguments["seq_len_delta"]}


def _kept_or_fresh(got: Cells, fresh: Cells, poison: int) -> str | None:
    for b, row in enumerate(fresh):
        for c, cell in enumerate(row):
            if got[b][c] not in (poison, cell):
                return f"[{b}, {c}] holds {got[b][c]}; it may be left alone or be {cell}"
    return None


def _all_but_live(got: Cells, wanted: Cells) -> str | None:
    """Return what differs; how a page below 0 is noted is open."""
    for b, (words, due) in enumerate(zip(got, wanted, strict=True)):
        same = words[LIVE] in (due[LIVE], 0) if due[LIVE] < 0 else words[LIVE] == due[LIVE]
        if not same or words[:LIVE] + words[LIVE + 1 :] != due[:LIVE] + due[LIVE + 1 :]:
            return f"row {b} holds {words}, expected {due}"
    return None
