"""Inputs of what takes ids: bind, unbind, translate, assign, alloc, free; and of compact."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pagebind_conformance.generate import LIMITS
from pagebind_conformance.guarded import Layout
from pagebind_conformance.inputs.draw import PAST, Draw
from pagebind_conformance.inputs.drawn import Input, Ints, Pool, cells, poison
from pagebind_conformance.inputs.of_tables import state


def repeating(ids: Ints) -> bool:
    """Return whether an id, other than holes, stands in more than one lane."""
    real = ids[ids >= 0]
    return len(np.unique(real)) < len(real)


def _bound(draw: Draw, most: int) -> tuple[Pool, int]:
    size = draw.size(80, 600, most)
    sizes = (draw.upto(2, max(size, 2)), draw.upto(2, max(size, 2)))
    return draw.sub_pool(*sizes, draw.upto(0, min(sizes)), 0), size


def _repeated(draw: Draw, ids: Ints) -> Ints:
    return ids[draw.rng.integers(0, len(ids), len(ids))] if len(ids) else ids


def _overflow(pool: Pool, ids: Ints) -> bool:
    """Return whether more comes back than a stack has room for: where ids repeat, what is dropped then is open."""
    known = np.unique(ids[(ids > 0) & (ids < len(pool.v2p) - 1)])
    back = int((pool.v2p[known] > 0).sum())
    return pool.virtual_top + back > len(pool.virtual_stack) or pool.hole_top + back > len(pool.hole_stack)


def bind(draw: Draw, spec: Any) -> Input:
    """Draw pairs; where a page repeats among them, which lane is served is open."""
    pool, size = _bound(draw, 8000)
    n = draw.upto(0, size)
    virtual = draw.apart(n, len(pool.v2p) - 1, spec.id_dtype, draw.one((0.0, 0.2)), 1)
    physical = draw.apart(n, len(pool.p2v) - 1, spec.id_dtype, draw.one((0.0, 0.2)), 1)
    if not draw.scale and draw.chance(0.12):
        virtual, physical = _repeated(draw, virtual), _repeated(draw, physical)
    real = virtual >= 0
    tensors = {
        "virtual": cells(virtual, spec.id_dtype, draw.layout()),
        "physical": cells(physical, spec.id_dtype, draw.layout()),
        "v2p": cells(pool.v2p, spec.index_dtype, draw.layout()),
        "p2v": cells(pool.p2v, spec.index_dtype, draw.layout()),
    }
    return Input(tensors | state(draw), open=repeating(virtual[real]) or repeating(physical[real]))


def unbind(draw: Draw, spec: Any) -> Input:
    """Draw ids to unbind; where one repeats, which lane gives the page is open."""
    pool, size = _bound(draw, 8000)
    ids = draw.apart(draw.upto(0, size), len(pool.v2p) - 1, spec.id_dtype, draw.one((0.0, 0.2)), 1)
    if not draw.scale and draw.chance(0.12):
        ids = _repeated(draw, ids)
    tensors = {
        "ids": cells(ids, spec.id_dtype, draw.layout()),
        "v2p": cells(pool.v2p, spec.index_dtype, draw.layout()),
        "p2v": cells(pool.p2v, spec.index_dtype, draw.layout()),
        "freed": poison(spec.id_dtype, len(ids), layout=draw.layout()),
    }
    return Input(tensors | state(draw), open=repeating(ids))


def translate(draw: Draw, spec: Any) -> Input:
    """Draw ids in a row or a matrix, with any strides, apart or in place."""
    num = draw.upto(2, min(60 if not draw.scale else spec.num_physical, spec.num_physical) - 1)
    columns = draw.upto(1, 40 if not draw.scale else 700)
    shape: tuple[int, ...] = (columns,)
    if draw.chance(0.5):
        shape = (draw.size(5, 30, spec.max_items // columns), columns)
    elif draw.scale == 2:
        shape = (draw.upto(1, spec.max_items),)
    if np.prod(shape) > spec.max_items:
        shape = (spec.max_items // columns, columns)
    past = num * spec.page_size * spec.ranks
    ids = draw.rng.integers(0, past, shape)
    ids = draw.spoil(ids, draw.one((0.0, 0.1)), (*LIMITS[spec.id_dtype], -1, past, past + 7))
    layouts = [Layout(draw.upto(0, 9), draw.upto(1, 3), draw.upto(0, 3)) for _ in range(2)]
    in_place = spec.id_dtype is spec.out_dtype and draw.chance(0.4)
    tensors = {
        "ids": cells(ids, spec.id_dtype, layouts[0]),
        "v2p": cells(draw.page_table(num, spec.num_physical), spec.index_dtype, draw.layout()),
    }
    if not in_place:
        tensors["out"] = poison(spec.out_dtype, *shape, layout=layouts[1])
    return Input(tensors | state(draw), in_place=in_place)


def assign(draw: Draw, spec: Any) -> Input:
    """Draw ids for the heads of rows; where a row repeats, a cell is one lane's or another's."""
    lanes, width = draw.size(9, 80, spec.max_bs), draw.size(40, 300, 40)
    requests = draw.upto(1, lanes + 5)
    wild = draw.one((0.0, 0.15))
    sizes = draw.rng.choice([0, 1, width, width + 1], lanes)
    indptr = draw.offsets(sizes, spec.indptr_dtype, wild, 2)
    most = min(spec.max_items, 400 if not draw.scale else spec.max_items)
    ids = draw.rng.integers(-5, 999, max(min(int(indptr.max()), most) - draw.one((0, 3)), 0))
    repeats = not draw.scale and draw.chance(0.1)
    rows = draw.any_rows(lanes, requests) if repeats else draw.apart(lanes, requests, spec.row_dtype, 0.1)
    tensors = {
        # No id is held already: which lane wrote a cell would not show.
        "request_table": cells(draw.rng.integers(2000, 2099, (requests, width)), torch.int32, draw.layout()),
        "req_rows": cells(rows, spec.row_dtype, draw.layout()),
        "ids": cells(ids, torch.int32, draw.layout()),
        "indptr": cells(indptr, spec.indptr_dtype, draw.layout()),
    }
    return Input(tensors | state(draw), open=repeating(rows))


def a_pool(draw: Draw, most: int, *, chains: float = 0.4) -> Pool:
    """Return a sub-pool that stands alone or in a chain, sound or with pages bound by hand."""
    if draw.chance(chains) and not draw.scale:
        pool = draw.chained(draw.upto(0, 60))
        return draw.spoiled(pool) if draw.chance(0.2) else pool
    size = max(draw.size(60, 500, most), 2)
    pool = draw.sub_pool(draw.upto(2, size), draw.upto(2, size), draw.upto(0, size), draw.upto(0, size // 2))
    return draw.bound_by_hand(pool) if draw.chance(0.15) else pool


def alloc(draw: Draw, spec: Any) -> Input:
    """Draw an allocation, now and then of more than there is."""
    pool = a_pool(draw, 8000)
    num = len(pool.v2p) - 1
    n = draw.upto(0, max(draw.one((10, num + 5)), 1))
    pages = poison(spec.id_dtype, n, layout=draw.layout())
    if not spec.borrowed:
        return Input({"ids": poison(spec.id_dtype, n, layout=draw.layout()), "pages": pages}, pool=pool)
    pool = draw.borrowing(pool)
    ids = draw.apart(n, num, spec.id_dtype, draw.one((0.0, 0.2)), 1)
    if not draw.scale and draw.chance(0.15):
        ids = _repeated(draw, ids)
    return Input(
        {"ids": cells(ids, spec.id_dtype, draw.layout()), "pages": pages}, pool=pool, open=repeating(ids[ids != 0])
    )


def free(draw: Draw, spec: Any) -> Input:
    """Draw a free by ids; where one repeats, which lane is served is open, and so the order of the stacks."""
    pool = a_pool(draw, 8000)
    if spec.borrowed:
        pool = draw.borrowing(pool, 0.2)
    num = len(pool.v2p) - 1
    ids = draw.apart(draw.upto(0, num + 3), num, spec.id_dtype, draw.one((0.0, 0.2)), 1)
    if not draw.scale and draw.chance(0.15) and not _overflow(pool, ids):
        ids = _repeated(draw, ids)
    tensors = {
        "ids": cells(ids, spec.id_dtype, draw.layout()),
        "freed": poison(spec.id_dtype, len(ids), layout=draw.layout()),
    }
    return Input(tensors, {"pages": draw.one((None, None, 3))}, pool=pool, open=repeating(ids))


def compact(draw: Draw, spec: Any) -> Input:
    """Draw a retreat of either end, one that fits or one that is refused, of a sub-pool sound or gone wrong."""
    plain: dict[str, Any] = {"side": draw.one(("high", "low"))}
    if not draw.scale and draw.chance(0.35):
        pool = draw.chained(draw.upto(0, 60))
        retreat = draw.one((pool.watermark, draw.upto(0, pool.watermark), min(pool.hole_top, pool.watermark)))
        off = draw.one((0, 0, 0, 1, -1))
        plain["fresh"] = min(max(retreat - pool.hole_top + off, 0), retreat)
        plain["skip"] = draw.one((0, 1, 3)) if retreat == pool.watermark or off else 0
    else:
        size = max(draw.size(70, 300, 3000), 2)
        pages = draw.upto(2, size)
        seat = draw.one((0, draw.upto(0, pages - 1)))
        pool = draw.sub_pool(draw.upto(2, size), pages, draw.upto(0, size), draw.upto(0, size // 2), seat)
        retreat = draw.one((pool.hole_top, draw.upto(0, pool.hole_top)))
        if draw.chance(0.3):
            pool = _gone_wrong(draw, pool)
            retreat += draw.upto(0, 1)
    more = draw.upto(0, 3)
    tensors = {name: poison(spec.id_dtype, retreat + more, layout=draw.layout()) for name in ("sources", "targets")}
    if spec.page_bytes:
        size = (len(pool.p2v) - 1) * spec.page_bytes + more
        data = draw.rng.integers(0, 256, size, dtype=np.uint8)
        tensors["buffer"] = cells(data, torch.uint8, Layout(shift=16 * draw.upto(0, 3)))
    return Input(tensors, plain | {"retreat": retreat}, pool=pool)


def _gone_wrong(draw: Draw, pool: Pool) -> Pool:
    for _ in range(draw.upto(1, 3)):
        kind = draw.one(("bind", "unbind", "junk", "holes", "watermark"))
        bound = np.flatnonzero(pool.p2v > 0)
        if kind == "bind":
            pool = draw.bound_by_hand(pool, 1)
        elif kind == "unbind" and len(bound):
            p = int(draw.one(bound.tolist()))
            pool.v2p[pool.p2v[p]] = pool.p2v[p] = -1
        elif kind == "junk" and pool.hole_top:
            outside = (0, -1, -9, len(pool.p2v) - 1, len(pool.p2v) + 5, PAST, *LIMITS[torch.int32])
            pool.hole_stack[draw.upto(0, pool.hole_top - 1)] = draw.one(outside)
        elif kind == "holes":
            pool = pool._replace(hole_top=draw.upto(0, pool.hole_top))
        elif kind == "watermark":
            pool = pool._replace(watermark=draw.upto(0, pool.watermark))
    return pool
