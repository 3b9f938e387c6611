"""Look at everything a sub-pool holds: recompute it from the tables, or hash it."""

from __future__ import annotations

import hashlib

import torch

from pagebind.words import EPOCH, HOLE_TOP, SINK, TICKET, TOMBSTONE, VIRTUAL_TOP, WATERMARK, PageTables


def audit_tables(tables: PageTables, live: int, span: int) -> list[str]:
    """Return each term that disagrees, as a sentence; an empty list for sound tables. Waits for the device.

    `live` and `span` are the host's counts, in pages. Checked: the invariants of `PageTables`, that the stacks hold
    exactly the ids and holes that are free, each once, and that the scratch words of kernels are zero.
    """
    v2p, p2v, virtual_stack, hole_stack, state = (t.cpu().to(torch.int64) for t in tables)
    wrong: list[str] = []

    def need(name: str, found: object, right: object) -> None:
        if found != right:
            wrong.append(f"{name} is {found}, it should be {right}")

    words = state.tolist()
    virtual_top, hole_top, watermark = words[VIRTUAL_TOP], words[HOLE_TOP], words[WATERMARK]
    for name, table in (("v2p", v2p), ("p2v", p2v)):
        need(f"{name}[0]", int(table[0]), SINK)
        need(f"{name}[-1]", int(table[-1]), TOMBSTONE)
    for name, table, inverse in (("v2p", v2p, p2v), ("p2v", p2v, v2p)):
        num = inverse.shape[0] - 1
        ids = torch.arange(1, table.shape[0] - 1)
        to = table[1:-1]
        bound = to != TOMBSTONE
        outside = bound & ((to <= SINK) | (to >= num))
        wrong += [f"{name}[{i}] is {int(table[i])}, outside the other table" for i in ids[outside].tolist()]
        inside = bound & ~outside
        back = inverse[to[inside]]
        broken = ids[inside][back != ids[inside]]
        wrong += [
            f"{name}[{i}] is {int(table[i])}, whose row in the other table does not map back" for i in broken.tolist()
        ]
    bound_ids, bound_pages = _bound(v2p), _bound(p2v)
    need("pages bound in v2p", len(bound_ids), live)
    need("pages bound in p2v", len(bound_pages), live)
    need("the watermark", watermark, span)
    need("the hole top", hole_top, span - live)
    need("the virtual top", virtual_top, v2p.shape[0] - 2 - live)
    need("pages bound past the watermark", sorted(p for p in bound_pages if p > watermark), [])
    free_ids = set(range(1, v2p.shape[0] - 1)) - bound_ids
    need("the virtual stack", _stack(virtual_stack, virtual_top), sorted(free_ids))
    holes = set(range(1, watermark + 1)) - bound_pages
    need("the hole stack", _stack(hole_stack, hole_top), sorted(holes))
    need("the scratch words", words[TICKET:], [0] * len(words[TICKET:]))
    return wrong


def digest_tables(tables: PageTables, request_table: torch.Tensor) -> str:
    """Return the SHA-256 of a sub-pool's tables, live stacks, positions and of its request table. Waits.

    The same for int32 and int64 tables.
    """
    state = tables.state.cpu()
    tops = {"virtual_stack": int(state[VIRTUAL_TOP]), "hole_stack": int(state[HOLE_TOP])}
    sha = hashlib.sha256()
    for name, tensor in (*tables._asdict().items(), ("request_table", request_table)):
        cells = tensor.cpu().to(torch.int64)
        if name in tops:
            cells = cells[: tops[name]]
        elif name == "state":
            cells = cells[: EPOCH + 1]
        sha.update(f"{name} {list(cells.shape)}\n".encode())
        sha.update(cells.contiguous().numpy().tobytes())
    return sha.hexdigest()


def _bound(table: torch.Tensor) -> set[int]:
    return set((torch.nonzero(table[1:-1] != TOMBSTONE).flatten() + 1).tolist())


def _stack(stack: torch.Tensor, top: int) -> list[int]:
    return sorted(stack[:top].tolist())
