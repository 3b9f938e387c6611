"""What a failed comparison hands on: small grids around the first difference, and the call they are of."""

from __future__ import annotations

import jsonschema
import pytest
import torch
from filed import case, made
from pagebind.errors import InvalidArgument
from pagebind.ops import UNBIND, UnbindSpec
from pagebind.words import BAD_FREE, SEAT, STATE_WORDS

from pagebind_conformance import difference
from pagebind_conformance.difference import Difference, found_in
from pagebind_conformance.guarded import BAND, POISON, Guarded, Layout, Unspecified
from pagebind_conformance.reporting import report
from pagebind_conformance.trial.call import compare, hold, state_words

CPU = torch.device("cpu")


def found(tensor, expected=None, name="out"):
    with pytest.raises(Difference) as caught:
        tensor.verify(name, expected)
    (grid,) = caught.value.tensors
    return grid


def test_a_small_tensor_is_drawn_whole_and_poison_as_a_dot():
    out = Guarded.poisoned((2, 3), torch.int64, CPU, Layout(row_gap=1))
    out.view[0, 1] = 5
    out.view[1, 2] = -1
    poison = POISON[torch.int64]
    grid = found(out, [[1, 2, poison], [poison, poison, -1]])
    assert grid == {
        "name": "out",
        "shape": [2, 3],
        "differing": 2,
        "outside": 0,
        "row": 0,
        "column": 0,
        "expected": ["1 2 .", ". . -1"],
        "actual": [". 5 .", ". . -1"],
    }


@pytest.mark.parametrize(
    ("shape", "at", "row", "column"),
    [
        ((200, 300), (0, 0), 0, 0),
        ((200, 300), (100, 150), 68, 118),
        ((200, 300), (199, 299), 136, 236),
        ((64, 65), (63, 64), 0, 1),
        ((3, 300), (1, 40), 0, 8),
        ((300,), (150,), 0, 118),
        ((65, 0), None, 0, 0),
    ],
)
def test_a_large_one_is_drawn_around_the_first_difference(shape, at, row, column):
    out = Guarded(torch.zeros(shape, dtype=torch.int32).tolist(), torch.int32, CPU, shape=shape)
    if at is None:
        out.buffer[BAND] = 7
    else:
        out.view[at] = 7
        out.view[(-1,) * len(shape)] = 8
    grid = found(out)
    assert (grid["row"], grid["column"]) == (row, column)
    height, width = (1, *shape)[-2:]
    assert len(grid["actual"]) == len(grid["expected"]) == min(64, height)
    assert {len(line.split()) for line in grid["actual"]} == {min(64, width)}
    if at is not None:
        inside = (1, *at)[-2:] if len(shape) == 2 else (0, at[0])
        assert grid["actual"][inside[0] - row].split()[inside[1] - column] in ("7", "8")
        assert grid["expected"][inside[0] - row].split()[inside[1] - column] == "0"


def test_what_was_written_outside_is_counted_apart():
    out = Guarded([[1, 2], [3, 4]], torch.int32, CPU, Layout(row_gap=2))
    out.buffer[BAND - 2] = 7
    out.buffer[BAND + 2] = 8
    grid = found(out)
    assert (grid["differing"], grid["outside"]) == (0, 2)
    assert grid["expected"] == grid["actual"] == ["1 2", "3 4"]


def test_state_blocks_tell_their_words_and_leave_out_spare_ones():
    state = Guarded(state_words(), torch.int64, CPU)
    state.view[SEAT] = 5
    grid = found(state, name="state")
    assert "seat" in grid["words"]
    assert not any(word.startswith(difference.SPARE) for word in grid["words"])
    at = grid["words"].index("seat")
    assert (grid["expected"][0].split()[at], grid["actual"][0].split()[at]) == ("0", "5")
    assert grid["differing"] == 1
    spare = Guarded(state_words(), torch.int64, CPU)
    spare.view[STATE_WORDS - 1] = 3
    assert found(spare, name="state")["words"][-1] == f"word {STATE_WORDS - 1}"


def test_where_the_contract_leaves_cells_open_none_are_expected():
    grid = found(Guarded([1, 2], torch.int32, CPU), Unspecified(lambda got: "wrong"))
    assert grid["expected"] is None
    assert grid["actual"] == ["1 2"]


def test_every_tensor_that_differs_is_told():
    one, same, other = (Guarded([1, 2], torch.int32, CPU) for _ in range(3))
    with pytest.raises(Difference) as caught:
        compare({"one": one, "same": same, "other": other}, {"one": [1, 3], "other": [0, 2]})
    assert [grid["name"] for grid in caught.value.tensors] == ["one", "other"]
    assert str(caught.value) == "one [2]: [1] is 2, expected 3\nother [2]: [0] is 1, expected 0"


class Planned:
    """A subject whose every plan calls one function."""

    def __init__(self, run):
        self.run = run

    def plan(self, *_):
        return self.run


def held(run, num=100):
    arguments = {
        "ids": Guarded(list(range(num)), torch.int32, CPU),
        "v2p": Guarded([0, 7, -1], torch.int32, CPU),
        "p2v": Guarded([0, -1], torch.int32, CPU),
        "freed": Guarded.poisoned((num,), torch.int32, CPU),
        "state": Guarded(state_words(), torch.int64, CPU),
    }
    with pytest.raises(Exception, match=r"\w") as caught:
        hold(Planned(run), UNBIND, UnbindSpec(max_items=num), arguments, {"freed": [-1] * num})
    return caught.value


def wrong_page(ids, v2p, p2v, *, freed, state):
    freed.fill_(-1)
    freed[70] = 9


def test_a_call_that_differs_is_told_with_its_input():
    error = held(wrong_page)
    assert isinstance(error, Difference)
    assert error.complaint == "freed [100]: [70] is 9, expected -1"
    assert str(error).startswith(f"{error.complaint}\nof unbind with UnbindSpec(")
    call = error.call
    assert call["operation"] == "unbind"
    assert call["spec"]["max_items"] == "100"
    inputs = {grid["name"]: grid for grid in call["inputs"]}
    assert list(inputs) == ["ids", "v2p", "p2v", "freed", "state"]
    assert inputs["v2p"] == {"name": "v2p", "shape": [3], "cells": ["0 7 -1"]}
    assert inputs["ids"]["shape"] == [100]
    assert inputs["ids"]["cells"] == [" ".join(map(str, range(64)))]
    assert inputs["freed"]["cells"] == [" ".join(["."] * 64)]
    assert "bad_free" in inputs["state"]["words"]


def test_a_call_that_raises_is_told_with_its_input_too():
    def run(ids, *_, freed, state):
        state[BAD_FREE] = 1
        raise IndexError("lane 3")

    error = held(run)
    assert isinstance(error, Difference)
    assert error.complaint == "the call raised IndexError: lane 3"
    assert isinstance(error.__cause__, IndexError)
    assert (error.tensors, error.call["operation"]) == ([], "unbind")


def test_a_refusal_stays_what_it_is():
    def refuse(*_, **__):
        raise InvalidArgument("no")

    assert type(held(refuse)) is InvalidArgument


def test_what_is_told_keeps_the_schema():
    one = made([case("unbind", 1, "failed", difference=held(wrong_page).record())])
    report.check(one, "it")
    one["cases"][0]["difference"]["tensors"][0]["actual"] = ["0"] * 65
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(one, report.schema())


def test_a_difference_is_found_where_an_error_hides_it():
    inner = Difference("cells")
    outer = AssertionError("step 3")
    outer.__cause__ = inner
    assert found_in(inner) is inner
    assert found_in(outer) is inner
    assert found_in(ValueError()) is None
    assert found_in(None) is None

    class Several(Exception):
        exceptions = (ValueError(), outer)

    assert found_in(Several()) is inner
