"""The table of promises, rendered from a CSV alone."""

from pathlib import Path

import pytest
import torch
from pagebind.cli import build
from pagebind.errors import InvalidArgument
from pagebind_bench.bench import page, promises
from pagebind_bench.bench.cases import PUBLISHED, REFRESH, TABLE
from pagebind_bench.bench.record import Recorder, environment
from typer.testing import CliRunner

ROOT = Path(__file__).parents[3]
FILED = ROOT / "packages/pagebind-bench/results/0.1.0-h200.csv"


def measure(path, **times):
    """Write a run of a full build's host time and of a steady refresh, in microseconds by contender."""
    common = {**environment(torch.device("cpu"), "c0ffee", "pagebind bench"), "device_type": "cuda", "device": "GPU 9"}
    with Recorder(path, common) as recorder:
        for contender, (build, host, refresh) in times.items():
            known = {"contender": contender, "report": None if contender == "sglang" else "r.json"}
            for case in (TABLE, PUBLISHED[0]):
                recorder.add(op="read_table", case=case.id, metric="time", p50=build, **known)
            recorder.add(op="read_table", case=TABLE.id, metric="host", p50=host, bare_us=2.0, **known)
            recorder.add(op="refresh_table", case=REFRESH.id, metric="time", p50=refresh, floor_us=0.5, **known)
    return path


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_cell_says_how_much_faster_and_what_is_missed_is_bold(tmp_path):
    path = measure(tmp_path / "a.csv", cuda=(5.0, 4.0, 1.0), sglang=(6.0, 20.0, 99.0), triton=(6.5, 8.0, 2.0))
    rendered = page.render(path)
    found = {(row[0], row[1]): row[2:] for row in cells(rendered)}
    assert found["work", "beside"] == ["cuda", "triton", "aimed at"]
    even = "full build, even, 64 x 8,224 scattered"
    assert found[even, "sglang, 6.00 us"] == ["5.00 us, 1.20x", "**6.50 us, 0.92x**", "0.95x, or 0.1 us more"]
    refresh = "refresh, 64 x 8,224 scattered"
    assert found[refresh, "sglang, 6.00 us"] == ["1.00 us, 6.0x", "**2.00 us, 3.0x**", "4.5x"]
    many = "refresh, 1 to 256 rows of 1k to 1M"
    assert found[many, "an empty kernel, 0.50 us"] == ["1.00 us, 2.0x", "**2.00 us, 4.0x**", "at most 3.0x"]
    assert found["one table call, host", "sglang, 20.0 us"] == ["4.00 us, 5.0x", "**8.00 us, 2.5x**", "4.0x"]
    bare = found["one table call, host", "a bare launch, 2.00 us"]
    assert bare == ["**4.00 us, 2.0x**", "**8.00 us, 4.0x**", "at most 1.30x"]
    assert "\n`cuda` keeps 4 of 5, `triton` keeps 0 of 5; what is missed is bold. " in rendered
    assert rendered.endswith(" Medians of one run on GPU 9, commit c0ffee.\n")


def test_the_last_run_alone_is_told(tmp_path):
    path = measure(tmp_path / "a.csv", cuda=(5.0, 4.0, 1.0), sglang=(6.0, 20.0, 99.0))
    measure(path, cuda=(7.0, 4.0, 1.0), sglang=(14.0, 20.0, 99.0))
    assert "| sglang, 14.0 us | 7.00 us, 2.0x |" in page.render(path)


def test_a_run_that_tells_of_no_promise_is_refused(tmp_path):
    path = measure(tmp_path / "a.csv", sglang=(6.0, 20.0, 99.0))
    with pytest.raises(InvalidArgument, match=r"a\.csv tells of no promise: run pagebind bench --promised"):
        page.render(path)


def test_the_command_prints_checks_and_writes(tmp_path):
    def table(*arguments):
        return CliRunner().invoke(build(), ["bench", "table", *map(str, arguments)])

    path = measure(tmp_path / "a.csv", cuda=(5.0, 4.0, 1.0), sglang=(6.0, 20.0, 99.0))
    readme = tmp_path / "README.md"
    assert table(path).output == page.render(path)
    readme.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nbehind\n")
    stale = table(path, "--readme", readme)
    assert stale.exit_code == 1
    assert f"{readme} shows another table than {path}; render it anew with --write" in stale.output
    assert table(path, "--readme", readme, "--write").exit_code == 0
    assert readme.read_text() == f"before\n{page.BEGIN}\n{page.render(path)}{page.END}\nbehind\n"
    assert table(path, "--readme", readme).exit_code == 0
    for wrong, told in (
        ((path, "--write"), "--write needs --readme FILE"),
        ((path, "--readme", tmp_path / "none.md"), "none.md, which cannot be read"),
    ):
        refused = table(*wrong)
        assert (refused.exit_code, told in refused.output) == (2, True), refused.output
    readme.write_text("nothing\n")
    refused = table(path, "--readme", readme, "--write")
    assert (refused.exit_code, "has no place for what is rendered" in refused.output) == (2, True), refused.output
    assert readme.read_text() == "nothing\n"


def test_the_readme_shows_the_filed_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{page.BEGIN}\n{page.render(FILED)}{page.END}" in text


def test_every_promise_of_a_gpu_is_in_the_filed_run():
    told = [row[0] for row in cells(page.render(FILED))[2:]]
    assert told == [one.what for one in promises.PROMISES if one.device_type == "cuda"]
