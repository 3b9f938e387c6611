"""advance: decode steps of a batch, each on the lengths that the one before left, beside SGLang's kernels for a step.

A round is ROUND steps (fewer where a row is shorter). Before it each lane is that much shorter than after it, and the
pages that it takes are free: their ids on the virtual stack, the pages themselves past the frontier. So every timed
call takes pages: one a lane with a page size of 1, one in `page_size` lanes otherwise. Ours are the same call again and
again, which finds positions and lengths on the device. What takes a round back, a copy of the sub-pool's tables,
stacks, state block and lengths, is outside of the time. Cells of the request table and of the read table stay as they
are, for a round writes the same ones again.

SGLang's step, page size 1, is what its engine does for a batch that decodes (facts of wheel 0.5.23), in this order:

    slices of the list of free ids                    what is taken and what is left; no kernel
    alloc_bind_inplace                                pages from the frontier; it has no holes to drain first
    ids.to(int32), request_table[rows, lengths] = ids a conversion and an index_put
    lengths + 1                                       a tensor of their own
    translate_token_ids                               the slots, into a given tensor
    build_kv_read_table                               the whole table at the new lengths, where ours appends

Not counted for it: its copy of the lengths before the write, what it does for each request in Python, its look for
room and evictions. With larger pages it places tokens with a kernel of a module that is not loaded: it has no time.

Before it is timed a whole round of each contender is run, over cells that were overwritten: the slots of every step,
and after it both tables of the batch, the lengths and the page tables have to be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from pagebind import Backend
from pagebind.errors import Unsupported
from pagebind.ops import ADVANCE, AdvanceSpec
from pagebind.words import HOLE, SINK, Form

from pagebind_bench.bench.inputs import DTYPES, WORN, Arena, Batch, Pool, batch, page_tables, seed
from pagebind_bench.bench.kinds import AdvanceCase
from pagebind_bench.bench.lab import Contender, Fault, Lab, Work
from pagebind_bench.bench.sglang import Sglang
from pagebind_bench.bench.timing import Call, Round

ROUND = 128
"""Steps of a round."""


@dataclass(frozen=True)
class Steps:
    """A batch before and after a round."""

    after: Batch
    before: Pool
    starts: torch.Tensor  # [bs], int64, on the host; tokens of each lane before the round
    entries: torch.Tensor  # [steps, bs], int64; the slot that each step gives each lane

    @property
    def lengths(self) -> torch.Tensor:
        """Tokens of each lane before the round, int64 `[bs]`, on the device."""
        return self.starts.to(self.after.ids.device)

    def first(self, unit: Form) -> list[int]:
        """Return the first column of each lane that a round writes, in tokens or pages."""
        size = 1 if unit == "token" else self.after.case.page_size
        return (-(-self.starts // size)).tolist()

    def request_table(self, form: Form) -> torch.Tensor:
        """Return the request table as it is before the round."""
        table = self.after.request_table(form)
        for row, first in zip(self.after.rows, self.first(form), strict=True):
            table[row, first:] = HOLE
        return table

    def read_table(self) -> torch.Tensor:
        """Return the read table as it is before the round."""
        table = self.after.read_table()
        for lane, first in enumerate(self.first("page")):
            table[lane, first:] = WORN
        return table

    def result(self, slots: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        """Return what the first step of a round wrote: the slots, and the columns of a table."""
        if table is None:
            return slots.long()
        column = self.lengths // self.after.case.page_size
        return torch.cat((slots.long(), table.gather(1, column[:, None]).flatten().long()))

    def need_right(
        self,
        calls: Sequence[Call],
        arena: Arena,
        *,
        slots: torch.Tensor,
        request_table: torch.Tensor,
        right: torch.Tensor,
        table: torch.Tensor | None,
    ) -> None:
        """Run a round, and raise Fault where anything of it is wrong. `right` is the request table after it."""
        for step, call in enumerate(calls):
            call()
            if not torch.equal(slots.long(), self.entries[step]):
                raise Fault(f"its slots of step {step} are wrong")
        if not torch.equal(request_table, right):
            raise Fault("its request table is wrong")
        wrong = None if table is None else self.after.differs(table)
        if wrong is not None:
            raise Fault(wrong)
        v2p, p2v = arena["v2p"].long(), arena["p2v"].long()
        if not torch.equal(v2p, self.after.v2p):
            raise Fault("its page table is wrong")
        if not torch.equal(p2v[v2p[1:-1]], torch.arange(1, v2p.shape[0] - 1, device=v2p.device)):
            raise Fault("its page tables are not inverse")


def contenders(case: AdvanceCase, lab: Lab) -> list[Contender]:
    """Return who takes the steps of a case. A peer reads token ids and int64 tables, which is what it has."""

    @cache
    def given() -> Steps:
        return steps(case, lab.device)

    @cache
    def right(form: Form) -> torch.Tensor:
        return given().after.request_table(form)

    def spec(dtype: torch.dtype, form: Form) -> AdvanceSpec:
        return AdvanceSpec(
            max_bs=case.bs,
            page_size=case.page_size,
            num_virtual=given().before.num_virtual,
            num_physical=given().before.num_physical,
            form=form,
            appends=case.appends,
            index_dtype=dtype,
        )

    def moved(spec: AdvanceSpec) -> int:
        items = given().before.free.shape[0] / given().entries.shape[0]
        return ADVANCE.bytes_moved(spec, lanes=case.bs, items=round(items))

    def own(backend: Backend) -> Work:
        planned_for = spec(DTYPES[case.dtype], case.form)
        planned = lab.plan(backend, ADVANCE, planned_for)
        lengths = given().lengths.to(torch.int32)
        arena = given().before.arena(lab.device, DTYPES[case.dtype], seq_lens=lengths)
        tables, lens, (rows, after) = page_tables(arena), arena["seq_lens"], given().after.lanes()
        request_table = given().request_table(case.form)
        table = given().read_table() if case.appends else None
        slots = torch.zeros(case.bs, dtype=torch.int32, device=lab.device)

        def call() -> None:
            planned(request_table, rows, lens, tables, slots=slots, table=table)

        calls = (call,) * given().entries.shape[0]
        given().need_right(calls, arena, slots=slots, request_table=request_table, right=right(case.form), table=table)
        if not torch.equal(lens, after):
            raise Fault("its lengths are wrong")
        arena.restore()
        return Work(
            call,
            moved(planned_for),
            result=lambda: given().result(slots, table),
            turns=Round(calls, arena.restore),
            state=tables.state,
        )

    def sglang(peer: Sglang) -> Work:
        if case.page_size > 1:
            raise Unsupported("the kernel that places its tokens in pages above 1 is in a module that is not loaded")
        arena = given().before.arena(lab.device, torch.int64)
        v2p, p2v = arena["v2p"], arena["p2v"]
        rows, begin = given().after.lanes()[0].long(), given().before.watermark + 1
        free = given().before.free.flip(0).to(lab.device)
        request_table, table = given().request_table("token"), given().after.new_table() if case.appends else None
        slots = torch.zeros(case.bs, dtype=torch.int64, device=lab.device)
        kept: dict[str, torch.Tensor] = {}

        def step(number: int) -> Call:
            lens, taken = given().lengths + number, number * case.bs
            left = free[taken:]

            def call() -> None:
                ids, kept["free"] = left[: case.bs], left[case.bs :]
                kept["pages"] = peer.alloc_bind_inplace(ids, v2p, p2v, begin + taken)
                request_table[rows, lens] = ids.to(torch.int32)
                kept["seq_lens"] = lens + 1
                peer.translate_token_ids(loc=ids, v2p=v2p, page_size=1, out=slots)
                if table is not None:
                    peer.build_kv_read_table(
                        req_to_token=request_table,
                        req_pool_indices=rows,
                        seq_lens=kept["seq_lens"],
                        v2p=v2p,
                        page_size=1,
                        max_pages=table.shape[1],
                        out=table,
                    )

            return call

        calls = tuple(step(number) for number in range(given().entries.shape[0]))
        given().need_right(calls, arena, slots=slots, request_table=request_table, right=right("token"), table=table)
        arena.restore()
        return Work(
            calls[0],
            moved(spec(torch.int64, "token")),
            result=lambda: given().result(slots, table),
            turns=Round(calls, arena.restore),
        )

    found = lab.own(own)
    if lab.sglang is not None:
        peer = lab.sglang
        found.append(Contender("sglang", lambda: sglang(peer)))
    return found


def steps(case: AdvanceCase, device: torch.device) -> Steps:
    """Return the batch of a case around a round.

    All pages of its pool are bound after it. Those that it takes are the last of the pool, in the order of its steps
    and lanes; the others lie as the layout says.
    """
    made, size = batch(case, device), case.page_size
    lengths, ids = torch.tensor(made.lengths), made.ids.cpu()
    held = -(-lengths // size)
    count = min(ROUND, *made.lengths)
    starts = lengths - count
    tokens = starts + torch.arange(count)[:, None]
    of_token = ids[held.cumsum(0) - held + tokens // size]
    taken = of_token[tokens % size == 0]
    kept = torch.ones(case.pool + 1, dtype=torch.bool)
    kept[SINK] = kept[taken] = False
    bound = kept.nonzero().flatten()
    mark = bound.shape[0]
    if case.layout == "scattered":
        live = torch.randperm(mark, generator=torch.Generator().manual_seed(seed(case))) + 1
    else:
        live = torch.arange(1, mark + 1).roll(mark // 3)
    before = Pool(
        num_physical=case.pool + 1,
        num_virtual=case.pool + 1,
        live=live,
        bound=bound,
        holes=live[:0],
        free=taken.flip(0),
        watermark=mark,
    )
    v2p, _ = before.tables()
    v2p[taken] = torch.arange(mark + 1, case.pool + 1)
    entries = v2p[of_token] * size + tokens % size
    return Steps(replace(made, v2p=v2p.to(device)), before, starts, entries.to(device))
