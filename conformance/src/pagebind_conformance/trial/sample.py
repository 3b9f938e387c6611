"""A plain call of every operation, for tests of contracts that all keep: valid inputs, a live batch, no faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Literal

import pytest
import torch
from pagebind import Operation, ops
from pagebind.words import STATE_WORDS, Form

from pagebind_conformance import generate
from pagebind_conformance.guarded import Guarded, Layout
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.trial.call import GROUPS, GuardedPool, GuardedSecond, parts_of, state_words

PAGE_SIZE = 4
ROWS, CELLS = 6, 24
NUM = 64
LIMITS: dict[str, Any] = {"max_bs": 16, "page_size": PAGE_SIZE}

Call = dict[str, Any]


def sample(operation: Operation[Any, Any], device: torch.device, bs: int = 5, variant: str = "") -> tuple[Any, Call]:
    """Return a spec and the arguments, between guard bands, of a call on `bs` lanes; at most 6."""
    make = VARIANTS[operation.name][variant] if variant else SAMPLES[operation.name]
    return make(device, bs)


def _cells(device: torch.device, *values: Any) -> Guarded:
    return Guarded(list(values), torch.int32, device)


def _state(device: torch.device) -> Guarded:
    return Guarded(state_words(), torch.int64, device)


def _batch(
    device: torch.device, bs: int, form: str = "token", *, place: int | None = None, borrows: bool = False
) -> tuple[Call, GuardedPool]:
    """Return a request table whose rows hold 3 live pages each, its batch, and the sub-pool they lie in.

    With a `place` it is that of a chain of three, with few holes, so that calls make it grow.
    """
    rng = Random(11)
    pool = generate.sub_pool(rng, NUM, NUM, 3 * ROWS, 20) if place is None else _chained(place, holes=2)
    if borrows:
        pool = generate.borrower(pool)
    live = [v for v in range(1, NUM) if pool.v2p[v] > 0]
    width = CELLS // PAGE_SIZE
    rows = [generate.spread(live[3 * r : 3 * r + 3] + [-1] * (width - 3), PAGE_SIZE, form) for r in range(ROWS)]
    batch = {
        "request_table": Guarded(rows, torch.int32, device),
        "req_rows": Guarded([(5 * b + 2) % ROWS for b in range(bs)], torch.int32, device),
    }
    return batch, GuardedPool(pool, torch.int32, device)


def _chained(place: int, holes: int) -> SubPool:
    """Return a sub-pool of a chain of three with pages of 16 bytes, and 3 live pages for each row in it."""
    total = 16 * (NUM + place)
    blocks = generate.empty_blocks((16, 16, 16), total)
    span = 3 * ROWS + holes
    seats = {1: 20, 2: blocks[2].seat - span}
    blocks[place] = blocks[place]._replace(seat=seats.get(place, blocks[0].seat), watermark=span)
    return generate.member(Random(15), blocks, place, total, NUM, 3 * ROWS)


def _lens(bs: int) -> list[int]:
    return [12 - b for b in range(bs)]


def _read_table(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs)
    spec = ops.ReadTableSpec(**LIMITS, max_width=6, num_physical=NUM)
    return spec, {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "v2p": pool.parts["v2p"],
        "out": Guarded.poisoned((bs, 6), torch.int32, device),
        "seq_len_delta": 1,
        "state": _state(device),
    }


def _read_table_beside(device: torch.device, bs: int) -> tuple[Any, Call]:
    """The second table is a window's: it begins later, has columns and a row of its own, and another multiplier."""
    spec, call = _read_table(device, bs)
    w2p, _ = generate.page_tables(Random(16), NUM, NUM // 2, NUM // 3)
    call["beside"] = GuardedSecond(
        v2p=_cells(device, *w2p),
        out=Guarded.poisoned((bs + 1, 5), torch.int32, device),
        starts=_cells(device, *[b % 6 for b in range(bs)]),
        state=_state(device),
    )
    return replace(spec, beside=ops.Beside(num_physical=NUM // 2, multiplier=3, windowed=True)), call


def _read_table_beside_sink(device: torch.device, bs: int) -> tuple[Any, Call]:
    spec, call = _read_table_beside(device, bs)
    return replace(spec, fill="sink"), call


def _read_stream(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs)
    spec = ops.ReadStreamSpec(**LIMITS, max_items=64, num_physical=NUM, with_table=True, max_width=6)
    return spec, {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "v2p": pool.parts["v2p"],
        "indptr": _cells(device, *range(0, 3 * bs + 1, 3)),
        "out": Guarded.poisoned((3 * bs,), torch.int32, device),
        "table": Guarded.poisoned((bs, 6), torch.int32, device),
        "state": _state(device),
    }


def _bind(device: torch.device, bs: int) -> tuple[Any, Call]:
    v2p, p2v = generate.page_tables(Random(12), NUM, NUM, 20)
    virtual = [v for v in range(1, NUM) if v2p[v] == -1][:bs]
    physical = [p for p in range(1, NUM) if p2v[p] == -1][:bs][::-1]
    return ops.BindSpec(max_items=16), {
        "virtual": _cells(device, *virtual),
        "physical": _cells(device, *physical),
        "v2p": Guarded(v2p, torch.int32, device),
        "p2v": Guarded(p2v, torch.int32, device),
        "state": _state(device),
    }


def _unbind(device: torch.device, bs: int) -> tuple[Any, Call]:
    v2p, p2v = generate.page_tables(Random(13), NUM, NUM, 20)
    return ops.UnbindSpec(max_items=16), {
        "ids": _cells(device, *[v for v in range(1, NUM) if v2p[v] > 0][:bs]),
        "v2p": Guarded(v2p, torch.int32, device),
        "p2v": Guarded(p2v, torch.int32, device),
        "freed": Guarded.poisoned((bs,), torch.int32, device),
        "state": _state(device),
    }


def _translate(device: torch.device, bs: int) -> tuple[Any, Call]:
    v2p, _ = generate.page_tables(Random(14), NUM, NUM, 60)
    return ops.TranslateSpec(max_items=64, page_size=PAGE_SIZE, num_physical=NUM), {
        "ids": _cells(device, *[(37 * b + 9) % (NUM * PAGE_SIZE) for b in range(bs)]),
        "v2p": Guarded(v2p, torch.int32, device),
        "out": Guarded.poisoned((bs,), torch.int32, device),
        "state": _state(device),
    }


def _alloc(device: torch.device, bs: int, place: int | None = None) -> tuple[Any, Call]:
    return ops.AllocSpec(max_items=16), {
        "tables": _batch(device, bs, place=place)[1],
        "ids": Guarded.poisoned((bs,), torch.int32, device),
        "pages": Guarded.poisoned((bs,), torch.int32, device),
    }


def _alloc_borrowed(device: torch.device, bs: int) -> tuple[Any, Call]:
    pool = _batch(device, bs, place=1, borrows=True)[1]
    unbound = [v for v, p in enumerate(pool.parts["v2p"].before_values()[:NUM]) if p < 0]
    return ops.AllocSpec(max_items=16, borrowed=True), {
        "tables": pool,
        "ids": _cells(device, *[v if b != 2 else -1 for b, v in enumerate(unbound[:bs])]),
        "pages": Guarded.poisoned((bs,), torch.int32, device),
    }


def _free(device: torch.device, bs: int, borrowed: bool = False) -> tuple[Any, Call]:
    pool = _batch(device, bs, borrows=borrowed)[1]
    live = [v for v, p in enumerate(pool.parts["v2p"].before_values()) if p > 0][:bs]
    return ops.FreeSpec(max_items=16, borrowed=borrowed), {
        "ids": _cells(device, *live),
        "tables": pool,
        "freed": Guarded.poisoned((bs,), torch.int32, device),
        "pages": bs if borrowed else None,
    }


def _extend(device: torch.device, bs: int, place: int | None = None) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs, place=place)
    return ops.ExtendSpec(**LIMITS, max_tokens=64, num_virtual=NUM, num_physical=NUM), {
        **batch,
        "prefix_lens": _cells(device, *_lens(bs)),
        "indptr": _cells(device, *range(0, 5 * bs + 1, 5)),
        "tables": pool,
        "slots": Guarded.poisoned((5 * bs,), torch.int32, device),
        "pages": None,
    }


def _extend_emits(device: torch.device, bs: int) -> tuple[Any, Call]:
    spec, call = _extend(device, bs, place=1)
    for name, length in (("token_ids", 5 * bs), ("new_ids", bs), ("new_pages", bs)):
        call[name] = Guarded.poisoned((length,), torch.int32, device)
    return replace(spec, emits=True), call


def _advance(device: torch.device, bs: int, place: int | None = None) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs, place=place)
    return ops.AdvanceSpec(**LIMITS, num_virtual=NUM, num_physical=NUM), {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "tables": pool,
        "slots": Guarded.poisoned((bs,), torch.int32, device),
        "pages": None,
    }


def _advance_emits(device: torch.device, bs: int) -> tuple[Any, Call]:
    spec, call = _advance(device, bs, place=1)
    for name in ("token_ids", "new_ids", "new_pages"):
        call[name] = Guarded.poisoned((bs,), torch.int32, device)
    return replace(spec, emits=True), call


def _advance_appends(device: torch.device, bs: int, granularity: Form = "page") -> tuple[Any, Call]:
    spec, call = _advance(device, bs)
    width = 6 if granularity == "page" else CELLS
    call["table"] = Guarded.poisoned((bs, width), torch.int32, device)
    return replace(spec, appends=True, granularity=granularity), call


def _truncate(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs)
    return ops.TruncateSpec(**LIMITS, max_pages=64), {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "keep_lens": _cells(device, *[b + 1 for b in range(bs)]),
        "tables": pool,
        "freed": Guarded.poisoned((3 * bs,), torch.int32, device),
        "pages": None,
    }


def _release(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, pool = _batch(device, bs)
    return ops.ReleaseSpec(**LIMITS, max_pages=64, shared=True), {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "tables": pool,
        "freed": Guarded.poisoned((3 * bs,), torch.int32, device),
        "starts": _cells(device, *[4 * (b % 2) for b in range(bs)]),
        "pages": None,
    }


def _evict(device: torch.device, bs: int, part: Literal["head", "tail", "row"] = "head") -> tuple[Any, Call]:
    batch, pool = _batch(device, bs, borrows=True)
    return ops.EvictSpec(**LIMITS, part=part, max_pages=64), {
        **batch,
        "starts": _cells(device, *[4 * (b % 2) for b in range(bs)]),
        "lens": _cells(device, *_lens(bs)),
        "tables": pool,
        "first": _cells(device, *[r % 2 for r in range(ROWS)]),
        "freed": Guarded.poisoned((3 * bs,), torch.int32, device),
        "pages": None,
    }


def _touch(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, _ = _batch(device, bs)
    return ops.TouchSpec(max_bs=16), {
        "versions": _cells(device, *[[5 * r, 2] for r in range(ROWS)]),
        "req_rows": batch["req_rows"],
        "tokens": _cells(device, *_lens(bs)),
        "state": _state(device),
    }


def _refresh_table(device: torch.device, bs: int, form: Form = "token", **asked: Any) -> tuple[Any, Call]:
    """Every second row is one version ahead of what was built, and lanes have columns to keep and to write."""
    batch, pool = _batch(device, bs, form)
    cells = {"token": CELLS, "page": CELLS // PAGE_SIZE}
    width = cells[asked.get("granularity", "page")]
    rows = batch["req_rows"].before_values()
    built = [[r, 0, 0, b % 2, 2 + b % 2, 0, 0, 0] for b, r in enumerate(rows)]
    spec = ops.RefreshTableSpec(**LIMITS, max_width=width, num_physical=NUM, form=form, **asked)
    return spec, {
        **batch,
        "seq_lens": _cells(device, *_lens(bs)),
        "v2p": pool.parts["v2p"],
        "out": Guarded.poisoned((bs + 1, width), torch.int32, device),
        "built": _cells(device, *built, [-1, 0, 0, 0, width, 0, 0, 0]),
        "versions": _cells(device, *[[r % 2, 5] for r in range(ROWS)]),
        "state": _state(device),
        "first": _cells(device, *[r % 3 for r in range(ROWS)]) if spec.borrowed else None,
        "starts": _cells(device, *[b % 6 for b in range(bs)]) if spec.windowed else None,
        "seq_len_delta": 1,
    }


def _assign(device: torch.device, bs: int) -> tuple[Any, Call]:
    batch, _ = _batch(device, bs)
    return ops.AssignSpec(max_bs=16, max_items=64), {
        **batch,
        "ids": _cells(device, *range(100, 100 + 4 * bs)),
        "indptr": _cells(device, *range(0, 4 * bs + 1, 4)),
        "state": _state(device),
    }


def _compact(device: torch.device, bs: int) -> tuple[Any, Call]:
    return _compact_of(device, bs, _batch(device, bs)[1])


def _compact_low(device: torch.device, bs: int) -> tuple[Any, Call]:
    return _compact_of(device, bs, GuardedPool(_chained(2, holes=20), torch.int32, device), side="low")


def _compact_fresh(device: torch.device, bs: int) -> tuple[Any, Call]:
    return _compact_of(device, bs, GuardedPool(_chained(1, holes=0), torch.int32, device), side="low", fresh=bs)


def _compact_of(device: torch.device, bs: int, pool: GuardedPool, **retreating: Any) -> tuple[Any, Call]:
    return ops.CompactSpec(max_pages=16, page_bytes=16), {
        "tables": pool,
        "retreat": bs,
        "sources": Guarded.poisoned((bs,), torch.int32, device),
        "targets": Guarded.poisoned((bs,), torch.int32, device),
        "buffer": Guarded([i * i % 251 for i in range(16 * NUM)], torch.uint8, device),
        **retreating,
    }


SAMPLES: dict[str, Callable[[torch.device, int], tuple[Any, Call]]] = {
    "read_table": _read_table,
    "bind": _bind,
    "unbind": _unbind,
    "translate": _translate,
    "read_stream": _read_stream,
    "alloc": _alloc,
    "free": _free,
    "extend": _extend,
    "advance": _advance,
    "truncate": _truncate,
    "assign": _assign,
    "release": _release,
    "evict": _evict,
    "compact": _compact,
    "touch": _touch,
    "refresh_table": _refresh_table,
}

VARIANTS: dict[str, dict[str, Callable[[torch.device, int], tuple[Any, Call]]]] = {
    "read_table": {"beside": _read_table_beside, "beside-sink": _read_table_beside_sink},
    "alloc": {
        "up": partial(_alloc, place=0),
        "float": partial(_alloc, place=1),
        "down": partial(_alloc, place=2),
        "borrowed": _alloc_borrowed,
    },
    "free": {"borrowed": partial(_free, borrowed=True)},
    "advance": {
        "down": partial(_advance, place=2),
        "emits": _advance_emits,
        "append": _advance_appends,
        "append-token": partial(_advance_appends, granularity="token"),
    },
    "extend": {"down": partial(_extend, place=2), "emits": _extend_emits},
    "evict": {"tail": partial(_evict, part="tail"), "row": partial(_evict, part="row")},
    "compact": {"low": _compact_low, "fresh": _compact_fresh},
    "refresh_table": {
        "sink": partial(_refresh_table, fill="sink", windowed=True),
        "borrowed": partial(_refresh_table, form="page", granularity="token", borrowed=True),
    },
}
"""What a backend may plan or compile apart from the plain call of an operation, by its name."""

CALLS = [
    (operation, variant) for operation in ops.OPERATIONS.values() for variant in ("", *VARIANTS.get(operation.name, {}))
]
"""Every operation with each of its variants."""

DENSE = ("built", "versions")
"""Arguments whose rows lie one behind the other, as their contract asks."""

CALL_IDS = [f"{operation.name}-{variant}" if variant else operation.name for operation, variant in CALLS]

CALL_PARAMS = [
    pytest.param(*one, id=name, marks=[pytest.mark.extended] if one[0].level == "core" and one[1] else [])
    for one, name in zip(CALLS, CALL_IDS, strict=True)
]
"""The same as parameters of cases; what the core may lack, its variants, is no part of the core."""


def shifted(arguments: Call, shift: int, row_gap: int = 0) -> Call:
    """Return the same call with every tensor at another alignment, and rows further apart."""

    def again(tensor: Guarded, row_gap: int = row_gap) -> Guarded:
        cells = tensor.before.as_strided(*tensor.geometry)
        unit = 16 if cells.dtype is torch.uint8 else 1  # bytes of pages stay aligned to 16, as their contract asks
        # The state blocks of a chain lie one behind the other, as their contract asks too.
        gap = 0 if cells.dim() == 2 and cells.shape[1] == STATE_WORDS and cells.dtype is torch.int64 else row_gap
        layout = Layout(row_gap=gap, shift=shift * unit)
        return Guarded(cells.tolist(), cells.dtype, tensor.buffer.device, layout, tuple(cells.shape))

    moved: Call = {}
    for name, value in arguments.items():
        if isinstance(value, GROUPS):
            moved[name] = value.again(again)
        else:
            gap = 0 if name in DENSE else row_gap
            moved[name] = again(value, gap) if isinstance(value, Guarded) else value
    return moved


def same(left: Call, right: Call) -> str | None:
    """Return the name of a tensor in which two calls on the same sample differ, guard bands and all, or None."""
    others = parts_of(right)
    return next((name for name, t in parts_of(left).items() if not torch.equal(t.buffer, others[name].buffer)), None)
