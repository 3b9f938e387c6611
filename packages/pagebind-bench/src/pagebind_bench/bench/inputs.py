"""The tensors of a case: seeded by the case alone, on the device, never an identity table."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pagebind.words import (
    HOLE,
    HOLE_TOP,
    SINK,
    STATE_WORDS,
    TOMBSTONE,
    VIRTUAL_TOP,
    WATERMARK,
    Form,
    PageTables,
)

from pagebind_bench.bench.kinds import Case, TableCase

DTYPES = {"int32": torch.int32, "int64": torch.int64}
WORD = 8
"""Bytes; the unit of an arena."""
ALIGNED = 16
"""Words; every tensor of an arena begins at a multiple."""
WORN = -7
"""What a read table holds before it is written: no entry."""


def seed(case: Case) -> int:
    """Return the seed of a case's inputs."""
    return zlib.crc32(f"{case.op}/{case.id}".encode())


# ---- read tables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """The lanes of a read table and the pages that their rows hold."""

    case: TableCase
    lengths: tuple[int, ...]  # tokens of each lane
    rows: list[int]  # of each lane; a permutation
    ids: torch.Tensor  # [pages of all lanes], int64; virtual pages, lane after lane
    v2p: torch.Tensor  # [num_virtual + 1], int64

    @property
    def entries(self) -> int:
        """Cells of the read table that are written."""
        return self.ids.shape[0]

    @property
    def columns(self) -> int:
        """Width of the read table, in pages."""
        return -(-self.case.width // self.case.page_size)

    def lanes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return req_rows and seq_lens, int32 `[bs]`."""
        device = self.ids.device
        return (
            torch.tensor(self.rows, dtype=torch.int32, device=device),
            torch.tensor(self.lengths, dtype=torch.int32, device=device),
        )

    def request_table(self, form: Form) -> torch.Tensor:
        """Return the request table, int32 `[bs, width in tokens or pages]`; holes past each row's length."""
        size = self.case.page_size
        width = self.case.width if form == "token" else self.columns
        table = torch.full((self.case.bs, width), HOLE, dtype=torch.int32, device=self.ids.device)
        offsets = torch.arange(size, dtype=torch.int64, device=self.ids.device)
        begin = 0
        for row, length in zip(self.rows, self.lengths, strict=True):
            pages = -(-length // size)
            held = self.ids[begin : begin + pages]
            if form == "token":
                held = (held[:, None] * size + offsets).flatten()[:length]
            table[row, : held.shape[0]] = held.to(torch.int32)
            begin += pages
        return table

    def differs(self, table: torch.Tensor) -> str | None:
        """Return which lane of a read table, `[bs, columns]`, is not what it should be, or None."""
        for lane, row in enumerate(self._entries()):
            if not torch.equal(table[lane, : row.shape[0]].long(), row):
                return f"lane {lane} of its table is wrong"
        return None

    def new_table(self) -> torch.Tensor:
        """Return a read table to be written, int32 `[bs, columns]`, filled with WORN."""
        return torch.full((self.case.bs, self.columns), WORN, dtype=torch.int32, device=self.ids.device)

    def read_table(self) -> torch.Tensor:
        """Return the read table, int32 `[bs, columns]`; WORN past each lane's pages."""
        table = self.new_table()
        for lane, row in enumerate(self._entries()):
            table[lane, : row.shape[0]] = row.to(torch.int32)
        return table

    def _entries(self) -> Iterator[torch.Tensor]:
        begin = 0
        for length in self.lengths:
            pages = -(-length // self.case.page_size)
            yield self.v2p[self.ids[begin : begin + pages]]
            begin += pages


def batch(case: TableCase, device: torch.device) -> Batch:
    """Return the batch of a case. All pages of its pool are bound; scattered ids are drawn from all of it."""
    random = torch.Generator(device).manual_seed(seed(case))
    pages = case.used
    everything = torch.arange(1, case.pool + 1, dtype=torch.int64, device=device)
    if case.layout == "scattered":
        ids = torch.randperm(case.pool, generator=random, device=device)[:pages] + 1
        physical = torch.randperm(case.pool, generator=random, device=device) + 1
    else:
        ids = everything[pages // 8 : pages // 8 + pages]
        physical = everything.roll(case.pool // 3)
    rows = torch.randperm(case.bs, generator=torch.Generator().manual_seed(seed(case))).tolist()
    v2p = torch.cat((everything.new_tensor([SINK]), physical, everything.new_tensor([TOMBSTONE])))
    return Batch(case, case.seq_lens(), rows, ids, v2p)


# ---- pools -----------------------------------------------------------------------------------------------------------


class Arena:
    """Tensors that calls write in place, side by side in one block, so that one kernel brings all of them back."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        places: dict[str, tuple[int, torch.Tensor]] = {}
        words = 0
        for name, tensor in tensors.items():
            places[name] = (words, tensor)
            words += -(-tensor.numel() * tensor.element_size() // (WORD * ALIGNED)) * ALIGNED
        self._block = torch.zeros(words, dtype=torch.int64, device=device)
        self._views: dict[str, torch.Tensor] = {}
        for name, (first, tensor) in places.items():
            self._views[name] = self._block[first:].view(tensor.dtype)[: tensor.numel()]
            self._views[name].copy_(tensor)
        self._saved = self._block.clone()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def restore(self) -> None:
        """Bring every tensor back to what it was made with. An addition, for a copy would not be a kernel on a GPU."""
        torch.add(self._saved, 0, out=self._block)


@dataclass(frozen=True)
class Pool:
    """A sub-pool some way into its life; host tensors, int64."""

    num_physical: int  # the sink counted
    num_virtual: int
    live: torch.Tensor  # [live], physical pages that are bound
    bound: torch.Tensor  # [live], their virtual pages
    holes: torch.Tensor  # [holes], bottom of the stack first
    free: torch.Tensor  # [free ids], bottom of the stack first
    watermark: int

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `v2p` and `p2v`, int64."""
        v2p, p2v = (torch.full((n + 1,), TOMBSTONE, dtype=torch.int64) for n in (self.num_virtual, self.num_physical))
        v2p[SINK] = p2v[SINK] = SINK
        v2p[self.bound] = self.live
        p2v[self.live] = self.bound
        return v2p, p2v

    def arena(self, device: torch.device, dtype: torch.dtype, **more: torch.Tensor) -> Arena:
        """Return tables, stacks and state block on a device, and `more` that calls write in place."""
        v2p, p2v = self.tables()
        virtual, holes = (torch.zeros(n, dtype=torch.int64) for n in (self.num_virtual, self.num_physical))
        virtual[: self.free.shape[0]] = self.free
        holes[: self.holes.shape[0]] = self.holes
        state = torch.zeros(STATE_WORDS, dtype=torch.int64)
        state[VIRTUAL_TOP], state[HOLE_TOP], state[WATERMARK] = len(self.free), len(self.holes), self.watermark
        tensors = {"v2p": v2p, "p2v": p2v, "virtual_stack": virtual, "hole_stack": holes}
        return Arena({name: t.to(dtype) for name, t in tensors.items()} | {"state": state} | more, device)


def page_tables(arena: Arena) -> PageTables:
    """Return the tables of a sub-pool that lie in an arena."""
    return PageTables(arena["v2p"], arena["p2v"], arena["virtual_stack"], arena["hole_stack"], arena["state"])


def pool(pages: int, span: torch.Tensor, holes: int, *, scattered: bool, random: torch.Generator) -> Pool:
    """Return a pool of `pages` pages, of which those of `span` are in it: its first `holes` are holes, the rest live.

    With `scattered` the ids are in an order that a long life leaves, else as a new pool hands them out.
    """
    ids = torch.randperm(pages, generator=random) + 1 if scattered else torch.arange(pages, 0, -1)
    live = span[holes:]
    return Pool(
        num_physical=pages + 1,
        num_virtual=pages + 1,
        live=live,
        bound=ids[: live.shape[0]],
        holes=span[:holes],
        free=ids[live.shape[0] :],
        watermark=span.shape[0],
    )


def half_live(pages: int, holes: int, *, scattered: bool, random: torch.Generator) -> Pool:
    """Return a pool of `pages` pages, half of which are live, with `holes` holes at random places among them."""
    span = torch.randperm(pages // 2 + holes, generator=random) + 1
    if not scattered:
        span = torch.cat((span[:holes], span[holes:].sort().values))
    return pool(pages, span, holes, scattered=scattered, random=random)
