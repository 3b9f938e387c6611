"""An unbinding on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pagebind.ops import UNBIND, UnbindSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, How, counted, hold, released, state_words


def unbind(
    subject: Subject,
    spec: UnbindSpec,
    ids: Sequence[int],
    v2p: Sequence[int],
    p2v: Sequence[int],
    how: How = USUAL,
) -> tuple[list[int], list[int], list[int]]:
    """Unbind the ids and return `v2p`, `p2v` and `freed`."""
    words = state_words()
    arguments: dict[str, Any] = {
        "ids": Guarded(ids, spec.id_dtype, subject.device, how.layout("ids")),
        "v2p": Guarded(v2p, spec.index_dtype, subject.device, how.layout("v2p")),
        "p2v": Guarded(p2v, spec.index_dtype, subject.device, how.layout("p2v")),
        "freed": Guarded.poisoned((len(ids),), spec.id_dtype, subject.device, how.layout("freed")),
        "state": Guarded(words, torch.int64, subject.device) if how.counted else None,
    }
    new_v2p, new_p2v, freed, counters = oracle.unbind(ids, v2p, p2v)
    expected = {
        "v2p": new_v2p,
        "p2v": new_p2v,
        "freed": released(freed, ids),
        "state": counted(words, counters if how.checks != "off" else {}),
    }
    hold(subject, UNBIND, spec, arguments, expected, how)
    return new_v2p, new_p2v, arguments["freed"].values()
