"""Decode steps do what the composed form does, in one launch where a block has a cell for every lane, else in two."""

import pytest
import torch
from pagebind.operation import LaunchOptions
from pagebind.ops import AdvanceSpec
from pagebind.words import new_tables
from test_triton_launch import interpreted


def test_steps_agree_with_the_composed_form_over_blocks_programs_growths_and_garbage():
    answers = interpreted("steps.py")
    assert answers["wrong"] == []
    assert answers["repeats"] == []
    assert answers["agreed"] == 130


@pytest.mark.parametrize(
    ("device", "options", "bs", "launches"),
    [
        ("meta", LaunchOptions(), 1, [("step_kernel", 1, 32)]),
        ("meta", LaunchOptions(), 256, [("step_kernel", 1, 256)]),
        ("meta", LaunchOptions(), 1024, [("step_kernel", 1, 1024)]),
        ("meta", LaunchOptions(), 1025, [("look_kernel", 5, 256), ("step_kernel", 5, 256)]),
        ("meta", LaunchOptions(), 10**6, [("look_kernel", 1024, 256), ("step_kernel", 1024, 256)]),
        ("meta", LaunchOptions(threads=128, programs=1), 129, [("look_kernel", 1, 128), ("step_kernel", 1, 128)]),
        ("cpu", LaunchOptions(threads=64, programs=8), 65, [("look_kernel", 2, 64), ("step_kernel", 2, 64)]),
    ],
)
def test_one_launch_where_a_block_has_a_cell_for_every_lane_else_two(device, options, bs, launches, monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed")
    from pagebind_triton import advance
    from pagebind_triton.launch import Variant

    made = []

    def launched(variant, programs, *arguments):
        scalars = [value for value in variant.signature.values() if value == "i64"]
        assert len(arguments) == variant._num_pointers + len(scalars)
        made.append((variant._key[0], programs, variant.constants["BLOCK"]))

    monkeypatch.setattr(Variant, "__call__", launched)
    spec = AdvanceSpec(max_bs=bs, page_size=4, num_virtual=9, num_physical=9, form="page")
    zeros = torch.zeros(bs, dtype=torch.int32, device=device)
    tables = new_tables(9, 9, torch.device("cpu"))
    planned = advance.plan(spec, torch.device(device), options)
    planned._run(zeros.view(bs, 1), zeros, zeros, tables, slots=zeros)
    assert made == launches
    assert len(planned.variants) == (2 if len(launches) == 1 else 5)
