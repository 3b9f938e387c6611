"""Inputs of what reads a request table: read_table, read_stream, refresh_table; and of touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pagebind.ops.refresh_table import BUILT_LIVE, BUILT_WORDS
from pagebind.words import EPOCH

from pagebind_conformance.inputs.draw import Draw
from pagebind_conformance.inputs.drawn import Cells, Input, Ints, cells, poison
from pagebind_conformance.trial.call import state_words

MOST = 2**31 - 1


def state(draw: Draw, epoch: int = 0, *, always: bool = False) -> dict[str, Cells]:
    """Return a state block, now and then none."""
    if not always and draw.chance(0.1):
        return {}
    words = state_words()
    words[EPOCH] = epoch
    return {"state": cells(words, torch.int64)}


def batch(draw: Draw, spec: Any, *, clean: bool = False) -> tuple[dict[str, Cells], int, int, int]:
    """Return a request table, rows and `v2p`; and the lanes, the tokens of a row, and how many tokens a column has.

    A `clean` request table names no id that is past the table.
    """
    lanes = draw.size(9, 80, spec.max_bs)
    widest = 70 if draw.small or not draw.scale else 600 if draw.scale == 1 else draw.one((12, 40))
    if draw.scale == 2 and draw.chance(0.3):  # few lanes of very many cells
        lanes, widest = draw.upto(1, 5), spec.max_width
    unit = spec.page_size if spec.granularity == "page" else 1
    if spec.form == "page":
        widest = max(widest * unit // spec.page_size, 1)
    width = draw.upto(1, min(widest, spec.max_width))
    num = draw.upto(2, min(draw.one((20, 80, 400)) if draw.scale == 0 else spec.num_physical, spec.num_physical) - 1)
    requests = draw.upto(1, max(lanes, 1))
    garbage = 0.0 if clean else draw.one((0.0, 0.02, 0.1))
    table = draw.request_table(requests, width, spec.page_size, spec.form, num, garbage)
    tensors = {
        "request_table": cells(table, torch.int32, draw.layout()),
        "req_rows": cells(draw.any_rows(lanes, requests), spec.row_dtype, draw.layout()),
        "v2p": cells(draw.page_table(num, spec.num_physical), spec.index_dtype, draw.layout()),
    }
    return tensors, lanes, width * (spec.page_size if spec.form == "page" else 1), unit


def _columns(draw: Draw, spec: Any, tokens: int, unit: int) -> int:
    most: int = spec.max_width
    return max(min(-(-tokens // unit) - draw.one((0, 0, draw.upto(0, 5))), most), 1)


def _starts(draw: Draw, lanes: int, tokens: int, spec: Any) -> Cells:
    return cells(draw.lengths(lanes, tokens, spec.length_dtype), spec.length_dtype, draw.layout())


def read_table(draw: Draw, spec: Any) -> Input:
    """Draw a build of a table, or of two."""
    tensors, lanes, tokens, unit = batch(draw, spec)
    width = _columns(draw, spec, tokens, unit)
    lens = draw.lengths(lanes, width * unit, spec.length_dtype)
    tensors["seq_lens"] = cells(lens, spec.length_dtype, draw.layout())
    tensors["out"] = poison(spec.out_dtype, lanes + draw.upto(0, 2), width, layout=draw.layout())
    if spec.windowed:
        tensors["starts"] = _starts(draw, lanes, tokens, spec)
    tensors |= state(draw)
    if spec.beside is not None:
        num = tensors["v2p"].shape[0] - 1
        second = {
            "v2p": cells(draw.page_table(num, spec.beside.num_physical), spec.index_dtype, draw.layout()),
            "out": poison(
                spec.out_dtype, lanes + draw.upto(0, 2), _columns(draw, spec, tokens, unit), layout=draw.layout()
            ),
        }
        if spec.beside.windowed:
            second["starts"] = _starts(draw, lanes, tokens, spec)
        if "state" in tensors:
            second |= state(draw)
        tensors |= {f"beside.{name}": cell for name, cell in second.items()}
    return Input(tensors, {"seq_len_delta": draw.upto(-3, 9)})


def read_stream(draw: Draw, spec: Any) -> Input:
    """Draw a stream; its parts are a little too small or too large now and then, or nonsense."""
    tensors, lanes, tokens, unit = batch(draw, spec)
    wild = draw.one((0.0, 0.0, 0.1)) if not draw.scale else 0.0
    lens = draw.lengths(lanes, tokens, spec.length_dtype)
    items = -(-np.clip(lens, 0, tokens) // unit) + draw.rng.integers(-1, 3, lanes)
    indptr = draw.offsets(np.maximum(items, 0), spec.indptr_dtype, wild, slack=1)
    capacity = max(min(max(int(indptr[-1]), 0), 4096 if not draw.scale else spec.max_items) - draw.one((0, 0, 0, 5)), 0)
    tensors |= {
        "seq_lens": cells(lens, spec.length_dtype, draw.layout()),
        "indptr": cells(indptr, spec.indptr_dtype, draw.layout()),
        "out": poison(spec.out_dtype, min(capacity, spec.max_items), layout=draw.layout()),
    }
    if spec.windowed:
        tensors["starts"] = _starts(draw, lanes, tokens, spec)
    if spec.with_table:
        tensors["table"] = poison(spec.out_dtype, lanes, _columns(draw, spec, tokens, unit), layout=draw.layout())
    overlapping = bool((np.diff(indptr.astype(object)) < 0).any()) if wild else False
    return Input(tensors | state(draw), {"seq_len_delta": draw.upto(-3, 9)}, open=overlapping)


def refresh_table(draw: Draw, spec: Any) -> Input:
    """Draw a refresh of a table whose words a refresh may have left, or of one whose words are garbage.

    Words past BUILT_LIVE are 0 in all that `new_built` makes, and no call reads them: they stay 0.
    """
    open_ = not draw.scale and draw.chance(0.08)  # its words are garbage, and which cells are written is open
    tensors, lanes, tokens, unit = batch(draw, spec, clean=open_)
    width, requests = _columns(draw, spec, tokens, unit), tensors["request_table"].shape[0]
    rows, pages = lanes + draw.upto(0, 2), -(-tokens // spec.page_size)
    versions = np.stack([draw.rng.choice([0, MOST, -MOST - 1, 7], requests), draw.rng.integers(0, 99, requests)], 1)
    first = draw.rng.integers(0, pages + 1, requests)
    epoch = draw.one((0, 5, 5, MOST, MOST + 7, 2**33 + 5))
    built = _built(draw, rows, width, versions, first if spec.borrowed else np.zeros_like(first), pages, epoch)
    believed = draw.rng.random(lanes) < 0.8
    req_rows = np.where(believed, built[:lanes, 0], draw.any_rows(lanes, requests))
    if open_:
        built[:, : BUILT_LIVE + 1] = draw.spoil(built[:, : BUILT_LIVE + 1], 0.3, (-1, 1, width + 9, MOST, -MOST - 1))
        first = draw.spoil(first, 0.3, (-1, MOST, -MOST - 1))
    lens = draw.lengths(lanes, width * unit, spec.length_dtype)
    tensors |= {
        "req_rows": cells(req_rows, spec.row_dtype, draw.layout()),
        "seq_lens": cells(lens, spec.length_dtype, draw.layout()),
        "out": poison(spec.out_dtype, rows, width, layout=draw.layout()),
        "built": cells(built, torch.int32),
        "versions": cells(versions, torch.int32),
    }
    if spec.windowed:
        tensors["starts"] = _starts(draw, lanes, tokens, spec)
    if spec.borrowed:
        tensors["first"] = cells(first, torch.int32, draw.layout())
    tensors |= state(draw, epoch, always=True)
    return Input(tensors, {"seq_len_delta": draw.one((0, 0, 3, -2))}, open=open_)


def _built(draw: Draw, rows: int, width: int, versions: Ints, first: Ints, pages: int, epoch: int) -> Ints:
    rng = draw.rng
    row = rng.integers(-1, len(versions), rows)
    ahead = rng.choice([0, 1, 1, 2, -1], rows)
    begin = rng.integers(0, width + 1, rows)
    now = (epoch + 2**31) % 2**32 - 2**31  # as an int32 holds it
    live = np.where(rng.random(rows) < 0.5, first[row], rng.integers(0, pages + 1, rows) * (first[row] > 0))
    built = np.zeros((rows, BUILT_WORDS), dtype=np.int64)
    built[:, 0] = row
    built[:, 1] = (versions[row, 0] - ahead + 2**31) % 2**32 - 2**31
    built[:, 2] = np.where(rng.random(rows) < 0.1, now ^ 1, now)
    built[:, 3], built[:, 4] = begin, begin + rng.integers(0, width + 1 - begin, rows)
    built[:, 5] = live
    never = np.zeros((rows, BUILT_WORDS), dtype=np.int64)
    never[:, 0], never[:, 4] = -1, rng.choice([0, width], rows)
    return np.where((row < 0)[:, None], never, built)


def touch(draw: Draw, spec: Any) -> Input:
    """Draw a touch; where a row is in several lanes, which of their tokens is noted is open."""
    lanes, requests = draw.size(40, 300, spec.max_bs) if not draw.small else draw.upto(0, 9), draw.upto(0, 30)
    if draw.scale:
        requests = draw.upto(lanes, 2 * lanes)
    repeats = not draw.scale and draw.chance(0.15)
    rows = draw.any_rows(lanes, requests) if repeats else draw.apart(lanes, requests, spec.row_dtype, 0.1)
    inside = rows[(rows >= 0) & (rows < requests)]
    versions = draw.rng.integers(-MOST - 1, MOST, (requests, 2), endpoint=True)
    tensors = {
        "versions": cells(draw.spoil(versions, 0.2, (MOST, -1, 0)), torch.int32),
        "req_rows": cells(rows, spec.row_dtype, draw.layout()),
        "tokens": cells(draw.lengths(lanes, 50, spec.length_dtype), spec.length_dtype, draw.layout()),
    }
    return Input(tensors | state(draw), open=len(np.unique(inside)) < len(inside))
