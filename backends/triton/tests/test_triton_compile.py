"""Every kernel compiles for a GPU, on machines that have none: the interpreter accepts what the compiler refuses."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest
from pagebind_triton import OPERATIONS

KERNELS = {
    *(
        f"{name}_kernel"
        for name in (
            "read_table",
            "fill_table",
            "read_stream",
            "translate",
            "assign",
            "bind",
            "unbind",
            "alloc",
            "free",
            "evict",
        )
    ),
    *("count_new_kernel", "write_new_kernel", "count_tails_kernel", "cut_tails_kernel", "count_evicted_kernel"),
    *("look_kernel", "step_kernel", "read_tables_kernel", "fill_tables_kernel"),
    *("pick_moves_kernel", "move_pages_kernel", "refresh_table_kernel", "touch_kernel"),
}

# What plans choose between, each with each.
YES_AND_NO = (False, True)
CHOICES = {
    "alloc_kernel": {"CHAINED": YES_AND_NO, "BORROWED": YES_AND_NO, "COUNT": YES_AND_NO},
    "free_kernel": {"BORROWED": YES_AND_NO, "COUNT": YES_AND_NO},
    "count_evicted_kernel": {"PART": (0, 1, 2), "COUNT": YES_AND_NO},
    "evict_kernel": {"TOKEN_FORM": YES_AND_NO, "COUNT": YES_AND_NO},
    "step_kernel": {"ALONE": YES_AND_NO, "CHAINED": YES_AND_NO, "APPENDS": YES_AND_NO, "COUNT": YES_AND_NO},
    "pick_moves_kernel": {"CHAINED": YES_AND_NO, "COUNT": YES_AND_NO},
    "refresh_table_kernel": {"SINK_FILL": YES_AND_NO, "ALIGNED": YES_AND_NO},
    "write_new_kernel": {"TOKEN_FORM": YES_AND_NO, "EMITS": YES_AND_NO},
}


def test_every_kernel_compiles_for_sm_90_with_narrow_and_wide_dtypes():
    found = importlib.util.find_spec("triton")
    if found is None:
        pytest.skip("triton is not installed")
    ptxas = Path(found.submodule_search_locations[0]) / "backends/nvidia/bin/ptxas"
    if not ptxas.exists() and "TRITON_PTXAS_PATH" not in os.environ:
        pytest.skip(f"ptxas is missing: triton {version('triton')} brings none at {ptxas}; set TRITON_PTXAS_PATH")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parent / "compile_kernels.py"
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-4000:]
    compiled = json.loads(run.stdout)
    assert {name for name, _, _ in compiled} == KERNELS
    for width in ("*i32", "*i64"):
        of_width = [(name, constants) for name, signature, constants in compiled if width in signature]
        assert {name for name, _ in of_width} == KERNELS
        for kernel, choices in CHOICES.items():
            found = {tuple(constants[choice] for choice in choices) for name, constants in of_width if name == kernel}
            assert found == set(product(*choices.values())), kernel


def test_every_operation_has_a_module_of_its_name():
    for operation in OPERATIONS:
        assert importlib.util.find_spec(f"pagebind_triton.{operation}") is not None
