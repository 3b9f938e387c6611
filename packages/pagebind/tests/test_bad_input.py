"""Input that no plan and no call can take gets an error that names it: tensors without memory, options, sizes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from pagebind import LaunchOptions, plan
from pagebind.backend import Backend
from pagebind.errors import InvalidArgument
from pagebind.operation import NoWarmup
from pagebind.ops import (
    BIND,
    FEATURES,
    OPERATIONS,
    READ_TABLE,
    AdvanceSpec,
    AllocSpec,
    BindSpec,
    CompactSpec,
    ExtendSpec,
    ReadStreamSpec,
    ReadTableSpec,
    RefreshTableSpec,
    TranslateSpec,
)
from pagebind.pool import SubPool, UnifiedPool, page_pool
from pagebind.words import PageTables, new_tables
from pagebind_conformance.trial.call import call
from pagebind_conformance.trial.sample import CALL_IDS, CALLS, sample

CPU = {"backend": "cpu", "device": "cpu"}


def sparse(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_sparse()


def sparse_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_sparse_csr() if tensor.dim() == 2 else tensor.to_sparse()


def nested(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([tensor[:1], tensor[:2]])


def meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


MADE = {sparse: r"sparse \(torch\.sparse_coo\)", sparse_rows: "sparse", nested: "a nested tensor", meta: "on meta;"}


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse)")
@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("operation", "variant"), CALLS, ids=CALL_IDS)
def test_a_tensor_without_memory_of_its_own_here_is_refused_by_name(operation, variant, make):
    spec, arguments = sample(operation, torch.device("cpu"), 5, variant)
    planned = plan(operation, spec, **CPU)
    tried = 0
    for name, value in arguments.items():
        if not hasattr(value, "view"):
            continue
        tried += 1
        with pytest.raises(InvalidArgument, match=rf"^{name} is {MADE[make]}"):
            call(planned, operation, {**arguments, name: make(value.view)})
    assert tried or operation.name == "alloc"


@pytest.mark.filterwarnings("ignore:.*(nested|Sparse)")
@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("field", ["v2p", "p2v", "virtual_stack", "hole_stack", "state"])
def test_tables_without_memory_of_their_own_here_are_refused_by_name(field, make):
    tables = new_tables(9, 9, "cpu")
    wrong: PageTables = tables._replace(**{field: make(getattr(tables, field))})
    alloc = plan(OPERATIONS["alloc"], AllocSpec(max_items=2), **CPU)
    ids, pages = torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(InvalidArgument, match=rf"^{field} is {MADE[make]}"):
        alloc(wrong, ids=ids, pages=pages)


@pytest.mark.parametrize("size", [0, 1])
def test_a_sparse_tensor_of_at_most_one_column_is_refused_too(size):
    read = plan(READ_TABLE, ReadTableSpec(max_bs=2, max_width=4, page_size=1, num_physical=9), **CPU)
    rows = torch.zeros(size, dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="seq_lens is sparse"):
        read(torch.zeros(4, 4, dtype=torch.int32), rows, rows.to_sparse(), rows.new_zeros(9), out=rows.new_zeros(2, 4))


NOTHING = Backend(
    name="nothing",
    version="1",
    distribution="none",
    modes={"meta": "cpu"},
    planners=dict.fromkeys(OPERATIONS, lambda spec, device, options: NoWarmup(lambda *args, **kwargs: None)),
    features=FEATURES,
)


def test_full_checks_are_refused_where_tensors_have_no_values():
    plan(BIND, BindSpec(max_items=1), backend=NOTHING, device="meta")
    with pytest.raises(InvalidArgument, match=r"checks is 'full' for bind on meta; .*: plan with checks=count"):
        plan(BIND, BindSpec(max_items=1), backend=NOTHING, device="meta", checks="full")


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        *((value, "it must be an int") for value in (1.5, 64.0, "64", True, False)),
        *((value, "it must be at least 1") for value in (0, -1)),
        (2**63, f"it must be from 1 to {2**63 - 1}"),
    ],
)
@pytest.mark.parametrize("name", ["threads", "programs"])
def test_options_that_no_launch_can_have_are_refused_when_made(name, value, allowed):
    with pytest.raises(InvalidArgument, match=rf"^options\.{name} is {value!r}; {allowed}$"):
        LaunchOptions(**{name: value})
    with pytest.raises(InvalidArgument, match=f"options.{name} is"):
        replace(LaunchOptions(), **{name: value})
    assert getattr(LaunchOptions(**{name: 1}), name) == 1


@pytest.mark.parametrize("value", [1, "no", None])
def test_whether_to_count_is_true_or_false(value):
    with pytest.raises(InvalidArgument, match=rf"options\.count is {value!r}; it must be True or False"):
        LaunchOptions(count=value)


@pytest.mark.parametrize("options", [{"threads": 64}, {}, 64])
def test_options_of_another_type_are_refused(options):
    with pytest.raises(InvalidArgument, match=f"options is a {type(options).__name__}; it must be a LaunchOptions"):
        plan(BIND, BindSpec(max_items=1), **CPU, options=options)


@pytest.mark.parametrize("operation", ["bind", None, BindSpec])
def test_what_is_no_operation_is_refused(operation):
    with pytest.raises(InvalidArgument, match=r"operation is .*; it must be one of pagebind\.ops"):
        plan(operation, BindSpec(max_items=1), **CPU)


TABLE = partial(ReadTableSpec, max_bs=1, max_width=1, page_size=1)
POOL = partial(
    UnifiedPool, max_requests=2, max_context=8, max_bs=2, max_tokens=8, device="cpu", backend="cpu", buffer=False
)
FULL = SubPool(name="full", page_size=4, page_bytes=64, grows="up")
HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TABLE(num_physical=2**64), f"num_physical is {2**64}; it must be from 1 to {2**63 - 1}"),
        (lambda: BindSpec(max_items=2**63), f"max_items is {2**63}; it must be from 0 to {2**63 - 1}"),
        (lambda: BindSpec(max_items=-1), "max_items is -1; it must be at least 0"),
        (lambda: CompactSpec(max_pages=2**31), f"max_pages is {2**31}; it must be from 0 to {2**31 - 1}"),
        (lambda: RefreshTableSpec(max_bs=2**31, max_width=1, page_size=1, num_physical=2), f"max_bs is {2**31}; it"),
        (lambda: TranslateSpec(max_items=1, page_size=2**20, num_physical=2, ranks=2**20), "page_size * ranks is"),
        (lambda: new_tables(2**31, 9, "cpu"), f"num_virtual is {2**31}; it must be an int from 1, the sink, to {HUGE}"),
        (lambda: new_tables(9, 2**31, "cpu"), f"num_physical is {2**31}; it must be an int from 1, the sink, to"),
        (lambda: new_tables(9, 0, "cpu"), "num_physical is 0; it must be an int from 1, the sink, to"),
        (lambda: new_tables(9.5, 9, "cpu"), "num_virtual is 9.5; it must be an int from 1, the sink, to"),
        (lambda: new_tables(2**63, 9, "cpu", torch.int64), f"num_virtual is {2**63}; it must be an int from 1"),
        (lambda: POOL(2**63, [FULL]), f"total_bytes is {2**63}; it must be from 1 to {2**63 - 1}"),
        (lambda: POOL(2**40, [replace(FULL, page_bytes=16)]), "the pages of sub-pool 'full' in total_bytes"),
        (lambda: POOL(2**12, [FULL], ranks=2**31), f"ranks is {2**31}; it must be from 1 to {2**31 - 1}"),
        (lambda: POOL(2**12, ["full"]), "sub_pools has a str; each must be a SubPool"),
    ],
    ids=range(15),
)
def test_a_size_that_cannot_be_is_refused_by_name_with_its_limit(make, told):
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: POOL(2**12, [FULL], max_requests=HUGE, max_context=HUGE, form="token"),
            f"a request table of max_requests={HUGE} rows of {HUGE} cells (max_context={HUGE}) cannot be had",
        ),
        (
            lambda: POOL(2**60, [replace(FULL, page_bytes=2**30)], buffer=True),
            f"a buffer of total_bytes={2**60} cannot",
        ),
    ],
    ids=["request-table", "buffer"],
)
def test_memory_that_cannot_be_had_is_told_by_the_sizes_that_ask_for_it(make, told):
    with pytest.raises(RuntimeError) as caught:
        make()
    assert told in str(caught.value)
    assert str(caught.value.__cause__) in str(caught.value), "what torch said stays in the message"


@pytest.mark.parametrize("spec", [partial(ExtendSpec, max_tokens=1), AdvanceSpec], ids=["extend", "advance"])
def test_token_ids_past_what_a_request_table_holds_are_refused(spec):
    most = 2**29
    spec(max_bs=1, page_size=4, num_virtual=most, num_physical=8)
    with pytest.raises(InvalidArgument, match=r"token id is 2147483651 .* plan form='page', or fewer ids"):
        spec(max_bs=1, page_size=4, num_virtual=most + 1, num_physical=8)
    spec(max_bs=1, page_size=4, num_virtual=most + 1, num_physical=8, form="page")


NEW = partial(AdvanceSpec, max_bs=1, page_size=4, num_virtual=2, form="page")
WIDE = {"num_physical": 3, "multiplier": 2**28}
IDS = {"num_physical": 3, "num_virtual": 2**29 + 1, "emits": True}


@pytest.mark.parametrize(
    ("spec", "sizes", "field"),
    [
        (TABLE, {"num_physical": 2**31 + 1}, "out_dtype"),
        (partial(TABLE, granularity="token", page_size=4), WIDE, "out_dtype"),
        (partial(TranslateSpec, max_items=1, page_size=4), WIDE, "out_dtype"),
        (partial(ReadStreamSpec, max_bs=1, max_items=1, granularity="token", page_size=4), WIDE, "out_dtype"),
        (NEW, WIDE, "out_dtype"),
        (partial(NEW, appends=True, granularity="token", out_dtype=torch.int64), WIDE, "table_dtype"),
        (NEW, IDS, "id_dtype"),
        (partial(NEW, page_size=1, num_physical=2**31 + 1, out_dtype=torch.int64), {"emits": True}, "id_dtype"),
    ],
    ids=range(8),
)
def test_what_int32_cannot_hold_is_refused_with_the_field_that_takes_int64(spec, sizes, field):
    with pytest.raises(InvalidArgument, match=rf"the largest .*holds.*2147483647.*plan {field}=torch\.int64$"):
        spec(**sizes)
    spec(**sizes, **{field: torch.int64})


def test_entries_past_int64_are_refused_with_what_makes_them_smaller():
    with pytest.raises(
        InvalidArgument, match=r"more than torch\.int64 holds .*; lower the multiplier or num_physical$"
    ):
        TABLE(num_physical=2**33, multiplier=2**33, out_dtype=torch.int64)


@pytest.mark.parametrize("ranks", [1, 2])
def test_slots_past_int32_are_refused_with_what_a_pool_can_change(ranks):
    sizes = {**POOL.keywords, "ranks": ranks}
    del sizes["buffer"]
    with pytest.raises(InvalidArgument) as caught:
        page_pool(2, 4, multiplier=2**28, **sizes)
    told = (
        f"the largest slot of sub-pool 'pages' is {2**31 + 3} (3 pages with the sink, multiplier {2**28}, page_size 4)"
    )
    assert told in str(caught.value)
    advice = "make the pool smaller, or lower the sub-pool's multiplier or page_size"
    assert str(caught.value).endswith(f"more than the int32 slots of a pool hold ({2**31 - 1}); {advice}")
    page_pool(1, 4, multiplier=2**28, **sizes)
    page_pool(2, 4, multiplier=2**28 - 1, **sizes)
    page_pool(2, 3, multiplier=2**28, **sizes)


def test_the_sub_pool_whose_slots_do_not_fit_is_named():
    window = replace(FULL, name="window", grows="down", ids_of="full", multiplier=2**28)
    with pytest.raises(InvalidArgument, match=r"the largest slot of sub-pool 'window' is .* lower the sub-pool's"):
        POOL(2**12, [FULL, window])
