"""Inputs of what changes rows of a request table: extend, advance, truncate, release, evict."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pagebind_conformance.inputs.draw import PAST, Draw
from pagebind_conformance.inputs.drawn import Cells, Input, Ints, Pool, cells, poison
from pagebind_conformance.inputs.of_ids import repeating
from pagebind_conformance.oracle.evict import ids_to_evict
from pagebind_conformance.trial.truncate import ids_to_free


class Held:
    """Lanes whose rows hold live pages of a sub-pool, no page twice, in rows of the request table in any order."""

    def __init__(self, draw: Draw, spec: Any, *, longest: int | None = None, borrowed: bool = False) -> None:
        """Draw lanes of up to `longest` tokens, a row where None; pages of a sub-pool that `borrowed` is lost in part.

        Garbage in rows names no id that a call could bind; that lanes then name one page is open for those that free.
        """
        self.draw, self.spec = draw, spec
        ps = spec.page_size
        self.lanes = draw.size(8, 80, spec.max_bs)
        width = draw.size(40, 120, 24)
        self.tokens = width * (1 if spec.form == "token" else ps)
        self.wild = draw.one((0.0, 0.0, 0.15))
        most = self.tokens if longest is None else min(longest, self.tokens)
        self.lens = draw.lengths(self.lanes, most, spec.length_dtype, self.wild)
        held = -(-np.clip(self.lens, 0, self.tokens) // ps)
        self.pool = self._pool(int(held.sum()))
        if borrowed:
            self.pool = draw.borrowing(self.pool, 0.2)
        by_lane = self._table(max(self.lanes + draw.one((0, 0, 3)), 1), width, held)
        row_of = draw.rng.permutation(len(by_lane))
        self.table: Ints = np.empty_like(by_lane)
        self.table[row_of] = by_lane
        outside = np.full(self.lanes, -1, dtype=np.int64)
        if self.wild and self.lanes:
            outside[draw.upto(0, self.lanes - 1)] = len(by_lane)
        self.rows = np.where(draw.rng.random(self.lanes) < self.wild, outside, row_of[: self.lanes])

    def _pool(self, held: int) -> Pool:
        draw = self.draw
        if not draw.scale and draw.chance(0.3):
            return draw.chained(draw.upto(0, 60), 120)
        most = 250 if draw.small else 8000
        spare = min(draw.one((0, draw.upto(0, 20), self.lanes * 2)), most // 10)
        live = min(held + draw.upto(0, 5), most)
        num = draw.upto(4, 120) if not draw.scale and draw.chance(0.4) else live + spare + 2
        pool = draw.sub_pool(num + draw.upto(0, 9), num, live, draw.upto(0, spare // 2 + 1))
        return draw.bound_by_hand(pool) if not draw.scale and draw.chance(0.08) else pool

    def _table(self, rows: int, width: int, held: Ints) -> Ints:
        """Return rows in the order of the lanes: pages as far as they are held, behind them holes or ids past all."""
        draw, spec = self.draw, self.spec
        self.live = draw.rng.permutation(np.flatnonzero(self.pool.v2p > 0))
        in_row = -(-width // spec.page_size) if spec.form == "token" else width
        pages = np.full((rows, in_row), -1, dtype=np.int64)
        held = np.concatenate([held, np.zeros(rows - self.lanes, dtype=held.dtype)])
        mask = np.arange(in_row)[None, :] < held[:, None]
        ids = np.full(int(mask.sum()), -1, dtype=np.int64)
        some = self.live[: len(ids)]
        ids[: len(some)] = some
        pages[mask] = ids
        table = draw.spread(pages, spec.page_size)[:, :width] if spec.form == "token" else pages
        if self.wild and table.size:
            at = draw.rng.random(table.shape) < 0.03
            unit = spec.page_size if spec.form == "token" else 1
            junk = np.where(draw.rng.random(int(at.sum())) < 0.5, -3, (PAST + np.arange(int(at.sum()))) * unit)
            if not draw.scale and len(self.live):
                again = draw.rng.random(len(junk)) < 0.3
                junk[again] = self.live[draw.rng.integers(0, len(self.live), int(again.sum()))] * unit
            table[at] = junk
        return table

    def tensors(self, lens: str = "seq_lens") -> dict[str, Cells]:
        """Return the request table, the rows and the lengths, which the operation calls `lens`."""
        draw, spec = self.draw, self.spec
        return {
            "request_table": cells(self.table, torch.int32, draw.layout()),
            "req_rows": cells(self.rows, spec.row_dtype, draw.layout()),
            lens: cells(self.lens, spec.length_dtype, draw.layout()),
        }

    def lengths(self) -> Ints:
        """Return other lengths of the lanes."""
        return self.draw.lengths(self.lanes, self.tokens, self.spec.length_dtype, self.wild)

    def emitted(self, tokens: int) -> dict[str, Cells]:
        """Return what a plan that emits writes: `tokens` token ids, and room for some new pages."""
        draw, dtype = self.draw, self.spec.id_dtype
        room = draw.one((0, 3, 60, self.lanes))
        sizes = {"token_ids": tokens, "new_ids": room, "new_pages": room}
        return {name: poison(dtype, size, layout=draw.layout()) for name, size in sizes.items()}


def extend(draw: Draw, spec: Any) -> Input:
    """Draw an extension; parts never share a slot, and no row goes on in a page that the call may bind."""
    held = Held(draw, spec, longest=12)
    lanes = held.lanes
    sizes = draw.rng.choice([0, 1, 3, 9] if draw.scale < 2 else [0, 1, 2, 5], lanes)
    indptr = draw.offsets(sizes, spec.indptr_dtype, slack=1)
    capacity = max(min(int(indptr[-1]), spec.max_tokens) - draw.one((0, 0, 3)), 0)
    if held.wild and lanes and draw.chance(0.5):  # an end outside of the slots, or a part that goes back to nothing
        at = draw.one((0, lanes))
        indptr[at] = draw.one((-1, -9)) if at == 0 else draw.one((capacity + 5, 2**30))
    tensors = {
        **held.tensors("prefix_lens"),
        "indptr": cells(indptr, spec.indptr_dtype, draw.layout()),
        "slots": poison(spec.out_dtype, capacity, layout=draw.layout()),
    }
    if spec.emits:
        tensors |= held.emitted(capacity)
    return Input(tensors, {"pages": draw.one((None, None, 3))}, pool=held.pool)


def advance(draw: Draw, spec: Any) -> Input:
    """Draw a decode step; a third of the lanes begin a page."""
    held = Held(draw, spec, longest=3 * spec.page_size)
    if held.lanes and draw.chance(0.5):
        begins = (held.lens >= 0) & (held.lens <= held.tokens) & (draw.rng.random(held.lanes) < 0.33)
        held.lens = np.where(begins, held.lens // spec.page_size * spec.page_size, held.lens)
    tensors = held.tensors() | {"slots": poison(spec.out_dtype, held.lanes, layout=draw.layout())}
    if spec.emits:
        tensors |= held.emitted(held.lanes)
    if spec.appends:
        columns = -(-held.tokens // (spec.page_size if spec.granularity == "page" else 1))
        width = draw.upto(0, min(columns + 1, 400)) if draw.chance(0.4) else min(columns, 400)
        tensors["table"] = poison(spec.table_dtype, held.lanes + draw.upto(0, 3), width, layout=draw.layout())
    return Input(tensors, {"pages": draw.one((None, None, 3))}, pool=held.pool)


def truncate(draw: Draw, spec: Any) -> Input:
    """Draw a truncation."""
    held = Held(draw, spec)
    keep = held.lengths()
    return _cut(draw, held, keep, {"keep_lens": cells(keep, spec.length_dtype, draw.layout())})


def release(draw: Draw, spec: Any) -> Input:
    """Draw a release."""
    held = Held(draw, spec)
    if not spec.shared:
        return _cut(draw, held, np.zeros(held.lanes, dtype=np.int64), {})
    starts = np.where(draw.rng.random(held.lanes) < 0.5, held.lengths(), 0)
    return _cut(draw, held, starts, {"starts": cells(starts, spec.length_dtype, draw.layout())})


def _cut(draw: Draw, held: Held, keep: Ints, more: dict[str, Cells]) -> Input:
    spec, capacity = held.spec, _capacity(draw, held)
    open_ = False
    if held.wild and not draw.scale:
        lanes = (held.table.tolist(), held.rows.tolist(), held.lens.tolist(), keep.tolist())
        open_ = repeating(np.array(ids_to_free(*lanes, capacity, spec.page_size, spec.form), dtype=np.int64))
    tensors = held.tensors() | more | {"freed": poison(spec.id_dtype, capacity, layout=draw.layout())}
    return Input(tensors, {"pages": draw.one((None, None, 3))}, pool=held.pool, open=open_)


def evict(draw: Draw, spec: Any) -> Input:
    """Draw an eviction of a part of each row, of whose window some pages have gone."""
    held = Held(draw, spec, borrowed=True)
    starts = np.where(draw.rng.random(held.lanes) < 0.3, held.lengths(), 0)
    first = draw.spoil(draw.rng.integers(0, 9, len(held.table)), 0.5, (0, 0, 0, -1, 2**31 - 1, -(2**31)))
    capacity = _capacity(draw, held)
    open_ = False
    if held.wild and not draw.scale:
        lanes = (held.table.tolist(), held.rows.tolist(), starts.tolist(), held.lens.tolist(), first.tolist())
        kinds = {"part": spec.part, "page_size": spec.page_size, "form": spec.form}
        open_ = repeating(np.array(ids_to_evict(*lanes, capacity, **kinds)[0], dtype=np.int64))
    tensors = held.tensors("lens") | {
        "starts": cells(starts, spec.length_dtype, draw.layout()),
        "first": cells(first, torch.int32, draw.layout()),
        "freed": poison(spec.id_dtype, capacity, layout=draw.layout()),
    }
    return Input(tensors, {"pages": draw.one((None, None, 3))}, pool=held.pool, open=open_)


def _capacity(draw: Draw, held: Held) -> int:
    most: int = held.spec.max_pages
    return min(draw.one((draw.upto(0, 60), held.lanes * 4, 4000)), most)
