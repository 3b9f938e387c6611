"""A launch in the interpreter is spared patches of no effect: fewer of them, the same table, all restored after it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found():
    """Return what launches of one kernel were like, in a process that interprets kernels."""
    pytest.importorskip("triton", reason="triton is not installed")
    script = Path(__file__).parent / "patches.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(  # noqa: PLW1510  (the assertion shows why it failed)
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_a_launch_patches_the_language_once_for_each_way_to_name_it(found):
    assert found["interpreter"]["patches"] > 20  # once at every call of a function
    assert found["once"]["patches"] <= 3  # `tl`, what its own library names, and both
    assert found["backend"]["patches"] <= 3


def test_the_table_is_right_and_all_is_restored(found):
    for one in (found["backend"], found["interpreter"], found["once"]):
        assert one["restored"]
        assert one["table"] == found["interpreter"]["table"]
        assert one["table"][1] == [*range(48, 41, -1), *[-7] * 33]
        assert one["table"][2:] == [[-7] * 40] * 2


def test_launches_of_two_host_threads_leave_the_interpreter_as_it_was(found):
    assert found["restored"]
