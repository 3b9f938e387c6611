"""A touch on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import TOUCH, TouchSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded, Unspecified
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, state_words

VERSION_WORDS = 2


def touch(
    subject: Subject,
    spec: TouchSpec,
    versions: Sequence[Sequence[int]] | Guarded,
    req_rows: Sequence[int],
    tokens: Sequence[int],
    how: How = USUAL,
) -> list[list[int]]:
    """Tell that rows changed; return `versions`, as the backend left them where a row stands in several lanes."""
    words = state_words()
    told = versions
    if not isinstance(told, Guarded):
        layout = how.layout("versions")
        told = Guarded(told, torch.int32, subject.device, layout, (len(told), VERSION_WORDS))
    arguments: dict[str, Any] = {
        "versions": told,
        "req_rows": Guarded(req_rows, spec.row_dtype, subject.device, how.layout("req_rows")),
        "tokens": Guarded(tokens, spec.length_dtype, subject.device, how.layout("tokens")),
        "state": Guarded(words, torch.int64, subject.device) if how.counted else None,
    }
    before = told.before_values()
    after, counters = oracle.touch(before, req_rows, tokens)
    written: Any = after
    inside = [r for r in req_rows if 0 <= r < len(before)]
    if len(set(inside)) < len(inside):
        written = Unspecified(lambda got: _one_of_each(got, before, after, req_rows, tokens))
    expected = {"versions": written, "state": counted(words, counters if how.checks != "off" else {})}
    hold(subject, TOUCH, spec, arguments, expected, how)
    left: list[list[int]] = told.before_values()
    return left


def _one_of_each(
    got: list[list[int]],
    before: list[list[int]],
    after: list[list[int]],
    req_rows: Sequence[int],
    tokens: Sequence[int],
) -> str | None:
    for r, (words, wanted) in enumerate(zip(got, after, strict=True)):
        if words[0] != wanted[0]:
            return f"row {r} has version {words[0]}, expected {wanted[0]}"
        noted = [oracle.touch(before, [r], [n])[0][r][1] for row, n in zip(req_rows, tokens, strict=True) if row == r]
        if words[1] not in (noted or [before[r][1]]):
            return f"row {r} notes token {words[1]}, not one of {noted or [before[r][1]]}"
    return None
