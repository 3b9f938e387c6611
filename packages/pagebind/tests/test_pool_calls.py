"""What a pool does for one call of several launches: arguments are looked at once, and before the first of them."""

from collections import Counter
from dataclasses import replace
from functools import wraps

import pytest
import torch
from pagebind.errors import InvalidArgument
from pagebind.pool import SubPool, UnifiedPool, id_plans, row_plans

FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
WINDOW = SubPool(name="window", page_size=4, page_bytes=32, grows="down", ids_of="full")


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def looks(monkeypatch):
    """Counts how often arguments were looked at, by operation; of pools that are made after."""
    found = Counter()

    def counted(operation):
        @wraps(operation.arguments)
        def arguments(*args, **kwargs):
            found[operation.name] += 1
            return operation.arguments(*args, **kwargs)

        return replace(operation, arguments=arguments)

    for plans, names in (
        (id_plans, ("ALLOC", "FREE", "TRANSLATE")),
        (row_plans, ("EVICT", "EXTEND", "RELEASE", "TOUCH", "TRUNCATE", "ASSIGN")),
    ):
        for name in names:
            monkeypatch.setattr(plans, name, counted(getattr(plans, name)))
    return found


@pytest.fixture
def pool(looks):
    sizes = {"max_requests": 4, "max_context": 32, "max_bs": 4, "max_tokens": 64}
    return UnifiedPool(2144, [FULL, WINDOW], **sizes, device="cpu", backend="cpu")


def everything(pool):
    tables = [t.clone() for own in pool.tables.values() for t in own[:5]]
    return [*tables, pool.requests.table.clone(), pool.requests.versions.clone()], pool.stats()


def since(looks):
    found = dict(looks)
    looks.clear()
    return found


def test_every_call_of_a_request_looks_at_its_arguments_once(pool, looks):
    row = pool.open_row()
    rows = ints(row.index)
    out = {name: torch.zeros(14, dtype=torch.int32) for name in ("full", "window")}
    pool.extend(rows, ints(0), ints(0, 14), slots=out, pages=4)
    assert since(looks) == {"extend": 1, "alloc": 1, "translate": 1}
    pool.truncate(rows, ints(14), ints(9), pages={"full": 1, "window": 1})
    assert since(looks) == {"evict": 1, "truncate": 1, "touch": 1}
    ids = pool.requests.table[row.index, :2].clone()
    pool.assign(rows, ids, ints(0, 2))
    assert since(looks) == {"assign": 1, "touch": 1}
    pool.release([row], rows, ints(9), pages={"full": 3, "window": 3})
    assert since(looks) == {"evict": 1, "release": 1, "touch": 1}
    pool.free(pool.alloc(3, also=["window"]), also={"window": 3})
    assert since(looks) == {"alloc": 2, "free": 2}, "once in each sub-pool"
    assert pool.audit() == []
    pool.check()


def test_a_call_whose_last_launch_is_refused_launches_none(pool):
    row = pool.open_row()
    rows = ints(row.index)
    out = {name: torch.zeros(14, dtype=torch.int32) for name in ("full", "window")}
    pool.extend(rows, ints(0), ints(0, 14), slots=out, pages=4)
    ids, sharer = pool.requests.table[row.index, :2].clone(), pool.open_row()
    before = everything(pool)
    pool.requests.versions.resize_(0)  # what the last launch of each of these writes to
    for wrong in (
        lambda: pool.truncate(rows, ints(14), ints(9), pages={"full": 1, "window": 1}),
        lambda: pool.release([row], rows, ints(14), pages={"full": 4, "window": 4}),
        lambda: pool.assign(ints(sharer.index), ids, ints(0, 2)),
    ):
        with pytest.raises(InvalidArgument, match="versions"):
            wrong()
    pool.requests.versions.resize_(4, before[0][-1].shape[1])
    tables, stats = everything(pool)
    assert stats == before[1]
    assert all(map(torch.equal, tables, before[0]))
