"""An input held against the oracle as a case of the suite is: each function here calls the trial of its operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagebind.words import EPOCH

from pagebind_conformance.guarded import Guarded
from pagebind_conformance.inputs.drawn import Input, Plan
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.advance import advance
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.assign import assign
from pagebind_conformance.trial.bind import bind
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.compact import compact
from pagebind_conformance.trial.evict import evict
from pagebind_conformance.trial.extend import extend_and_tell
from pagebind_conformance.trial.free import free
from pagebind_conformance.trial.read_stream import read_stream
from pagebind_conformance.trial.read_table import Second, read_table, read_tables
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.release import release
from pagebind_conformance.trial.touch import touch
from pagebind_conformance.trial.translate import translate
from pagebind_conformance.trial.truncate import truncate
from pagebind_conformance.trial.unbind import unbind


class Given:
    """An input as trials take it: lists by name, `how`, and what is no tensor as `plain`."""

    def __init__(self, plan: Plan, drawn: Input) -> None:
        self.drawn, self.spec, self.plain = drawn, plan.spec, dict(drawn.plain)
        layouts = {name: one.layout for name, one in drawn.tensors.items()}
        counted = drawn.pool is not None or "state" in drawn.tensors
        self.how = How(layouts, plan.checks, plan.options, counted)

    def named(self, *names: str) -> dict[str, Any]:
        """Return the values of tensors by name; None for each that the input has not."""
        return {name: self.list(name) for name in names}

    def list(self, name: str) -> Any:
        """Return the values of a tensor; None where the input has none of this name, or it is an output."""
        one = self.drawn.tensors.get(name)
        return None if one is None or one.values is None else one.values.tolist()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.drawn.tensors[name].shape

    @property
    def pool(self) -> SubPool:
        """The sub-pool."""
        assert self.drawn.pool is not None
        return self.drawn.pool.listed()


def hold(subject: Subject, plan: Plan, drawn: Input) -> None:
    """Fail unless the backend makes of an input what the oracle says, in tensors of its own."""
    HOLD[plan.operation.name](subject, Given(plan, drawn))


BATCH = ("request_table", "req_rows", "seq_lens", "v2p")


def _read_table(subject: Subject, given: Given) -> None:
    rows, width = given.shape("out")
    first = {**given.named(*BATCH, "starts"), "width": width, "rows": rows, "how": given.how, **given.plain}
    if given.spec.beside is None:
        read_table(subject, given.spec, **first)
        return
    rows, width = given.shape("beside.out")
    counted = "beside.state" in given.drawn.tensors
    second = Second(given.list("beside.v2p"), width, rows, starts=given.list("beside.starts"), counted=counted)
    read_tables(subject, given.spec, second=second, **first)


def _read_stream(subject: Subject, given: Given) -> None:
    plain = {"capacity": given.shape("out")[0], "how": given.how, **given.plain}
    plain["width"] = given.shape("table")[1] if given.spec.with_table else 0
    read_stream(subject, given.spec, **given.named(*BATCH, "indptr", "starts"), **plain)


def _refresh_table(subject: Subject, given: Given) -> None:
    rows, width = given.shape("out")
    table = Refreshed(subject, given.spec, rows, width, given.how, given.list("built"))
    kept = {"epoch": given.list("state")[EPOCH], "stale": True, "garbage": given.drawn.open}
    table.refresh(**given.named(*BATCH, "versions", "first", "starts"), **kept, **given.plain)


def _touch(subject: Subject, given: Given) -> None:
    touch(subject, given.spec, **given.named("versions", "req_rows", "tokens"), how=given.how)


def _bind(subject: Subject, given: Given) -> None:
    bind(subject, given.spec, **given.named("virtual", "physical", "v2p", "p2v"), how=given.how)


def _unbind(subject: Subject, given: Given) -> None:
    unbind(subject, given.spec, **given.named("ids", "v2p", "p2v"), how=given.how)


def _translate(subject: Subject, given: Given) -> None:
    columns = None if len(given.shape("ids")) == 1 else given.shape("ids")[1]
    ids, v2p = given.list("ids"), given.list("v2p")
    flat = ids if columns is None else [cell for row in ids for cell in row]
    translate(subject, given.spec, flat, v2p, columns=columns, in_place=given.drawn.in_place, how=given.how)


def _assign(subject: Subject, given: Given) -> None:
    assign(subject, given.spec, **given.named("request_table", "req_rows", "ids", "indptr"), how=given.how)


def _alloc(subject: Subject, given: Given) -> None:
    asked = given.list("ids") if given.spec.borrowed else given.shape("ids")[0]
    alloc(subject, given.spec, given.pool, asked, how=given.how)


def _free(subject: Subject, given: Given) -> None:
    free(subject, given.spec, given.pool, given.list("ids"), how=given.how, pages=given.plain["pages"])


def _compact(subject: Subject, given: Given) -> None:
    compact(subject, given.spec, given.pool, capacity=given.shape("sources")[0], how=given.how, **given.plain)


def _extend(subject: Subject, given: Given) -> None:
    told = given.shape("new_ids")[0] if given.spec.emits else None
    plain = {"told": told, "capacity": given.shape("slots")[0], "how": given.how, **given.plain}
    lanes = given.named("request_table", "req_rows", "prefix_lens", "indptr")
    extend_and_tell(subject, given.spec, pool=given.pool, **lanes, **plain)


def _advance(subject: Subject, given: Given) -> None:
    told = given.shape("new_ids")[0] if given.spec.emits else None
    table = None
    if given.spec.appends:
        one = given.drawn.tensors["table"]
        table = Guarded.poisoned(one.shape, one.dtype, subject.device, one.layout)
    plain = {"told": told, "table": table, "how": given.how, **given.plain}
    advance(subject, given.spec, pool=given.pool, **given.named("request_table", "req_rows", "seq_lens"), **plain)


def _truncate(subject: Subject, given: Given) -> None:
    plain = {"capacity": given.shape("freed")[0], "how": given.how, **given.plain}
    lanes = given.named("request_table", "req_rows", "seq_lens", "keep_lens")
    truncate(subject, given.spec, pool=given.pool, **lanes, **plain)


def _release(subject: Subject, given: Given) -> None:
    plain = {"capacity": given.shape("freed")[0], "how": given.how, **given.plain}
    lanes = given.named("request_table", "req_rows", "seq_lens", "starts")
    release(subject, given.spec, pool=given.pool, **lanes, **plain)


def _evict(subject: Subject, given: Given) -> None:
    plain = {"capacity": given.shape("freed")[0], "how": given.how, **given.plain}
    lanes = given.named("request_table", "req_rows", "starts", "lens", "first")
    evict(subject, given.spec, pool=given.pool, **lanes, **plain)


HOLD: dict[str, Callable[[Subject, Given], None]] = {
    "read_table": _read_table,
    "read_stream": _read_stream,
    "refresh_table": _refresh_table,
    "touch": _touch,
    "bind": _bind,
    "unbind": _unbind,
    "translate": _translate,
    "assign": _assign,
    "alloc": _alloc,
    "free": _free,
    "compact": _compact,
    "extend": _extend,
    "advance": _advance,
    "truncate": _truncate,
    "release": _release,
    "evict": _evict,
}
