"""A refreshed table beside the state machine: brought up to date after every step, held against a fresh build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from pagebind.ops import RefreshTableSpec, TouchSpec

from pagebind_conformance.guarded import Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import GuardedPool
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.touch import touch


class Follower:
    """What follows the rows of a request table: their words, one table, and which pages it showed last."""

    def __init__(self, subject: Subject, spec: RefreshTableSpec, rows: int, width: int) -> None:
        """Begin with a table that was never built, and versions about to wrap around."""
        subject = replace(subject, composed=True)  # a backend without these two takes part with its composed forms
        self.subject, self.steps = subject, 0
        self.touches = TouchSpec(max_bs=rows)
        self.page_size = spec.page_size
        self.versions = Guarded([[2**31 - 1 - r, 7] for r in range(rows)], torch.int32, subject.device)
        self.table = Refreshed(subject, spec, rows + 1, width)
        self.shown: list[list[int]] = [[] for _ in range(rows)]  # the physical page of every page of a row
        self.epoch: int | None = None

    def follow(
        self,
        rows: Guarded,
        lens: Sequence[int],
        pages: Sequence[Sequence[int]],
        pool: SubPool,
        placed: GuardedPool,
        changed: Mapping[int, int],
    ) -> None:
        """Tell of the rows that `changed`, from a token on, and refresh.

        `pages` are the physical pages of every row. One that shows another page where nothing raised the epoch holds an
        id that another row gave back, or that was moved by hand: that is told too.
        """
        told = dict(changed)
        for r, (before, now) in enumerate(zip(self.shown, pages, strict=True)):
            differing = [q for q, (old, new) in enumerate(zip(before, now, strict=False)) if old != new]
            if differing and self.epoch == pool.epoch:
                told[r] = min(told.get(r, differing[0] * self.page_size), differing[0] * self.page_size)
        if told:
            touch(self.subject, self.touches, self.versions, list(told), list(told.values()))
        self.shown, self.epoch = [list(row) for row in pages], pool.epoch

        self.steps += 1
        lanes = list(range(len(lens)))
        if self.steps % 4 == 0:  # now and then, lanes move and go
            turn = self.steps // 4 % 3
            lanes = [*lanes[turn:], *lanes[: turn // 2]]
        self.table.refresh(
            rows, lanes, [lens[r] for r in lanes], placed.parts["v2p"], self.versions, pool=(pool, placed)
        )
