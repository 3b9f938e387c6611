"""A translation on lists, 1-D or 2-D, apart or in place, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import TRANSLATE, TranslateSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, state_words


def translate(
    subject: Subject,
    spec: TranslateSpec,
    ids: Sequence[int],
    v2p: Sequence[int],
    *,
    columns: int | None = None,
    in_place: bool = False,
    how: How = USUAL,
) -> list[int]:
    """Translate `ids`, as a matrix where `columns` is given, and return the entries row after row."""
    words = state_words()

    def shaped(cells: Sequence[int]) -> list[Any]:
        if columns is None:
            return list(cells)
        return [list(cells[i : i + columns]) for i in range(0, len(cells), columns)]

    shape = (len(ids),) if columns is None else (len(ids) // max(columns, 1), columns)
    source = Guarded(shaped(ids), spec.id_dtype, subject.device, how.layout("ids"), shape)
    out = source if in_place else Guarded.poisoned(shape, spec.out_dtype, subject.device, how.layout("out"))
    arguments: dict[str, Any] = {
        "ids": source,
        "v2p": Guarded(v2p, spec.index_dtype, subject.device, how.layout("v2p")),
        "out": out,
        "state": Guarded(words, torch.int64, subject.device) if how.counted else None,
    }
    entries, counters = oracle.translate(
        ids, v2p, page_size=spec.page_size, multiplier=spec.multiplier, ranks=spec.ranks, rank=spec.rank
    )
    expected = {"out": shaped(entries), "state": counted(words, counters if how.checks != "off" else {})}
    if in_place:
        expected["ids"] = expected["out"]
    hold(subject, TRANSLATE, spec, arguments, expected, how)
    return entries
