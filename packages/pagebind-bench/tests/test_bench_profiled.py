"""The calls that are made under a profiler are real ones: small, on the CPU, they leave what they should."""

import torch
from pagebind_bench.bench import profiled
from pagebind_bench.bench.profiled import TIMES, Table

CPU = torch.device("cpu")


def right(table, length):
    """Return the read table of a batch at a length."""
    return table.v2p[table.request_table[:, :length].long()]


def test_builds_and_refreshes_hold_the_pages_of_their_rows():
    for scattered in (True, False):
        table = Table(3, 20, 200, CPU, scattered=scattered)
        profiled.build(table, backend="cpu", device=CPU)
        assert torch.equal(table.out[:, :20], right(table, 20))
        profiled.refresh(table, backend="cpu", device=CPU)
        assert torch.equal(table.out[:, : 20 + TIMES], right(table, 20 + TIMES))


def test_a_compaction_leaves_all_pages_in_the_lower_half():
    v2p = profiled.compact(16, 16, CPU, backend="cpu")
    assert sorted(v2p[1:17].tolist()) == list(range(1, 17))


def test_the_whole_list_runs(monkeypatch):
    monkeypatch.setattr("sys.argv", ["profiled", "--backend", "cpu", "--device", "cpu", "--scale", "2048"])
    profiled.main()
