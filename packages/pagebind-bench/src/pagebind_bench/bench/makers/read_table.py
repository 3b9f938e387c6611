"""read_table: a full build, beside SGLang's kernel, the two published grids and one flat gather of the same ids."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch
from pagebind import Backend
from pagebind.ops import READ_TABLE, ReadTableSpec
from pagebind.words import Form, new_state

from pagebind_bench.bench.inputs import DTYPES, Batch, batch
from pagebind_bench.bench.kinds import TableCase
from pagebind_bench.bench.lab import Contender, Lab, Work
from pagebind_bench.bench.sglang import Sglang


def contenders(case: TableCase, lab: Lab) -> list[Contender]:
    """Return who builds the table of a case. A peer reads token ids and an int64 `v2p`, which is what it has."""

    @cache
    def given() -> Batch:
        return batch(case, lab.device)

    @cache
    def request_table(form: Form) -> torch.Tensor:
        return given().request_table(form)

    def spec(index_dtype: torch.dtype, form: Form) -> ReadTableSpec:
        return ReadTableSpec(
            max_bs=case.bs,
            max_width=given().columns,
            page_size=case.page_size,
            num_physical=given().v2p.shape[0] - 1,
            form=form,
            index_dtype=index_dtype,
        )

    def moved(spec: ReadTableSpec) -> int:
        return READ_TABLE.bytes_moved(spec, lanes=case.bs, items=given().entries)

    def own(backend: Backend) -> Work:
        planned_for = spec(DTYPES[case.dtype], case.form)
        planned = lab.plan(backend, READ_TABLE, planned_for)
        table, (rows, lens) = request_table(case.form), given().lanes()
        v2p, out, state = given().v2p.to(DTYPES[case.dtype]), given().new_table(), new_state(lab.device)

        def call() -> None:
            planned(table, rows, lens, v2p, out=out, state=state)

        return Work(call, moved(planned_for), result=lambda: out, state=state)

    def sglang(peer: Sglang) -> Work:
        out, (rows, lens) = given().new_table(), given().lanes()
        arguments = {
            "req_to_token": request_table("token"),
            "req_pool_indices": rows,
            "seq_lens": lens,
            "v2p": given().v2p,
            "page_size": case.page_size,
            "max_pages": out.shape[1],
            "out": out,
        }

        def call() -> None:
            peer.build_kv_read_table(**arguments)

        return Work(call, moved(spec(torch.int64, "token")), result=lambda: out)

    def published(name: str) -> Work:
        launch = getattr(import_module("pagebind_bench.bench.published"), name)
        out, (rows, lens) = given().new_table(), given().lanes()
        table, v2p = request_table("token"), given().v2p

        def call() -> None:
            launch(table, rows, lens, v2p, out=out, page_size=case.page_size)

        return Work(call, moved(spec(torch.int64, "token")), result=lambda: out)

    def gather() -> Work:
        ids, v2p = given().ids.to(torch.int32), given().v2p.to(torch.int32)
        out = torch.empty_like(ids)

        def call() -> None:
            torch.index_select(v2p, 0, ids, out=out)

        return Work(call, moved(spec(torch.int32, case.form)))

    found = lab.own(own)
    if lab.sglang is not None:
        peer = lab.sglang
        found.append(Contender("sglang", lambda: sglang(peer)))
    if lab.published:
        found.append(Contender("published-batch", lambda: published("grid_from_batch")))
        found.append(Contender("published-context", lambda: published("grid_from_context")))
    return [*found, Contender("index_select", gather)]
