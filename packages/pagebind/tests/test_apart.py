"""What a call writes lies apart from all else that it is given; tensors that only interleave are let through."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pagebind import plan
from pagebind.errors import InvalidArgument
from pagebind.ops import (
    BIND,
    OPERATIONS,
    READ_TABLE,
    TRANSLATE,
    UNBIND,
    Beside,
    BindSpec,
    ReadTableSpec,
    SecondTable,
    TranslateSpec,
    UnbindSpec,
)
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.words import new_tables
from pagebind_conformance.trial.call import call, compare
from pagebind_conformance.trial.sample import sample


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def addresses(tensor: torch.Tensor) -> set[int]:
    # Every byte of every cell, one by one.
    offsets = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    cells = offsets.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()
    begin, unit = tensor.untyped_storage().data_ptr(), tensor.element_size()
    return {begin + cell * unit + byte for cell in set(cells) for byte in range(unit)}


BUFFER = torch.zeros(64, dtype=torch.int32)


@st.composite
def tables(draw, *, rows_may_overlap=False):
    buffer = BUFFER.view(draw(st.sampled_from([torch.int32, torch.int64])))
    if draw(st.booleans()):
        size = draw(st.integers(0, 9))
        return buffer[draw(st.integers(0, 9)) :][:size]
    rows, width = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    stride = draw(st.integers(0 if rows_may_overlap else width, 9))
    begin = draw(st.integers(0, 20))
    assume(begin + max(rows - 1, 0) * stride + width <= buffer.shape[0])
    return buffer.as_strided((rows, width), (stride, 1), begin)


@given(tables(), tables(), tables(rows_may_overlap=True), tables(rows_may_overlap=True))
def test_a_call_is_refused_exactly_where_cells_are_shared(out, table, read, other):
    used = [addresses(tensor) for tensor in (out, table, read, other)]
    shared = [
        (name, of)
        for name, of, a, b in (
            ("table", "out", 1, 0),
            ("out", "read", 0, 2),
            ("out", "other", 0, 3),
            ("table", "read", 1, 2),
            ("table", "other", 1, 3),
        )
        if used[a] & used[b]
    ]
    told = None
    try:
        need_memory_of_its_own("out none table", (out, None, table), "read other", (read, other))
    except InvalidArgument as error:
        told = str(error)
    messages = [f"{name} shares memory with {of}; pass a tensor of its own" for name, of in shared]
    assert told in (messages or [None])


def test_tables_that_interleave_by_strides_of_their_own_are_let_through():
    buffer = torch.full((80,), -7, dtype=torch.int32)
    sizes = {"max_bs": 4, "max_width": 4, "page_size": 1, "num_physical": 9}
    call = plan(READ_TABLE, ReadTableSpec(**sizes, beside=Beside(9)), backend="cpu", device="cpu")
    requests, v2p = torch.arange(1, 9, dtype=torch.int32).reshape(2, 4), new_tables(9, 9, "cpu").v2p
    v2p[:9] = torch.arange(9, dtype=torch.int32)
    batch = (requests, ints(0, 1), ints(4, 4), v2p)
    out = buffer.as_strided((4, 4), (8, 1), 0)
    between = buffer.as_strided((2, 4), (16, 1), 4)
    call(*batch, out=out, beside=SecondTable(v2p, between))
    assert torch.equal(out[:2], requests)
    assert torch.equal(between, requests)
    assert (out[2:] == -7).all()
    for begin in (0, 1, 3, 7, 9):
        across = buffer.as_strided((2, 4), (16, 1), begin)
        with pytest.raises(InvalidArgument, match=r"beside\.out shares memory with out; pass a tensor of its own"):
            call(*batch, out=out, beside=SecondTable(v2p, across))


# Tensors that would be one, by operation and variant: the one that is written, and another one.
TWICE = [
    (("read_table", ""), [("out", "request_table"), ("out", "v2p"), ("out", "seq_lens"), ("out", "req_rows")]),
    (("read_stream", ""), [("out", "indptr"), ("table", "request_table"), ("table", "out"), ("out", "v2p")]),
    (("refresh_table", ""), [("out", "request_table"), ("built", "out"), ("built", "versions"), ("out", "seq_lens")]),
    (("refresh_table", "borrowed"), [("built", "first")]),
    (("bind", ""), [("p2v", "v2p"), ("v2p", "virtual"), ("p2v", "physical")]),
    (("unbind", ""), [("p2v", "v2p"), ("freed", "ids"), ("p2v", "ids"), ("freed", "v2p")]),
    (("alloc", ""), [("pages", "ids")]),
    (("free", ""), [("freed", "ids")]),
    (
        ("extend", "emits"),
        [("slots", "indptr"), ("slots", "prefix_lens"), ("new_ids", "slots"), ("new_pages", "new_ids")],
    ),
    (("advance", "emits"), [("slots", "seq_lens"), ("seq_lens", "req_rows"), ("token_ids", "slots")]),
    (("advance", "append"), [("table", "request_table"), ("table", "seq_lens")]),
    (("truncate", ""), [("freed", "keep_lens"), ("freed", "request_table"), ("request_table", "seq_lens")]),
    (("release", ""), [("freed", "seq_lens"), ("freed", "req_rows")]),
    (("evict", "tail"), [("freed", "req_rows"), ("first", "starts"), ("first", "lens"), ("first", "request_table")]),
    (("assign", ""), [("request_table", "indptr"), ("request_table", "req_rows")]),
    (("touch", ""), [("versions", "tokens"), ("versions", "req_rows")]),
    (("compact", ""), [("targets", "sources")]),
]


@pytest.mark.parametrize(
    ("operation", "variant", "written", "other"),
    [(*call, *pair) for call, pairs in TWICE for pair in pairs],
    ids="{}".format,
)
def test_a_tensor_that_is_given_twice_is_refused_and_nothing_changes(operation, variant, written, other):
    op = OPERATIONS[operation]
    spec, arguments = sample(op, torch.device("cpu"), 5, variant)
    one, two = arguments[written].view, arguments[other].view
    memory = torch.ones(max(one.numel(), two.numel()), dtype=one.dtype)
    given = {**arguments, written: memory[: one.numel()].view(one.shape), other: memory[: two.numel()].view(two.shape)}
    planned = plan(op, spec, backend="cpu", device="cpu")
    with pytest.raises(
        InvalidArgument, match=rf"^({written} shares memory with {other}|{other} .* with {written}); pass a"
    ):
        call(planned, op, given)
    compare(arguments)
    assert (memory == 1).all()


def test_ids_that_are_rows_of_the_tables_are_refused():
    tables = new_tables(9, 9, "cpu")
    unbind = plan(UNBIND, UnbindSpec(max_items=8), backend="cpu", device="cpu")
    with pytest.raises(InvalidArgument, match="p2v shares memory with ids"):
        unbind(tables.p2v[1:4], tables.v2p, tables.p2v, freed=ints(0, 0, 0))
    bind = plan(BIND, BindSpec(max_items=8), backend="cpu", device="cpu")
    with pytest.raises(InvalidArgument, match="v2p shares memory with physical"):
        bind(ints(1, 2), tables.v2p[1:3], tables.v2p, tables.p2v)


SIDE = torch.arange(1, 65, dtype=torch.int32)


@pytest.mark.parametrize(
    ("ids", "out", "fine"),
    [
        (SIDE[:8], SIDE[:8], True),
        (SIDE[:8], SIDE[8:16], True),
        (SIDE[:8], SIDE[1:9], False),
        (SIDE[3:11], SIDE[:8], False),
        (SIDE.view(8, 8)[:, 0], SIDE.view(8, 8)[:, 1], True),
        (SIDE.view(8, 8)[:, 0], SIDE[8:].view(7, 8)[:, 0], False),
        (SIDE.view(8, 8)[:4, :4], SIDE.view(8, 8)[:4, 4:], True),
        (SIDE.view(8, 8)[:4, :4], SIDE.view(8, 8)[:4, 3:7], False),
        (SIDE.view(8, 8)[:4, :4], SIDE.view(8, 8)[1:5, :4], False),
        (SIDE.view(8, 8)[:4, :4].T, SIDE.view(8, 8)[:4, :4].T, True),
        (SIDE.view(8, 8)[:4, :4].T, SIDE.view(8, 8)[:4, :4], False),
    ],
    ids=range(11),
)
def test_a_translation_is_in_place_cell_by_cell_or_apart(ids, out, fine):
    if ids.shape != out.shape:
        ids = ids[: out.shape[0]]
    call = plan(TRANSLATE, TranslateSpec(max_items=64, page_size=1, num_physical=99), backend="cpu", device="cpu")
    v2p, before, wanted = torch.arange(1, 100, dtype=torch.int32), SIDE.clone(), ids + 1
    try:
        if fine:
            call(ids, v2p, out=out)
            assert torch.equal(out, wanted)
        else:
            with pytest.raises(InvalidArgument, match="out shares memory with ids, and not each cell with its own id"):
                call(ids, v2p, out=out)
            assert torch.equal(SIDE, before)
    finally:
        SIDE.copy_(before)


def test_a_translation_to_another_dtype_is_not_in_place():
    memory = torch.zeros(8, dtype=torch.int64)
    spec = TranslateSpec(max_items=8, page_size=1, num_physical=99, out_dtype=torch.int64)
    call = plan(TRANSLATE, spec, backend="cpu", device="cpu")
    with pytest.raises(InvalidArgument, match="out shares memory with ids"):
        call(memory.view(torch.int32)[:8], torch.arange(100, dtype=torch.int32), out=memory)
