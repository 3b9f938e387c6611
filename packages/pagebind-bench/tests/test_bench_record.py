"""The CSV and the figures that are drawn from it alone."""

import csv
import math
import re
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from pagebind.errors import InvalidArgument
from pagebind_bench.bench import plots, record, results
from pagebind_bench.bench.cases import CASES
from pagebind_bench.bench.record import COLUMNS, Recorder, environment, find
from pagebind_bench.bench.timing import Times

CPU = torch.device("cpu")
FLOOR, CEILING = 0.7, 4.2e12


@pytest.fixture
def common():
    return environment(CPU, "c0ffee", "pagebind bench")


def gpu_rows(recorder):
    """Record a whole run as a GPU would leave it, with made-up times."""
    for name in ("copy", "kernel"):
        case = {"op": "ceiling", "case": f"{name}-warm", "contender": name, "groups": "limit", "l2": "warm"}
        recorder.add(**case, metric="time", unit="us", p50=500.0, p10=490.0, p90=510.0)
    for metric in ("time", "host"):
        case = {"op": "floor", "case": "empty-warm", "contender": "empty", "groups": "limit", "l2": "warm"}
        recorder.add(**case, metric=metric, unit="us", p50=FLOOR, p10=FLOOR, p90=FLOOR)
    peers = {
        "read_table": ("cuda", "triton", "sglang", "published-batch", "published-context", "index_select"),
        "refresh_table": ("cuda", "triton"),
        "compact": ("cuda",),
    }
    for op, cases in CASES.items():
        for case in cases:
            for place, contender in enumerate(peers.get(op, ("cuda", "triton", "sglang"))):
                row = {"op": op, "case": case.id, "label": case.label, "contender": contender}
                row |= {"groups": " ".join(case.groups), **case.parameters()}
                moved = case.footprint
                p50 = FLOOR + moved / CEILING * 1e6 * (1 + place)
                times = record.spread(Times(0.95 * p50, p50, 1.1 * p50, 25, 100, "graph"))
                rate = moved / p50 * 1e6
                recorder.add(
                    **row,
                    **times,
                    metric="time",
                    bytes=moved,
                    bytes_per_s=rate,
                    percent_of_ceiling=100 * rate / CEILING,
                    floor_us=FLOOR,
                    ceiling_bytes_per_s=CEILING,
                )
                host = record.spread(Times(5.0, 6.0, 7.0, 25, 32, "host-loop"))
                recorder.add(**row, **host, metric="host", bare_us=4.5 if contender == "cuda" else None)
            if "sweep" in case.groups:
                for threads, programs in [(64, 128), (64, 256), (128, 128), (128, 256)]:
                    launch = {"contender": "cuda", "threads": threads, "programs": programs, "groups": "sweep"}
                    spread = record.spread(Times(1.0, threads / 64 + programs / 128, 5.0, 9, 10, "graph"))
                    recorder.add(**{**row, **launch}, **spread, metric="time")


@pytest.fixture
def gpu_csv(tmp_path, common):
    path = tmp_path / "h200.csv"
    with Recorder(path, {**common, "device_type": "cuda", "device": "NVIDIA H200"}) as recorder:
        gpu_rows(recorder)
    return path


def test_a_csv_has_every_column_and_a_key_for_every_row(gpu_csv):
    with gpu_csv.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == list(COLUMNS)
    assert len({row["key"] for row in rows}) == len(rows) > 300
    for row in rows:
        assert row["commit"] == "c0ffee"
        assert row["torch"] == torch.__version__
        assert row["reproduce"] == "pagebind bench"
        assert row["unit"] == "us"
        assert float(row["p10"]) <= float(row["p50"]) <= float(row["p90"])
    table = results.read(gpu_csv)
    assert table["case"].map(type).eq(str).all()
    assert pd.api.types.is_float_dtype(table["p50"])


def test_a_row_that_is_there_or_has_a_column_of_its_own_is_refused(common):
    with Recorder(None, common) as recorder:
        row = {"op": "free", "case": "a", "contender": "cuda", "metric": "time"}
        recorder.add(**row)
        with pytest.raises(ValueError, match="is there already"):
            recorder.add(**row, p50=1.0)
        with pytest.raises(ValueError, match="colour"):
            recorder.add(**{**row, "case": "b"}, colour="red")
        recorder.add(**row, threads=64, programs=128)
        assert [r["key"].split("/", 1)[1] for r in recorder.rows] == ["free/a/cuda/time", "free/a/cuda/time/t64/p128"]


def test_rows_are_on_disk_as_soon_as_they_are_measured(tmp_path, common):
    path = tmp_path / "a.csv"
    with Recorder(path, common) as recorder:
        recorder.add(op="free", case="a", contender="cuda", metric="time", p50=math.nan)
        assert len(path.read_text().splitlines()) == 2
        assert ",nan," not in path.read_text()


def test_a_second_run_is_added_and_keys_stay_unique(tmp_path, common):
    path = tmp_path / "a.csv"
    for _ in range(2):
        with Recorder(path, {**common, **environment(CPU, None, "again")}) as recorder:
            recorder.add(op="free", case="a", contender="cuda", metric="time", p50=2.0)
    table = results.read(path)
    assert len(table) == 2
    assert table["key"].is_unique


def test_a_file_of_other_columns_is_left_alone(tmp_path, common):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match="has other columns"), Recorder(path, common):
        pass
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(InvalidArgument, match="there is no folder"):
        record.need_columns(tmp_path / "no" / "a.csv")
    with pytest.raises(InvalidArgument, match="is a folder"):
        record.need_columns(tmp_path)


def test_a_row_is_found_by_its_values_where_it_has_a_time():
    rows = [{"op": "free", "p50": None}, {"op": "free", "p50": 1.0, "l2": "warm"}]
    assert find(rows, op="free") is rows[1]
    assert find(rows, op="free", l2="cold") is None


def test_figures_are_drawn_from_the_csv_alone_with_peers_and_floor(gpu_csv, tmp_path):
    written, left_out = plots.draw_all(gpu_csv, tmp_path)
    assert not left_out
    names = {path.name.removeprefix("h200-").removesuffix(".svg") for path in written}
    assert names == {
        *("length", "batch", "skew", "host", "ceiling", "pool-read_table", "pool-alloc", "pool-free"),
        *(f"sweep-{op}" for op in CASES),
    }
    for path in written:
        text = path.read_text()
        ElementTree.fromstring(text)
        assert "NVIDIA H200" in text
        if "sweep" in path.name:
            assert "programs at most" in text
            continue
        for word in ("cuda", "triton", "sglang"):
            assert re.search(word, text), (path.name, word)
        if path.name not in {"h200-ceiling.svg", "h200-host.svg"}:
            assert "empty kernel" in text
    texts = {path.stem.removeprefix("h200-"): path.read_text() for path in written}
    for name in ("length", "batch"):
        for word in ("cuda, refresh", "cuda, full build", "triton, refresh", "published-context"):
            assert word in texts[name], (name, word)
        assert "published-batch" not in texts[name], "it is SGLang's grid: the line would be drawn twice"
    assert "a bare launch by the same library" in texts["host"]
    assert "256 rows," in texts["skew"]
    assert "255 of 1,024" in texts["skew"]


def test_the_ceiling_holds_everybody_against_the_bytes_of_the_narrowest_tables(tmp_path, common, monkeypatch):
    path = tmp_path / "few.csv"
    case = CASES["read_table"][0]
    with Recorder(path, common) as recorder:
        row = {"op": "read_table", "case": case.id, "label": case.label, "groups": "promise", **case.parameters()}
        row |= {"metric": "time", "p10": 9.0, "p90": 11.0, "percent_of_ceiling": 1.0, "ceiling_bytes_per_s": 4e12}
        recorder.add(**row, contender="cuda", p50=10.0, bytes=10_000_000)
        recorder.add(**row, contender="sglang", p50=10.0, bytes=20_000_000)
    seen = []
    monkeypatch.setattr(
        plots.drawings, "dots", lambda _, rows, column, __: seen.append(rows.set_index("contender")[column].to_dict())
    )
    monkeypatch.setattr(plots.drawings, "legend", lambda _: None)
    plots.draw_all(path, tmp_path)
    assert seen == [{"cuda": pytest.approx(25.0), "sglang": pytest.approx(25.0)}]


def test_figures_that_have_no_rows_say_why(tmp_path, common):
    path = tmp_path / "few.csv"
    case = CASES["free"][0]
    with Recorder(path, common) as recorder:
        row = {"op": "free", "case": case.id, "label": case.label, "groups": "promise", **case.parameters()}
        row["contender"] = "cpu"
        moved = {"bytes": 9_000_000, "percent_of_ceiling": 3.0, "ceiling_bytes_per_s": 4e12}
        recorder.add(**row, metric="time", p50=2.0, p10=1.0, p90=3.0, **moved)
        recorder.add(**{**row, "contender": "sglang"}, metric="time", reason="why not")
    written, left_out = plots.draw_all(path, tmp_path, "png")
    assert [p.name for p in written] == ["few-ceiling.png"]
    figures = [plots.draw_all(path, tmp_path)[0][0].read_bytes() for _ in range(2)]
    assert figures[0] == figures[1], "one CSV gave two different files"
    assert {line.split(":")[0] for line in left_out} == {
        *("length", "batch", "pool-read_table", "pool-alloc", "pool-free", "skew", "host", "sweep")
    }


def test_what_is_no_csv_of_the_bench_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        results.read(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match="has no column 'run'"):
        results.read(tmp_path / "a.csv")
