"""What one operation's own module does not ask: rows bound by hand, pages larger than a block, ids past 32 bits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from pagebind.ops import COMPACT, AllocSpec, CompactSpec, FreeSpec
from pagebind.words import Form

from pagebind_conformance import generate
from pagebind_conformance.oracle import DOWN, FLOAT, UP, Block, Chain, SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.compact import laid
from pagebind_conformance.suite.evict import spec as evict_spec
from pagebind_conformance.suite.extend import pool_of
from pagebind_conformance.suite.extend import spec as extend_spec
from pagebind_conformance.suite.read_stream import spec as stream_spec
from pagebind_conformance.suite.read_table import spec as table_spec
from pagebind_conformance.suite.release import spec as release_spec
from pagebind_conformance.suite.translate import spec as translate_spec
from pagebind_conformance.suite.truncate import spec as truncate_spec
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import call
from pagebind_conformance.trial.compact import compact, compact_case
from pagebind_conformance.trial.evict import evict
from pagebind_conformance.trial.extend import extend, extend_and_tell
from pagebind_conformance.trial.free import free
from pagebind_conformance.trial.read_stream import read_stream
from pagebind_conformance.trial.read_table import read_table
from pagebind_conformance.trial.release import release
from pagebind_conformance.trial.translate import translate
from pagebind_conformance.trial.truncate import truncate

forms = pytest.mark.parametrize("form", ["token", "page"])
page_sizes = pytest.mark.parametrize("page_size", [1, 2, 3], ids="ps{}".format)
index_dtypes = pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["i32", "i64"])


@forms
@page_sizes
@pytest.mark.parametrize("junk", [None, 12, 0, -1], ids="junk{}".format)
@pytest.mark.extended
def test_extend_drops_and_counts_what_is_bound_by_hand(
    subject: Subject, page_size: int, form: Form, junk: int | None
) -> None:
    pool = pool_of({3: 5}, [2, 4], [1, 9, 8, 7], 5)
    if junk is None:
        pool.v2p[8], pool.p2v[11] = 11, 8  # an id, next but one on the stack
        pool.v2p[6], pool.p2v[2] = 2, 6  # a page, a hole
    else:
        pool.virtual_stack[pool.virtual_top - 1], pool.hole_stack[0] = junk, junk
    rows = [generate.spread([-1] * 4, page_size, form)]
    new = 4 * page_size
    extend(subject, extend_spec(page_size, form=form), rows, [0], [0], [0, new], pool, capacity=new, pages=4)


@pytest.mark.parametrize("junk", [12, 13, 2**31 - 1, 0, -2, -(2**31)])
@pytest.mark.extended
def test_a_row_of_v2p_that_holds_no_page_is_dropped_and_counted(subject: Subject, junk: int) -> None:
    def wrong() -> SubPool:
        pool = pool_of({3: 5, 2: 4}, [], [], 5)
        pool.v2p[7] = junk
        return pool

    free(subject, FreeSpec(max_items=512), wrong(), [7, 3, 7])
    for form in ("token", "page"):
        rows = [generate.spread([7, 3, 2], 3, form)]
        for keep in (2, 0):
            truncate(subject, truncate_spec(3, form=form), rows, [0], [9], [keep], wrong(), capacity=4)
        release(subject, release_spec(3, form=form), rows, [0], [9], wrong(), capacity=4)


@page_sizes
def test_case_20_two_tables_of_one_shape_are_two_tables(subject: Subject, page_size: int) -> None:
    for v2p, wanted in (([0, 1, 2, -1], [1, 2]), ([0, 2, 1, -1], [2, 1]), ([0, 1, 2, -1], [1, 2])):
        ids = generate.spread([1, 2], page_size, "token")
        assert translate(subject, translate_spec(page_size), ids, v2p) == generate.spread(wanted, page_size, "token")


@page_sizes
@pytest.mark.parametrize("ranks", [2, 3])
def test_case_07_every_rank_at_every_page_size(subject: Subject, page_size: int, ranks: int) -> None:
    width = page_size * ranks
    ids = [*range(width, 2 * width), 0, -1]
    for rank in range(ranks):
        wanted = [3 * page_size + k // ranks if k % ranks == rank else 0 for k in range(width)] + [0, 0]
        assert translate(subject, translate_spec(page_size, ranks=ranks, rank=rank), ids, [0, 3, -1]) == wanted


@page_sizes
@forms
@index_dtypes
@pytest.mark.extended
def test_case_10_token_entries_past_32_bits(
    subject: Subject, page_size: int, form: Form, index_dtype: torch.dtype
) -> None:
    big = {"num_physical": 1_500_001, "multiplier": 2000, "out_dtype": torch.int64, "index_dtype": index_dtype}
    v2p, row = [0, 1_500_000, -1], generate.spread([1], page_size, form)
    tokens = [3_000_000_000 * page_size + i for i in range(page_size)]
    pages = table_spec(page_size, form=form, **big)
    assert read_table(subject, pages, [row], [0], [1], v2p, width=1) == [[3_000_000_000]]
    wide = table_spec(page_size, form=form, granularity="token", **big)
    assert read_table(subject, wide, [row], [0], [page_size], v2p, width=page_size) == [tokens]
    packed = stream_spec(page_size, form=form, granularity="token", **big)
    given = ([row], [0], [page_size], v2p, [0, page_size])
    assert read_stream(subject, packed, *given, capacity=page_size)[0] == tokens
    ids = generate.spread([1], page_size, "token")
    assert translate(subject, translate_spec(page_size, **big), ids, v2p) == tokens
    pool = SubPool([0, -1, -1], [0] + [-1] * 2001, [1, 0], [0] * 2001, 1, 0, 1999)
    spec = extend_spec(page_size, form=form, **(big | {"num_physical": 2001, "multiplier": 1_500_000}))
    rows = [[-1] * page_size]
    assert extend(subject, spec, rows, [0], [0], [0, page_size], pool, capacity=page_size)[2] == tokens


@page_sizes
@pytest.mark.extended
def test_case_10_pages_past_32_bits(subject: Subject, page_size: int) -> None:
    far = {"num_physical": 5_000_000_000, "index_dtype": torch.int64, "out_dtype": torch.int64}
    v2p = [0, 4_000_000_000, -1]
    spec = table_spec(page_size, form="page", **far)
    assert read_table(subject, spec, [[1]], [0], [page_size], v2p, width=1) == [[4_000_000_000]]
    assert translate(subject, translate_spec(page_size, **far), [page_size], v2p) == [4_000_000_000 * page_size]
    packed = stream_spec(page_size, form="page", **far)
    assert read_stream(subject, packed, [[1]], [0], [page_size], v2p, [0, 1], capacity=1)[0] == [4_000_000_000]


@forms
@pytest.mark.parametrize("page_size", [64, 100, 257])
@pytest.mark.extended
def test_pages_larger_than_a_block(subject: Subject, page_size: int, form: Form) -> None:
    rng = Random(page_size)
    v2p, _ = generate.page_tables(rng, 20, 512, 15)
    row, n = generate.spread([5, 9, 3], page_size, form), 2 * page_size + page_size // 2
    read_table(subject, table_spec(page_size, form=form), [row], [0], [n], v2p, width=3)
    tokens = table_spec(page_size, form=form, granularity="token", max_width=1024)
    read_table(subject, tokens, [row], [0], [n], v2p, width=3 * page_size)
    packed = stream_spec(page_size, form=form, granularity="token")
    read_stream(subject, packed, [row], [0], [n], v2p, [0, n], capacity=n)
    translate(subject, translate_spec(page_size), list(range(4 * page_size - 3, 6 * page_size + 3)), v2p)
    pool, first, more = generate.sub_pool(rng, 40, 40, 5, 4), page_size // 2, 2 * page_size
    rows, spec = [generate.spread([-1] * 4, page_size, form)], extend_spec(page_size, form=form)
    rows, pool, _ = extend(subject, spec, rows, [0], [0], [0, first], pool, capacity=first, pages=1)
    rows, pool, _ = extend(subject, spec, rows, [0], [first], [0, more], pool, capacity=more, pages=2)
    cut = truncate_spec(page_size, form=form)
    rows, pool, _ = truncate(subject, cut, rows, [0], [first + more], [first], pool, capacity=4, pages=2)
    release(subject, release_spec(page_size, form=form), rows, [0], [first], pool, capacity=4, pages=1)


@pytest.mark.parametrize("multiplier", [1, 3])
def test_a_row_of_v2p_below_the_tombstone_reads_as_the_sink(subject: Subject, multiplier: int) -> None:
    v2p, wanted = [0, -7, -(2**31), 5, -1], [0, 0, 5 * multiplier]
    assert read_table(subject, table_spec(1, multiplier=multiplier), [[1, 2, 3]], [0], [3], v2p, width=3) == [wanted]
    assert translate(subject, translate_spec(1, multiplier=multiplier), [1, 2, 3], v2p) == wanted


@pytest.mark.extended
def test_tables_of_a_sink_alone(subject: Subject) -> None:
    def nothing() -> SubPool:
        return SubPool([0, -1], [0, -1], [0], [0], 0, 0, 0)

    translate(subject, translate_spec(2), [0, 1, 2, -1], [0, -1])
    read_table(subject, table_spec(1), [[0, 1, -1]], [0], [3], [0, -1], width=3)
    free(subject, FreeSpec(max_items=512), nothing(), [0, 1])
    alloc(subject, AllocSpec(max_items=512), nothing(), 2)
    alloc(subject, AllocSpec(max_items=512, borrowed=True), nothing(), [0, 1, -1])
    compact(subject, CompactSpec(max_pages=4), nothing(), 1)
    chained = nothing()._replace(chain=Chain((Block(UP, 0, 1), Block(FLOAT, 1, 0), Block(DOWN, 1, 1)), 1))
    alloc(subject, AllocSpec(max_items=512), chained, 2)
    for form in ("token", "page"):
        extend(subject, extend_spec(2, form=form), [[-1] * 4], [0], [0], [0, 3], nothing(), capacity=3)
        evict(subject, evict_spec("head", 2, form=form), [[1, 0, -1, 3]], [0], [0], [4], nothing(), [0], capacity=2)


@pytest.mark.extended
def test_ids_bound_by_hand_cannot_push_past_the_end_of_a_stack(subject: Subject) -> None:
    pool = SubPool([0, 1, 2, 3, -1], [0, 1, 2, 3, -1], [3, 2, 1, 0], [0] * 4, 3, 0, 0)  # all bound, all on the stack
    free(subject, FreeSpec(max_items=512), pool, [1, 2, 3])


@forms
@page_sizes
@index_dtypes
@pytest.mark.extended
def test_ids_that_an_extension_tells_go_to_a_borrower_and_come_back_by_rows(
    subject: Subject, page_size: int, form: Form, index_dtype: torch.dtype
) -> None:
    """A window beside its owner: what starves is borrowed by nobody, a head goes early, a tail before its truncate."""
    kinds: dict[str, Any] = {"index_dtype": index_dtype}
    owner = generate.sub_pool(Random(page_size), 12, 9, 0, 0)  # 8 pages
    window = SubPool([0, *[-1] * 12], [0, *[-1] * 6], [0] * 12, [0] * 6, 0, 0, 0)  # 5 pages, ids of the owner
    rows, lanes = [generate.spread([-1] * 6, page_size, form) for _ in range(2)], [1, 0]
    growing = extend_spec(page_size, form=form, emits=True, **kinds)
    borrow = AllocSpec(max_items=512, borrowed=True, **kinds)
    tokens = 4 * page_size
    rows, owner, _, told = extend_and_tell(
        subject, growing, rows, lanes, [0, 0], [0, tokens, 2 * tokens], owner, 10, capacity=2 * tokens, pages=8
    )
    assert told is not None
    window, _, pages = alloc(subject, borrow, window, told.new_ids)
    assert pages == [1, 2, 3, 4, 5, *[0] * 5]
    head = evict_spec("head", page_size, form=form, **kinds)
    window, first, _ = evict(
        subject, head, rows, lanes, [0, 0], [2 * page_size, page_size], window, [0, 0], capacity=4, pages=3
    )
    assert first == [1, 2]
    more = 2 * page_size
    rows, owner, _, told = extend_and_tell(
        subject, growing, rows, lanes, [tokens] * 2, [0, more, 2 * more], owner, 6, capacity=2 * more, pages=4
    )
    assert told is not None
    assert told.new_ids == [0, 0, 0, 0, -1, -1]
    window, _, pages = alloc(subject, borrow, window, told.new_ids)
    assert not any(pages)
    tail = evict_spec("tail", page_size, form=form, **kinds)
    lens = [tokens + more] * 2
    window, first, freed = evict(subject, tail, rows, lanes, [page_size] * 2, lens, window, first, capacity=12)
    assert first == [1, 1]
    assert sum(p > 0 for p in freed) == 2
    cut = truncate_spec(page_size, form=form, **kinds)
    rows, owner, _ = truncate(subject, cut, rows, lanes, lens, [page_size] * 2, owner, capacity=12)
    assert (window.hole_top, window.watermark, owner.hole_top) == (5, 5, 6)


@index_dtypes
@pytest.mark.parametrize("fault", ["hole-twice", "fresh-page-bound"])
@pytest.mark.extended
def test_two_pages_that_would_meet_leave_the_tables_inverse(
    subject: Subject, index_dtype: torch.dtype, fault: str
) -> None:
    """Pages 11 to 70: seven of them holes, of which one is twice on the stack; or all live, and page 8 bound below."""
    twice = fault == "hole-twice"
    holes = [11, 12, 13, 14, 15, 16, 15] if twice else []
    pool = laid(range(18 if twice else 11, 71), holes, seat=10)
    if not twice:
        v = pool.virtual_stack[0]
        pool.v2p[v], pool.p2v[8] = 8, v
    moved = [pool.p2v[p] for p in range(66, 71)]
    planned = CompactSpec(max_pages=5, index_dtype=index_dtype)
    arguments = compact_case(subject, planned, pool, 5, fresh=0 if twice else 5)
    call(subject.plan(COMPACT, planned), COMPACT, arguments)
    v2p, p2v = (arguments["tables"].parts[name].values() for name in ("v2p", "p2v"))
    bound = {v: p for v, p in enumerate(v2p) if p > 0}
    assert bound == {v: p for p, v in enumerate(p2v) if v > 0}
    assert arguments["sources"].values() == [66, 67, 68, 69, 70]
    assert arguments["targets"].values() == ([15, 16, 15, 14, 13] if twice else [10, 9, 8, 7, 6])
    assert sum(v in bound for v in moved) == 4  # of the two that meet, one keeps a page
