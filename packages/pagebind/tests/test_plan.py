"""plan(): what is refused when planned, what a planned call checks, and that it launches nothing for an empty batch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from pagebind import Backend, LaunchOptions, check, plan
from pagebind.errors import FaultError, InvalidArgument, Unsupported
from pagebind.ops import (
    BIND,
    OPERATIONS,
    READ_TABLE,
    TRANSLATE,
    Beside,
    BindSpec,
    ReadStreamSpec,
    ReadTableSpec,
    RefreshTableSpec,
    TranslateSpec,
)
from pagebind.words import BAD_ID, new_state, new_tables


class Launches:
    def __init__(self) -> None:
        self.calls = 0
        self.warm = 0

    def __call__(self, *args, **kwargs) -> None:
        self.calls += 1

    def warmup(self) -> None:
        self.warm += 1


@pytest.fixture
def launches():
    return Launches()


@pytest.fixture
def record(launches):
    seen = {}

    def planner(spec, device, options):
        seen["options"] = options
        return launches

    core = {name: planner for name, op in OPERATIONS.items() if op.level == "core"}
    backend = Backend(name="r", version="1", distribution="r", modes={"cpu": "cpu"}, planners=core)
    return backend, seen


SPEC = BindSpec(max_items=4)
PAIR = tuple(torch.tensor(cells, dtype=torch.int32) for cells in ([1], [1], [0, -1, -1], [0, -1, -1]))


def test_a_table_of_more_rows_than_an_int32_counts_is_refused(record, launches):
    spec = ReadTableSpec(max_bs=1, max_width=1, page_size=1, num_physical=2)
    table = plan(READ_TABLE, spec, backend=replace(record[0], features=READ_TABLE.features(spec)), device="cpu")
    one = torch.zeros(1, dtype=torch.int32)
    for rows in (2**31 - 1, 2**31):
        out = torch.empty(rows, 0, dtype=torch.int32)  # without columns, so without memory
        call = partial(table, one[None], one, one, one.new_zeros(3), out=out)
        if rows < 2**31:
            call()
        else:
            with pytest.raises(InvalidArgument, match=r"out has 2147483648 rows; a table has at most 2\*\*31 - 1"):
                call()
    assert launches.calls == 0


def test_a_planned_call_checks_then_launches(record, launches):
    bind = plan(BIND, SPEC, backend=record[0], device="cpu")
    bind(*PAIR)
    assert launches.calls == 1
    with pytest.raises(InvalidArgument, match=r"physical has dtype torch.int64; this plan takes torch.int32"):
        bind(PAIR[0], PAIR[1].long(), *PAIR[2:])
    with pytest.raises(InvalidArgument, match=r"the number of pairs is 5; this plan has max_items=4"):
        bind(*(torch.ones(5, dtype=torch.int32),) * 2, *PAIR[2:])
    with pytest.raises(InvalidArgument, match="dense"):
        bind(torch.ones(4, dtype=torch.int32)[::2], torch.ones(2, dtype=torch.int32), *PAIR[2:])
    bind(PAIR[0][:0], PAIR[1][:0], *PAIR[2:])
    assert launches.calls == 1, "refused or empty, nothing is launched"
    bind.warmup()
    assert launches.warm == 1


def test_options_reach_the_planner_and_checks_off_stops_counting(record):
    plan(BIND, SPEC, backend=record[0], device="cpu", options=LaunchOptions(threads=64, programs=2))
    assert record[1]["options"] == LaunchOptions(64, 2, count=True)
    plan(BIND, SPEC, backend=record[0], device="cpu", checks="off")
    assert record[1]["options"] == LaunchOptions(count=False)


def test_an_undeclared_feature_is_refused_by_name(record):
    spec = ReadTableSpec(max_bs=1, max_width=1, page_size=1, num_physical=2, windowed=True)
    with pytest.raises(Unsupported, match=r"'r' does not declare .*windowed for read_table; declared: nothing"):
        plan(READ_TABLE, spec, backend=record[0], device="cpu")
    declared = replace(record[0], features=frozenset(READ_TABLE.features(spec)))
    plan(READ_TABLE, spec, backend=declared, device="cpu")


def test_a_spec_of_another_operation_is_refused(record):
    with pytest.raises(InvalidArgument, match="spec is a BindSpec; translate is planned by a TranslateSpec"):
        plan(TRANSLATE, SPEC, backend=record[0], device="cpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReadTableSpec(max_bs=1, max_width=1, page_size=1, num_physical=1_500_001, multiplier=2000),
        lambda: TranslateSpec(max_items=1, page_size=2**16, num_physical=2**15 + 1),
        lambda: ReadStreamSpec(max_bs=1, max_items=1, page_size=0, num_physical=2),
        lambda: BindSpec(max_items=1, id_dtype=torch.int16),
        lambda: BindSpec(max_items=True),
        lambda: TranslateSpec(max_items=1, page_size=1, num_physical=2, ranks=2, rank=2),
    ],
)
def test_a_spec_that_cannot_be_right_is_refused_when_made(make):
    with pytest.raises(InvalidArgument):
        make()


def test_a_refresh_of_two_tables_is_refused_when_planned():
    sizes = {"max_bs": 1, "max_width": 1, "page_size": 1, "num_physical": 2}
    told = r"beside is Beside\(num_physical=2, .*; only a full build \(read_table\) writes two tables in one call"
    with pytest.raises(InvalidArgument, match=told):
        RefreshTableSpec(**sizes, beside=Beside(2))
    with pytest.raises(InvalidArgument, match="only a full build"):
        replace(RefreshTableSpec(**sizes), beside=Beside(2))
    with pytest.raises(InvalidArgument, match="max_bs is -1"):
        RefreshTableSpec(**{**sizes, "max_bs": -1})


def test_check_raises_with_every_counter_above_zero():
    state = new_state("cpu")
    check(state)
    state[BAD_ID] = 3
    with pytest.raises(FaultError, match="bad_id 3") as caught:
        check(state)
    assert caught.value.counters == {"bad_id": 3}


@pytest.mark.parametrize("operation", ["free", "unbind", "alloc", "compact"])
def test_outputs_that_share_memory_are_refused_and_nothing_changes(operation):
    tables = new_tables(9, 9, "cpu")
    op, shared = OPERATIONS[operation], torch.arange(8, dtype=torch.int32)
    sizes = {"max_pages": 8} if operation == "compact" else {"max_items": 8}
    call = plan(op, op.spec(**sizes), backend="cpu", device="cpu")
    given = {
        "free": ((shared[:4], tables), {"freed": shared[3:7]}),
        "unbind": ((shared[:4], tables.v2p, tables.p2v), {"freed": shared[:4]}),
        "alloc": ((tables,), {"ids": shared[:4], "pages": shared[2:6]}),
        "compact": ((tables,), {"retreat": 1, "sources": shared, "targets": shared}),
    }[operation]
    before = [t.clone() for t in tables[:5]]
    with pytest.raises(InvalidArgument, match="shares memory"):
        call(*given[0], **given[1])
    assert all(map(torch.equal, tables[:5], before))
