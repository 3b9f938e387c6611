"""A call like an earlier one is launched unchecked; whatever is different about a call, it is checked anew."""

import gc
import sys
import threading
import weakref

import pytest
import torch
from pagebind import Backend, plan, repeat
from pagebind.errors import InvalidArgument
from pagebind.ops import ALLOC, FREE, OPERATIONS, READ_TABLE, AllocSpec, FreeSpec, ReadTableSpec
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
        monkeypatch.setattr(repeat, "TensorGuards", None)
    elif repeat.TensorGuards is None:
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
    assert launches.since() == ["repeatable"], "checked, though it is as large and at the same place"
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


def test_tensors_that_change_places_make_another_call(launches):
    alloc = planned(ALLOC, AllocSpec(max_items=8), launches)
    tables, first, second = new_tables(9, 9, "cpu"), ints(4), ints(4)
    remember(alloc, launches, {"tables": tables, "ids": first, "pages": second})
    alloc(tables=tables, pages=first, ids=second)
    alloc(tables=tables, ids=second, pages=first)
    alloc(tables, ids=first, pages=second)
    assert "again" not in launches.since()


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
    remember(free, launches, {"ids": ids, "tables": tables, "freed": freed})
    free(ids=ids, tables=tables._replace(place=0), freed=freed)
    assert launches.since() == ["again"]
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
    new = [batch | {"out": ints(8, 12)} for _ in range(repeat.PATIENCE + 1)]
    for call in new:
        table(**call)
    for _ in range(repeat.REST):
        table(**batch)
    with pytest.raises(InvalidArgument, match="seq_lens has 5"):
        table(**batch | {"seq_lens": ints(5)})
    assert launches.since() == ["launch"] * (len(new) + repeat.REST)
    table(**batch)
    assert launches.since() == ["again"]


def test_memory_stays_small(table, launches, batch):
    for out in [ints(8, 12) for _ in range(4 * repeat.MOST_CALLS)]:
        remember(table, launches, batch | {"out": out})
        assert len(table._memory._known) <= repeat.MOST_CALLS
        assert len(table._memory._noted) <= repeat.MOST_CALLS


def test_arguments_of_a_type_that_is_not_compared_are_checked_every_time(table, launches, batch):
    batch["state"] = torch.nn.Parameter(batch["state"], requires_grad=False)
    for _ in range(2 * repeat.REST + repeat.PATIENCE):
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
