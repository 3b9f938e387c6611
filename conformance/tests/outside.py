"""A backend kept outside: the core alone, in plain lists, offered to the suite as `outside:BACKEND`.

It shows all that a stranger has to write. `pytest --pyargs pagebind_conformance --backend outside:BACKEND --device cpu`
runs the suite on it, with this folder on PYTHONPATH; the extended operations are composed from these four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from pagebind import Backend, LaunchOptions
from pagebind.operation import NoWarmup
from pagebind.words import COUNTERS, HOLE, SINK, TOMBSTONE


def read_table(spec: Any, device: torch.device, options: LaunchOptions) -> NoWarmup:
    ps = spec.page_size

    def run(request_table, req_rows, seq_lens, v2p, *, out, starts=None, seq_len_delta=0, state=None):
        cells, table, seen = out.tolist(), v2p.tolist(), Counter()
        requests, width = request_table.tolist(), out.shape[1]
        tokens = request_table.shape[1] * (1 if spec.form == "token" else ps)
        step = ps if spec.granularity == "page" else 1
        for b, (r, length) in enumerate(zip(req_rows.tolist(), seq_lens.tolist(), strict=True)):
            if spec.fill == "sink":
                cells[b] = [SINK] * width
            if not 0 <= r < len(requests):
                seen["bad_row"] += 1
                continue
            n = max(min(length + seq_len_delta, tokens, width * step), 0)
            seen["clipped"] += n != length + seq_len_delta
            first = max(starts[b].item(), 0) // step if spec.windowed else 0
            for c in range(first, -(-n // step)):
                cell = requests[r][c * step if spec.form == "token" else c * step // ps]
                page, offset = divmod(cell, ps) if spec.form == "token" else (cell, c * step % ps)
                cells[b][c] = SINK
                if page >= len(table) - 1:
                    seen["bad_id"] += 1
                elif page >= 0 and table[page] >= 0:
                    entry = table[page] * spec.multiplier
                    cells[b][c] = entry if spec.granularity == "page" else entry * ps + offset
        if spec.fill == "sink":
            cells[len(req_rows) :] = [[SINK] * width for _ in cells[len(req_rows) :]]
        store(out, cells)
        count(state, seen, options)

    return NoWarmup(run)


def bind(spec: Any, device: torch.device, options: LaunchOptions) -> NoWarmup:
    def run(virtual, physical, v2p, p2v, *, state=None):
        there, back, seen = v2p.tolist(), p2v.tolist(), Counter()
        for v, p in zip(virtual.tolist(), physical.tolist(), strict=True):
            if v <= HOLE:
                continue
            inside = SINK < v < len(there) - 1 and SINK < p < len(back) - 1
            if inside and there[v] == TOMBSTONE and back[p] == TOMBSTONE:
                there[v], back[p] = p, v
            else:
                seen["bad_bind"] += 1
        store(v2p, there)
        store(p2v, back)
        count(state, seen, options)

    return NoWarmup(run)


def unbind(spec: Any, device: torch.device, options: LaunchOptions) -> NoWarmup:
    def run(ids, v2p, p2v, *, freed, state=None):
        there, back, seen = v2p.tolist(), p2v.tolist(), Counter()
        released = []
        for v in ids.tolist():
            released.append(TOMBSTONE)
            if v <= HOLE:
                continue
            if v == SINK or v >= len(there) - 1 or there[v] == SINK or there[v] >= len(back) - 1:
                seen["bad_free"] += 1
            elif there[v] == TOMBSTONE:
                seen["double_free"] += 1
            else:
                released[-1] = there[v]
                back[there[v]] = TOMBSTONE
                there[v] = TOMBSTONE
        store(v2p, there)
        store(p2v, back)
        store(freed, released)
        count(state, seen, options)

    return NoWarmup(run)


def translate(spec: Any, device: torch.device, options: LaunchOptions) -> NoWarmup:
    def run(ids, v2p, *, out, state=None):
        table, seen = v2p.tolist(), Counter()
        entries = []
        for token in ids.flatten().tolist():
            page, place = divmod(token, spec.page_size * spec.ranks)
            offset, owner = divmod(place, spec.ranks)
            entries.append(SINK)
            if page >= len(table) - 1:
                seen["bad_id"] += 1
            elif page >= 0 and owner == spec.rank and table[page] >= 0:
                entries[-1] = table[page] * spec.multiplier * spec.page_size + offset
        store(out, torch.tensor(entries, dtype=out.dtype).view(out.shape).tolist())
        count(state, seen, options)

    return NoWarmup(run)


def store(tensor: torch.Tensor, values: list[Any]) -> None:
    tensor.copy_(torch.tensor(values, dtype=tensor.dtype).view(tensor.shape))


def count(state: torch.Tensor | None, seen: Counter[str], options: LaunchOptions) -> None:
    if state is not None and options.count:
        for name, faults in seen.items():
            state[COUNTERS[name]] += faults


PLANNERS: dict[str, Callable[..., NoWarmup]] = {
    "read_table": read_table,
    "bind": bind,
    "unbind": unbind,
    "translate": translate,
}

FEATURES = frozenset(
    {
        *(f"{kind}={unit}" for kind in ("form", "granularity") for unit in ("token", "page")),
        *("fill=prefix", "fill=sink", "windowed", "context_parallel"),
    }
)

BACKEND = Backend(
    name="outside",
    version="1.0",
    distribution="outside",
    modes={"cpu": "cpu"},
    planners=PLANNERS,
    features=FEATURES,
)
