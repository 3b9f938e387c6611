"""The README's examples run as written; those that need a GPU run where there is one, and compile elsewhere."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[3] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number, capsys):
    code = compile(EXAMPLES[number], f"README.md, example {number}", "exec")
    if "cuda" not in EXAMPLES[number] or torch.cuda.is_available():
        exec(code, {})


def test_there_is_an_example_of_each_use():
    assert len(EXAMPLES) == 2
    assert "pagebind_conformance --backend my_package:backend" in README.read_text(encoding="utf-8")
