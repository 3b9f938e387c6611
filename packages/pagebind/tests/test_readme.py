"""The README's examples run as written; those that need a GPU run where there is one, and compile elsewhere."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
CPU, GRAPH, UNIFIED = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code):
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_first_example_runs_and_prints_what_it_says(capsys):
    names = run(CPU)
    assert capsys.readouterr().out.splitlines() == ["cpu", "tensor([16, 17, 18], dtype=torch.int32)", "1017"]
    assert names["pool"].audit() == []


def test_the_graph_example_leaves_the_table_it_says():
    compile(GRAPH, "README.md", "exec")
    eager = GRAPH.replace('device="cuda"', 'device="cpu"').replace("torch.cuda.CUDAGraph()", "None")
    eager = eager.replace("with torch.cuda.graph(graph):", "def step():").replace("graph.replay()", "step()")
    for code in (eager, *([GRAPH] if torch.cuda.is_available() else [])):
        names = run(code)
        assert names["table"].cells[0, :9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]
        assert names["lens"].tolist() == [120]
        assert names["pool"].audit() == []


def test_the_unified_example_prints_what_it_says(capsys):
    run(UNIFIED)
    said = [line.split("  # ")[1] for line in UNIFIED.splitlines() if line.startswith("print(")]
    assert capsys.readouterr().out.splitlines() == said
