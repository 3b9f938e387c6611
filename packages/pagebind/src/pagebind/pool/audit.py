"""Look at everything a sub-pool holds: recompute it from the tables, or hash it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from pagebind.pool.chain import SubPool
from pagebind.pool.ledger import Ledger, span_bytes
from pagebind.words import GROWTH, HOLE_TOP, SEAT, SINK, TICKET, TOMBSTONE, VIRTUAL_TOP, WATERMARK, PageTables


def audit_tables(tables: PageTables, live: int, span: int, seat: int = 0, *, borrows: bool = False) -> list[str]:
    """Return each term that disagrees, as a sentence; an empty list for sound tables. Waits for the device.

    `live`, `span` and `seat` are the host's counts, in pages; an empty span has no seat. Checked: the invariants of
    `PageTables`, that the stacks hold exactly the ids and holes that are free, each once, and that the scratch words of
    kernels are zero.
    """
    v2p, p2v, virtual_stack, hole_stack, state = (t.cpu().to(torch.int64) for t in tables[:5])
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
    if span:
        need("the seat", words[SEAT], seat)
    in_span = set(range(words[SEAT] + 1, words[SEAT] + watermark + 1))
    need("pages bound outside of the span", sorted(bound_pages - in_span), [])
    free_ids = set() if borrows else set(range(1, v2p.shape[0] - 1)) - bound_ids
    need("the virtual top", virtual_top, len(free_ids))
    need("the virtual stack", _stack(virtual_stack, virtual_top), sorted(free_ids))
    holes = in_span - bound_pages
    need("the hole stack", _stack(hole_stack, hole_top), sorted(holes))
    need("the scratch words", words[TICKET:GROWTH], [0] * (GROWTH - TICKET))
    return wrong


def audit_chain(
    ledger: Ledger, sub_pools: Sequence[SubPool], tables: Mapping[str, PageTables], total_bytes: int
) -> list[str]:
    """Return each term that disagrees in any sub-pool, or between them. Waits for the device.

    Beside those of `audit_tables`: spans lie in order inside the buffer, above the sinks; an id that is bound in a
    borrower is bound in its owner.
    """
    wrong: list[str] = []
    end = max(place.base + place.page_bytes for place in ledger.places)
    for i, (place, at, sub_pool) in enumerate(zip(ledger.places, ledger.positions, sub_pools, strict=True)):
        own = tables[place.name]
        found = audit_tables(own, at.live, at.span, at.seat, borrows=sub_pool.ids_of is not None)
        wrong += [f"{place.name}: {told}" for told in found]
        if at.span:
            first_byte, end_byte = span_bytes(ledger.places, ledger.positions, i)
            if first_byte < end:
                wrong.append(f"{place.name}: its span begins at byte {first_byte}, what is below it ends at {end}")
            end = end_byte
        if sub_pool.ids_of is not None:
            strays = _bound(own.v2p.cpu()) - _bound(tables[sub_pool.ids_of].v2p.cpu())
            if strays:
                wrong.append(f"{place.name}: ids {sorted(strays)} are bound here and not in {sub_pool.ids_of}")
    if end > total_bytes:
        wrong.append(f"the last span ends at byte {end} of {total_bytes}")
    return wrong


def digest_tables(
    tables: Mapping[str, PageTables], request_table: torch.Tensor, first: Mapping[str, torch.Tensor]
) -> str:
    """Return the SHA-256 of all tables, live stacks and positions, the request table and rows' first pages. Waits.

    The same for int32 and int64 tables.
    """
    sha = hashlib.sha256()

    def add(name: str, tensor: torch.Tensor) -> None:
        cells = tensor.cpu().to(torch.int64)
        sha.update(f"{name} {list(cells.shape)}\n".encode())
        sha.update(cells.contiguous().numpy().tobytes())

    for name, own in tables.items():
        state = own.state.cpu()
        add(f"{name} v2p", own.v2p)
        add(f"{name} p2v", own.p2v)
        add(f"{name} virtual_stack", own.virtual_stack[: int(state[VIRTUAL_TOP])])
        add(f"{name} hole_stack", own.hole_stack[: int(state[HOLE_TOP])])
        add(f"{name} state", state[: SEAT + 1])
    add("request_table", request_table)
    for name, pages in first.items():
        add(f"{name} first", pages)
    return sha.hexdigest()


def _bound(table: torch.Tensor) -> set[int]:
    return set((torch.nonzero(table[1:-1] != TOMBSTONE).flatten() + 1).tolist())


def _stack(stack: torch.Tensor, top: int) -> list[int]:
    return sorted(stack[:top].tolist())
