"""Under full checks what a pool refuses is told of the call that was made, not of one of its parts."""

import pytest
import torch
from pagebind.errors import FaultError, InvalidArgument
from pagebind.pool import SubPool, UnifiedPool

FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
WINDOW = SubPool(name="window", page_size=4, page_bytes=32, grows="down", ids_of="full")


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def made(checks="full"):
    sizes = {"max_requests": 4, "max_context": 32, "max_bs": 4, "max_tokens": 64}
    pool = UnifiedPool(2144, [FULL, WINDOW], **sizes, device="cpu", backend="cpu", checks=checks)
    row = pool.open_row()
    out = {name: torch.zeros(14, dtype=torch.int32) for name in ("full", "window")}
    pool.extend(ints(row.index), ints(0), ints(0, 14), slots=out, pages=4)
    return pool, row


def everything(pool):
    tables = [t.clone() for own in pool.tables.values() for t in own[:5]]
    return [*tables, pool.requests.table.clone(), pool.requests.versions.clone()], pool.stats()


def pages(full, window):
    return {"full": full, "window": window}


CALLS = {
    "assign": (
        lambda pool, row: pool.assign(ints(9), ints(1, 2), ints(0, 2)),
        "assign was refused, nothing was written: bad_row: 0",
        {"bad_row": [0]},
    ),
    "truncate": (
        lambda pool, row: pool.truncate(ints(9), ints(14), ints(9), pages=pages(1, 1)),
        "truncate was refused, nothing was written: bad_row: 0; count_mismatch: 0",
        {"bad_row": [0], "count_mismatch": [0]},
    ),
    "truncate-in-the-window": (
        lambda pool, row: pool.truncate(ints(row.index), ints(14), ints(9), pages=pages(1, 2)),
        "truncate was refused, nothing was written: count_mismatch: 1; found by evict in sub-pool 'window'",
        {"count_mismatch": [1]},
    ),
    "release": (
        lambda pool, row: pool.release([row], ints(9), ints(14), pages=pages(4, 4)),
        "release was refused, nothing was written: bad_row: 0; count_mismatch: 0",
        {"bad_row": [0], "count_mismatch": [0]},
    ),
    "release-in-the-window": (
        lambda pool, row: pool.release([row], ints(row.index), ints(14), pages=pages(4, 3)),
        "release was refused, nothing was written: count_mismatch: 4; found by evict in sub-pool 'window'",
        {"count_mismatch": [4]},
    ),
    "evict_window": (
        lambda pool, row: pool.evict_window(ints(row.index), ints(9), pages=1),
        "evict_window was refused, nothing was written: count_mismatch: 2; found by evict in sub-pool 'window'",
        {"count_mismatch": [2]},
    ),
    "free-in-the-window": (
        lambda pool, row: pool.free(pool.requests.table[row.index, :2].clone(), also={"window": 1}),
        "free was refused, nothing was written: count_mismatch: 2 in sub-pool 'window'",
        {"count_mismatch": [2]},
    ),
}


@pytest.mark.parametrize(("call", "told", "ids"), CALLS.values(), ids=CALLS)
def test_a_refused_call_is_named_as_it_was_made(call, told, ids):
    pool, row = made()
    before = everything(pool)
    with pytest.raises(FaultError) as caught:
        call(pool, row)
    assert str(caught.value) == told
    assert caught.value.ids == ids
    assert caught.value.counters == {name: len(found) for name, found in ids.items()}
    tables, stats = everything(pool)
    assert stats == before[1]
    assert all(map(torch.equal, tables, before[0]))


@pytest.mark.parametrize("checks", ["count", "full"])
def test_a_wrong_argument_has_the_name_that_the_call_gave_it(checks):
    pool, row = made(checks)
    rows, before = ints(row.index), everything(pool)
    for call, name in (
        (lambda: pool.truncate(rows, ints(14), ints(9, 9), pages=pages(1, 1)), "keep_lens"),
        (lambda: pool.truncate(rows, ints(14).long(), ints(9), pages=pages(1, 1)), "seq_lens"),
        (lambda: pool.release([row], rows, ints(14, 14), pages=pages(4, 4)), "seq_lens"),
        (lambda: pool.assign(ints(0, 0, 0, 0, 0), ints(1), ints(0, 0, 0, 0, 0, 1)), "the batch size"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{name} (has|is) "):
            call()
    tables, stats = everything(pool)
    assert stats == before[1]
    assert all(map(torch.equal, tables, before[0]))
