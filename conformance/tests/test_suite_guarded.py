"""A failure says in words what is wrong, and which call it was."""

from __future__ import annotations

import pytest
import torch
from pagebind.ops import UNBIND, UnbindSpec
from pagebind.words import DOUBLE_FREE, SEAT, VIRTUAL_TOP

from pagebind_conformance.guarded import BAND, Guarded, Layout
from pagebind_conformance.trial.call import hold, state_words

CPU = torch.device("cpu")


def complaint(tensor, expected=None, name="out"):
    with pytest.raises(AssertionError) as caught:
        tensor.verify(name, expected)
    return str(caught.value)


def test_poison_is_told_as_words():
    out = Guarded.poisoned((2, 2), torch.int32, CPU)
    out.view[0, 1] = 5
    told = complaint(out, [[1, out.view[0, 0].item()], [3, 4]])
    assert "[0, 0] was not written, expected 1" in told
    assert "[0, 1] was written: 5, nothing belongs there" in told
    assert str(0x7A7A7A7A) not in told


def test_writes_outside_say_where():
    out = Guarded([[1, 2], [3, 4]], torch.int64, CPU, Layout(row_gap=2))
    out.buffer[BAND - 2] = 7
    out.buffer[BAND + 2] = 8
    out.buffer[BAND + 5 + 3] = 9
    out.view[1, 1] = 0
    told = complaint(out)
    assert told == (
        "out [2, 2]: outside the tensor was written: 7, element 2 before the first; "
        "the gap behind [0, 1] was written: 8; [1, 1] is 0, has to stay 4; "
        "outside the tensor was written: 9, element 3 past the last"
    )


def test_every_call_is_held_against_what_the_one_before_left():
    out = Guarded([1, 2], torch.int32, CPU)
    out.view[0] = 5
    out.verify("out", [5, 2])
    out.buffer[BAND - 1] = 7
    out.view[1] = 6
    assert complaint(out) == (
        "out [2]: outside the tensor was written: 7, element 1 before the first; [1] is 6, has to stay 2"
    )


def test_an_empty_tensor_has_an_outside_too():
    out = Guarded([], torch.int32, CPU, shape=(0, 3))
    out.buffer[BAND] = 7
    assert "7, element 1 past the last" in complaint(out)


def test_words_of_a_state_block_have_names_and_counters_count_from_before():
    words = state_words()
    state = Guarded(words, torch.int64, CPU)
    wanted = list(words)
    wanted[DOUBLE_FREE] += 1
    state.view[VIRTUAL_TOP] = 9
    told = complaint(state, wanted, "state")
    assert "double_free counted 0, expected 1" in told
    assert "virtual_top is 9, has to stay 0" in told


def test_words_of_a_chain_are_told_with_their_block():
    blocks = [state_words(), state_words()]
    chain = Guarded(blocks, torch.int64, CPU)
    chain.view[1, SEAT] = 4
    assert complaint(chain, blocks, "chain") == "chain [2, 32]: of block 1 seat is 4, has to stay 0"


def test_of_many_differences_the_first_are_told_and_the_others_counted():
    assert complaint(Guarded([0] * 20, torch.int32, CPU), [1] * 20).endswith("and 12 more")


class Idle:
    """A subject whose plans write nothing."""

    def plan(self, *_):
        return lambda *args, **kwargs: None


def test_a_failed_call_is_told_with_its_values_before_it():
    values = {"ids": [1], "v2p": [0, 3, *[-1] * 400], "p2v": [0, -1, -1, 1, -1]}
    arguments = {name: Guarded(value, torch.int32, CPU) for name, value in values.items()}
    arguments["freed"] = Guarded.poisoned((1,), torch.int32, CPU)
    arguments["state"] = Guarded(state_words(), torch.int64, CPU)
    with pytest.raises(AssertionError) as caught:
        hold(Idle(), UNBIND, UnbindSpec(max_items=4), arguments, {"p2v": [0, -1, -1, -1, -1]})
    lines = str(caught.value).splitlines()
    assert lines[0] == "p2v [5]: [3] is 1, expected -1"
    assert lines[1].startswith("of unbind with UnbindSpec(max_items=4")
    assert "  ids [1]: [1]" in lines
    assert "  freed [1]: not written" in lines
    assert "  p2v [5]: [0, -1, -1, 1, -1]" in lines
    assert "  state [32]: virtual_top 0, hole_top 0, watermark 0, epoch 0, seat 0, growth 1" in lines
    assert max(map(len, lines[2:])) < 220
