"""A call like an earlier one is launched unchecked; whatever is different about a call, it is checked anew."""

import gc
import sys
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from pagebind import Backend, Operation, plan
from pagebind.errors import InvalidArgument
from pagebind.operation import NoWarmup
from pagebind.ops import (
    ALLOC,
    FREE,
    OPERATIONS,
    READ_TABLE,
    AllocSpec,
    Beside,
    FreeSpec,
    ReadTableSpec,
    SecondTable,
)
from pagebind.repeat import Memory, alike, memory
from pagebind.repeat.signature import signature_of
from pagebind.words import new_state, new_tables


def addresses(arguments) -> tuple[int, ...]:
    return tuple(value.data_ptr() for value in arguments if isinstance(value, torch.Tensor))


class Launches:
    """Notes how it was asked to launch, by which host thread, and for tensors at which addresses."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.given: list[tuple[int, tuple[int, ...]]] = []
        self.fails = False

    def note(self, how, given) -> None:
        if self.fails:
            raise RuntimeError("no launch")
        self.done.append(how)
        self.given.append((threading.get_ident(), given))

    def __call__(self, *args, **kwargs) -> None:
        self.note("launch", addresses((*args, *kwargs.values())))

    def repeatable(self, *args, **kwargs):
        given = addresses((*args, *kwargs.values()))
        self.note("repeatable", given)
        return lambda: self.note("again", given)

    def warmup(self) -> None:
        """Nothing to compile."""

    def since(self) -> list[str]:
        done, self.done = self.done, []
        return done


class Unrepeatable(Launches):
    repeatable = None


def planned(operation, spec, launches, checks="count"):
    backend = Backend(
        name="r",
        version="1",
        distribution="r",
        modes={"cpu": "cpu"},
        planners={name: lambda *given: launches for name in OPERATIONS},
        features=operation.features(spec),
    )
    return plan(operation, spec, backend=backend, device="cpu", checks=checks)


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


@pytest.fixture(params=["torch", "python"])
def _comparing(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(alike, "TensorGuards", None)
    elif alike.TensorGuards is None:
        pytest.skip("this torch has no TensorGuards")


@pytest.fixture
def launches():
    return Launches()


@pytest.fixture
def table(launches):
    return planned(READ_TABLE, ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9), launches)


@pytest.fixture
def batch():
    return {
        "request_table": ints(6, 16),
        "req_rows": ints(4),
        "seq_lens": ints(4),
        "v2p": ints(10),
        "out": ints(8, 12),
        "state": new_state("cpu"),
    }


FRESH = ["launch", "repeatable", "again"]
"""What three calls in a row do that are like none before."""


def remember(call, launches, arguments):
    for _ in FRESH:
        call(**arguments)
    assert launches.since() == FRESH


def test_the_second_call_makes_its_repetition_ready_and_every_further_one_is_that(table, launches, batch):
    remember(table, launches, batch)
    table(**batch)
    table(**batch)
    assert launches.since() == ["again", "again"]
    assert launches.given[-1][1] == addresses(batch.values())


def test_new_views_of_the_same_memory_are_the_same_call(table, launches, batch):
    remember(table, launches, batch)
    table(**{name: tensor[:] for name, tensor in batch.items()})
    assert launches.since() == ["again"]


def test_contents_may_change(table, launches, batch):
    remember(table, launches, batch)
    batch["seq_lens"] += 1
    batch["req_rows"].copy_(torch.arange(4))
    table(**batch)
    assert launches.since() == ["again"]


def set_strided(tensor):
    tensor.set_(ints(40).untyped_storage(), 0, (4,), (2,))


# What is done to a tensor in place, and what a check says of it; None where the call stays right, and is a new one.
IN_PLACE = {
    "resize_ to fewer": ("seq_lens", lambda t: t.resize_(3), "seq_lens has 3 element"),
    "resize_ to more": ("seq_lens", lambda t: t.resize_(500), "seq_lens has 500 element"),
    "resize_ the batch": ("req_rows", lambda t: t.resize_(9), "the batch size is 9"),
    "set_ to other memory": ("seq_lens", lambda t: t.set_(ints(4)), None),
    "set_ with strides": ("seq_lens", set_strided, "seq_lens has strides"),
    "data of another dtype": ("seq_lens", lambda t: setattr(t, "data", t.long()), "seq_lens has dtype torch.int64"),
    "data seen as another dtype": (
        "seq_lens",
        lambda t: setattr(t, "data", t.view(torch.float32)),
        "seq_lens has dtype torch.float32",
    ),
    "data of another shape": ("seq_lens", lambda t: setattr(t, "data", t.data[:2]), "seq_lens has 2 element"),
    "data elsewhere": ("seq_lens", lambda t: setattr(t, "data", t.clone()), None),
    "t_": ("request_table", lambda t: t.t_(), "request_table has strides"),
    "as_strided_ overlapping": ("out", lambda t: t.as_strided_((8, 12), (1, 1)), "its rows overlap"),
    "as_strided_ in place": ("out", lambda t: t.as_strided_((7, 12), (12, 1)), None),
    "unsqueeze_": ("v2p", lambda t: t.unsqueeze_(0), "v2p has shape"),
}


@pytest.mark.usefixtures("_comparing")
@pytest.mark.parametrize("change", IN_PLACE)
def test_what_is_done_to_a_remembered_tensor_in_place_is_noticed(table, launches, batch, change):
    name, alter, complaint = IN_PLACE[change]
    remember(table, launches, batch)
    as_it_was, before = batch | {name: batch[name].detach()[:]}, addresses(batch.values())
    alter(batch[name])
    if complaint is None:
        table(**batch)
        assert launches.since() == ["launch"]
        return
    for _ in range(3):
        with pytest.raises(InvalidArgument, match=complaint):
            table(**batch)
    assert launches.since() == []
    table(**as_it_was)
    moved = addresses(as_it_was.values()) != before  # a tensor that outgrows its memory takes its views with it
    assert launches.since() == ["launch" if moved else "again"], "a refused call changes nothing that is remembered"
    assert launches.given[-1][1] == addresses(as_it_was.values())


@pytest.mark.usefixtures("_comparing")
def test_a_tensor_of_another_device_or_type_is_not_the_same(table, launches, batch):
    remember(table, launches, batch)
    table(**batch | {"state": torch.nn.Parameter(batch["state"], requires_grad=False)})
    assert launches.since() == ["launch"], "checked, though it is as large and at the same place"
    with pytest.raises(InvalidArgument, match="seq_lens is on meta"):
        table(**batch | {"seq_lens": batch["seq_lens"].to("meta")})
    with pytest.raises(InvalidArgument, match="seq_lens is a list"):
        table(**batch | {"seq_lens": [0] * 4})
    assert launches.since() == []


@pytest.mark.parametrize(("value", "complaint"), [(True, "True"), (1.0, "1.0"), (torch.tensor(1), "tensor")])
def test_an_equal_value_of_another_type_is_checked(table, launches, batch, value, complaint):
    batch["seq_len_delta"] = 1
    remember(table, launches, batch)
    with pytest.raises(InvalidArgument, match=complaint):
        table(**batch | {"seq_len_delta": value})
    table(**batch)
    assert launches.since() == ["again"]


def test_other_values_and_other_arguments_make_another_call(table, launches, batch):
    batch["seq_len_delta"] = 1
    remember(table, launches, batch)
    large = int("100000")  # no constant: equal ints need not be one object
    remember(table, launches, batch | {"seq_len_delta": large})
    table(**batch | {"seq_len_delta": int("100000")})
    table(**batch)
    assert launches.since() == ["again", "again"], "both are remembered"
    table(**batch | {"state": None})
    assert launches.since() == ["launch"]


@pytest.mark.parametrize("name", ["request_table", "req_rows", "seq_lens", "v2p", "out", "starts", "state"])
def test_another_tensor_in_any_place_makes_another_call(launches, batch, name):
    spec = ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9, windowed=True)
    table = planned(READ_TABLE, spec, launches)
    batch["starts"] = ints(4)
    remember(table, launches, batch)
    other = batch | {name: batch[name].clone()}
    table(**other)
    assert launches.since() == ["launch"]
    assert set(launches.given[-1][1]) == set(addresses(other.values()))


def test_tensors_that_change_places_make_another_call(launches):
    alloc = planned(ALLOC, AllocSpec(max_items=8), launches)
    tables, first, second = new_tables(9, 9, "cpu"), ints(4), ints(4)
    remember(alloc, launches, {"tables": tables, "ids": first, "pages": second})
    alloc(tables=tables, pages=first, ids=second)
    alloc(tables=tables, ids=second, pages=first)
    assert launches.since() == ["launch", "repeatable"]


def test_how_an_argument_is_passed_does_not_matter(table, launches, batch):
    remember(table, launches, batch)
    positional = [batch[name] for name in ("request_table", "req_rows", "seq_lens", "v2p")]
    table(*positional, state=batch["state"], out=batch["out"])
    table(*positional, out=batch["out"], state=batch["state"], starts=None, seq_len_delta=0)
    assert launches.since() == ["again", "again"]
    with pytest.raises(TypeError, match=r"^read_table\(\) got an unexpected keyword argument 'width'"):
        table(**batch, width=1)
    with pytest.raises(TypeError, match=r"^read_table\(\) missing 1 required .*'v2p'"):
        table(*positional[:3], out=batch["out"])
    assert launches.since() == []


def test_an_argument_that_is_left_out_is_none_of_those_that_are_given(launches):
    spec = ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9, windowed=True)
    table = planned(READ_TABLE, spec, launches)
    given = {"request_table": ints(6, 16), "req_rows": ints(4), "seq_lens": ints(4), "v2p": ints(10)}
    windows = {"starts": ints(4)} | given | {"out": ints(8, 12)}
    remember(table, launches, windows)
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="starts is None"):
            table(**windows | {"starts": None})
    remember(table, launches, windows | {"state": new_state("cpu")})
    table(**windows)
    assert launches.since() == ["again"]
    windows["starts"].resize_(3)
    with pytest.raises(InvalidArgument, match="starts has 3 element"):
        table(**windows)


def test_what_is_ready_launches_once_it_is_called(table, launches, batch):
    done = []
    for how in (*FRESH, "again"):
        launch = table.ready(**batch)
        assert launches.since() == [], "nothing yet"
        launch()
        done.append(how)
        assert launches.since() == done[-1:]
    with pytest.raises(InvalidArgument, match="seq_lens has 3"):
        table.ready(**batch | {"seq_lens": ints(3)})
    table.ready(**batch | {"req_rows": ints(0), "seq_lens": ints(0)})()
    assert launches.since() == []
    assert launches.given[-1][1] == addresses(batch.values())


def test_what_is_ready_without_a_repetition_has_the_arguments(batch):
    launches = Unrepeatable()
    table = planned(READ_TABLE, ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9), launches)
    for _ in range(4):
        table.ready(**batch)()
    assert [given for _, given in launches.given] == [addresses(batch.values())] * 4


def test_every_tensor_of_a_sub_pool_counts_and_so_does_its_place_in_a_chain(launches):
    free = planned(FREE, FreeSpec(max_items=8), launches)
    ids, freed = ints(4), ints(4)
    chain = torch.zeros(2, 32, dtype=torch.int64)
    tables = new_tables(9, 9, "cpu", chain=chain, place=0)
    remember(free, launches, {"ids": ids, "tables": tables, "freed": freed})
    for name in ("v2p", "p2v", "virtual_stack", "hole_stack"):
        free(ids=ids, tables=tables._replace(**{name: getattr(tables, name).clone()}), freed=freed)
    free(ids=ids, tables=tables._replace(chain=None), freed=freed)
    free(ids=ids, tables=new_tables(9, 9, "cpu", chain=chain, place=1), freed=freed)
    assert launches.since() == ["launch"] * 6
    with pytest.raises(InvalidArgument, match="not row 1"):
        free(ids=ids, tables=tables._replace(place=1), freed=freed)
    free(ids=ids, tables=tables, freed=freed)
    free(ids=ids, tables=tables._replace(place=0), freed=freed)
    assert launches.since() == ["again", "again"]
    with pytest.raises(InvalidArgument, match="tables is a tuple"):
        free(ids=ids, tables=tuple(tables), freed=freed)
    tables.hole_stack.resize_(5)
    with pytest.raises(InvalidArgument, match="hole_stack has 5 element"):
        free(ids=ids, tables=tables, freed=freed)


def test_nothing_is_kept_alive(table, launches, batch):
    remember(table, launches, batch)
    tensors = [weakref.ref(tensor) for tensor in batch.values()]
    batch.clear()
    gc.collect()
    assert [ref() for ref in tensors] == [None] * 6


def test_other_tensors_at_the_same_addresses_are_judged_by_what_they_are(table, launches, batch):
    memory = ints(100)
    remember(table, launches, batch | {"seq_lens": memory[:4]})
    with pytest.raises(InvalidArgument, match="seq_lens has 5 element"):
        table(**batch | {"seq_lens": memory[:5]})
    with pytest.raises(InvalidArgument, match="seq_lens has strides"):
        table(**batch | {"seq_lens": memory[:8:2]})
    with pytest.raises(InvalidArgument, match=r"seq_lens has dtype torch.int64"):
        table(**batch | {"seq_lens": memory[:8].view(torch.int64)})
    table(**batch | {"seq_lens": memory[:4]})
    assert launches.since() == ["again"]


def test_a_batch_that_shrinks_in_place_is_remembered_in_turn(table, launches, batch):
    smaller = batch | {"req_rows": batch["req_rows"][:3], "seq_lens": batch["seq_lens"][:3]}
    for turn in (batch, smaller, batch):
        remember(table, launches, turn)
    for how in FRESH:
        table.ready(**smaller)()
        assert launches.since() == [how]


def test_a_launch_that_fails_is_not_remembered_and_harms_nothing_that_is(table, launches, batch):
    remember(table, launches, batch)
    other = batch | {"seq_lens": ints(4)}
    launches.fails = True
    for _ in range(4):
        with pytest.raises(RuntimeError, match="no launch"):
            table(**other)
    launches.fails = False
    table(**batch)
    assert launches.since() == ["again"]
    table(**other)
    table(**other)
    assert launches.since() == ["repeatable", "again"]


def test_an_empty_batch_launches_nothing_however_often_it_comes(table, launches, batch):
    empty = batch | {"req_rows": ints(0), "seq_lens": ints(0)}
    for _ in range(4):
        table(**empty)
    remember(table, launches, batch)
    for _ in range(4):
        table(**empty)
    assert launches.since() == []


def test_a_launch_that_cannot_be_repeated_is_called_with_the_arguments(batch):
    launches = Unrepeatable()
    table = planned(READ_TABLE, ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9), launches)
    for _ in range(4):
        table(**batch)
    assert launches.since() == ["launch"] * 4
    batch["seq_lens"].resize_(3)
    with pytest.raises(InvalidArgument, match="seq_lens has 3"):
        table(**batch)


def test_full_checks_are_made_every_time(batch):
    launches = Launches()
    table = planned(
        READ_TABLE, ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9), launches, checks="full"
    )
    for _ in range(5):
        table(**batch)
    assert launches.since() == ["launch"] * 5


def test_calls_that_take_turns_are_all_remembered(table, launches, batch):
    turns = [batch | {"out": ints(8, 12)} for _ in range(3)]
    for _ in range(2):
        for turn in turns:
            table(**turn)
    launches.since()
    for turn in turns:
        table(**turn)
        assert launches.given[-1][1] == addresses(turn.values())
    assert launches.since() == ["again"] * 3


def test_after_many_new_calls_calls_are_not_compared_for_a_while_but_checked_all_the_same(table, launches, batch):
    remember(table, launches, batch)
    new = [batch | {"out": ints(8, 12)} for _ in range(memory.PATIENCE + 1)]
    for call in new:
        table(**call)
    for _ in range(memory.REST):
        table(**batch)
    with pytest.raises(InvalidArgument, match="seq_lens has 5"):
        table(**batch | {"seq_lens": ints(5)})
    assert launches.since() == ["launch"] * (len(new) + memory.REST)
    table(**batch)
    assert launches.since() == ["again"]


def test_calls_that_come_again_are_compared_however_many_new_ones_there_are_between(table, launches, batch):
    twice, once = ([ints(8, 12) for _ in range(memory.PATIENCE + 2)] for _ in range(2))
    for out in twice:
        for _ in range(2):
            table(**batch | {"out": out})
        assert launches.since() == FRESH[:2], "each comes a second time"
    remember(table, launches, batch)
    for out in once:
        table(**batch | {"out": out})
        table(**batch)
        assert launches.since() == ["launch", "again"]


def test_memory_stays_small(launches, batch):
    spec = ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9)
    calls = Memory(READ_TABLE, spec, torch.device("cpu"), launches)
    table, _ = calls.calls()
    for out in [ints(8, 12) for _ in range(4 * memory.MOST_CALLS)]:
        remember(table, launches, batch | {"out": out})
        assert len(calls._known) <= memory.MOST_CALLS
        assert len(calls._noted) <= memory.MOST_CALLS


def test_a_plan_that_is_dropped_is_gone_at_once(batch):
    launches = Launches()
    table = planned(READ_TABLE, ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9), launches)
    remember(table, launches, batch)
    dropped = weakref.ref(launches)
    gc.disable()  # kernels and what they hold do not wait for a collection
    try:
        del table, launches
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_calls_of_every_operation_are_compared(operation: Operation) -> None:
    assert signature_of(operation.name, operation.arguments) is not None


@pytest.fixture
def tables(launches):
    spec = ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9, beside=Beside(9))
    return planned(READ_TABLE, spec, launches)


@pytest.mark.usefixtures("_comparing")
def test_a_second_table_is_compared_by_what_it_is_made_of(tables, launches, batch):
    second = SecondTable(ints(10), ints(8, 12), state=new_state("cpu"))
    remember(tables, launches, batch | {"beside": second})
    tables(**batch, beside=SecondTable(second.v2p[:], second.out[:], None, second.state))
    assert launches.since() == ["again"]
    for change in ({"v2p": ints(10)}, {"v2p": second.v2p[:9]}, {"out": second.out[:, :9]}, {"state": None}):
        tables(**batch, beside=second._replace(**change))
        assert launches.since() == ["launch"], change
    for wrong in (None, tuple(second), second._replace(starts=ints(4)), second._replace(out=batch["out"])):
        with pytest.raises(InvalidArgument, match="beside"):
            tables(**batch, beside=wrong)
    assert launches.since() == []
    tables(**batch, beside=second)
    assert launches.since() == ["again"]


def test_a_launch_without_a_second_table_need_not_take_one(batch):
    given = []

    def launch(request_table, req_rows, seq_lens, v2p, *, out, starts=None, seq_len_delta=0, state=None) -> None:
        given.append(out)

    spec = ReadTableSpec(max_bs=8, max_width=16, page_size=1, num_physical=9)
    table = planned(READ_TABLE, spec, NoWarmup(launch))
    for _ in range(4):
        table(**batch)
        table.ready(**batch)()
    assert len(given) == 8


def test_arguments_may_have_any_name():
    def arguments(spec, device, key: torch.Tensor, known: torch.Tensor, *, type: int = 2, launch: str = "a") -> bool:
        if (type, launch) == (1, "a"):
            raise InvalidArgument("type is 1")
        return True

    launches = Launches()
    for name in ("new", "find-again"):
        operation = replace(READ_TABLE, name=name, arguments=arguments)
        call, _ = Memory(operation, None, torch.device("cpu"), launches).calls()
        first, second = ints(1), ints(2)
        remember(call, launches, {"key": first, "known": second})
        call(first, second, launch="a", type=2)
        call(first, second, launch="b")
        with pytest.raises(InvalidArgument, match="type is 1"):
            call(first, second, type=1)
        assert launches.since() == ["again", "launch"]


def test_an_operation_with_arguments_of_other_types_is_checked_every_time():
    def needs_list(spec, device, values: list[int]) -> bool:
        if values != [1]:
            raise InvalidArgument(f"values is {values}")
        return True

    def untyped(spec, device, values) -> bool:
        return needs_list(spec, device, values)

    def packed(spec, device, *values: int) -> bool:
        return needs_list(spec, device, list(values))

    def hidden(spec, device, _values: int) -> bool:
        return needs_list(spec, device, [_values])

    one, two = ([1],), ([2],)
    for arguments, given, wrong in (
        (needs_list, one, two),
        (untyped, one, two),
        (packed, (1,), (2,)),
        (hidden, (1,), (2,)),
    ):
        launches = Launches()
        operation = replace(READ_TABLE, arguments=arguments)
        call, ready = Memory(operation, None, torch.device("cpu"), launches).calls()
        for _ in range(4):
            call(*given)
            ready(*given)()
            with pytest.raises(InvalidArgument, match="values is"):
                call(*wrong)
        assert launches.since() == ["launch"] * 8


def test_arguments_of_a_type_that_is_not_compared_are_checked_every_time(table, launches, batch):
    batch["state"] = torch.nn.Parameter(batch["state"], requires_grad=False)
    for _ in range(2 * memory.REST + memory.PATIENCE):
        table(**batch)
    assert set(launches.since()) == {"launch"}


def test_threads_that_share_a_plan_each_repeat_their_own_call(table, launches, batch):
    calls = [batch | {"out": ints(8, 12), "seq_lens": ints(4)} for _ in range(4)]
    start, mine = threading.Barrier(len(calls)), {}

    def work(call) -> None:
        mine[threading.get_ident()] = addresses(call.values())
        start.wait()
        for _ in range(500):
            table(**call)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(launches.given) == 500 * len(calls)
    assert all(given == mine[thread] for thread, given in launches.given)
    assert launches.done.count("again") > 1000
