"""A binding on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import BIND, BindSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, call, counted, hold, repeating, state_words


def bind(
    subject: Subject,
    spec: BindSpec,
    virtual: Sequence[int],
    physical: Sequence[int],
    v2p: Sequence[int],
    p2v: Sequence[int],
    how: How = USUAL,
) -> tuple[list[int], list[int]]:
    """Bind the pairs and return both tables; where a page repeats among the lanes, the invariants are held instead."""
    words = state_words()
    arguments: dict[str, Any] = {
        "virtual": Guarded(virtual, spec.id_dtype, subject.device, how.layout("virtual")),
        "physical": Guarded(physical, spec.id_dtype, subject.device, how.layout("physical")),
        "v2p": Guarded(v2p, spec.index_dtype, subject.device, how.layout("v2p")),
        "p2v": Guarded(p2v, spec.index_dtype, subject.device, how.layout("p2v")),
        "state": Guarded(words, torch.int64, subject.device) if how.counted else None,
    }
    pairs = [(v, p) for v, p in zip(virtual, physical, strict=True) if v >= 0]
    if repeating([v for v, _ in pairs]) or repeating([p for _, p in pairs]):
        call(subject.plan(BIND, spec, how.checks, how.options), BIND, arguments)
        after = arguments["v2p"].values(), arguments["p2v"].values()
        served = one_each(pairs, v2p, p2v, *after)
        counters = {"bad_bind": len(pairs) - served}
    else:
        *wanted, counters = oracle.bind(virtual, physical, v2p, p2v)
        expected = {"v2p": wanted[0], "p2v": wanted[1]}
        expected["state"] = counted(words, counters if how.checks != "off" else {})
        hold(subject, BIND, spec, arguments, expected, how)
        return wanted[0], wanted[1]
    for name, table in zip(("v2p", "p2v"), after, strict=True):
        arguments[name].verify(name, table)
    for name in ("virtual", "physical"):
        arguments[name].verify(name)
    if how.counted:
        arguments["state"].verify("state", counted(words, counters if how.checks != "off" else {}))
    return after


def one_each(
    pairs: Sequence[tuple[int, int]],
    v2p: Sequence[int],
    p2v: Sequence[int],
    new_v2p: Sequence[int],
    new_p2v: Sequence[int],
) -> int:
    """Hold that of the lanes repeating a page at most one was served, and at least one where its pages were free.

    Returns how many pairs were served.
    """
    changed = {(v, p) for v, p in enumerate(new_v2p) if v2p[v] != p}
    backwards = {(v, p) for p, v in enumerate(new_p2v) if p2v[p] != v}
    assert changed == backwards, f"the tables are not inverse: v2p gained {changed}, p2v {backwards}"
    assert changed <= set(pairs), f"{changed - set(pairs)} were bound and asked for by nobody"
    assert all(v2p[v] == -1 and p2v[p] == -1 for v, p in changed), f"{changed} were bound over bound ones"
    for v, p in set(pairs):
        others = [q for q in pairs if q[0] == v or q[1] == p]
        free = 0 < v < len(v2p) - 1 and 0 < p < len(p2v) - 1 and v2p[v] == -1 and p2v[p] == -1
        if free and set(others) == {(v, p)}:
            assert (v, p) in changed, f"the pair {(v, p)} could be bound, and no lane was served"
    return len(changed)
