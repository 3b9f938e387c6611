"""`pagebind replay --model` as a user meets it: through the core's command line."""

import json
import re
import shlex
from xml.etree import ElementTree

import pytest
from pagebind.cli import build
from pagebind.errors import InvalidArgument
from pagebind_bench.replay import model_command
from pagebind_bench.replay.model_command import parse_budget
from typer.testing import CliRunner

CARD = """
source = "here"
layers = 3
kv_dtype = "bfloat16"
[full]
layers = 1
kv_heads = 1
head_dim = 8
[window]
layers = 1
kv_heads = 1
head_dim = 8
tokens = 9
[state]
layers = 1
parts = [{name = "s", shape = [40], dtype = "float32"}]
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{7 * n},{17 + n % 7},{3 + n % 9}\n" for n in range(16))
    path.write_text("arrival_ms,input_tokens,output_tokens\n" + rows)
    (tmp_path / "tiny.toml").write_text(CARD)
    return path


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    for name in ("BACKEND", "DEVICE", "CHECKS", "INDEX_DTYPE"):
        monkeypatch.delenv(f"PAGEBIND_{name}", raising=False)
    app, runner = build(), CliRunner()

    def call(*words):
        return runner.invoke(app, ["replay", *map(str, words)])

    return call


def common(trace, *, budget="9KB"):
    card = trace.parent / "tiny.toml"
    return (trace, "--backend", "cpu", "--device", "cpu", "--page-size", 4, "--model", card, "--budget", budget)


def test_both_pools_are_told_as_table_json_page_and_figure(invoke, trace, tmp_path):
    told, page, figure = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.png"
    outputs = ("--json", told, "--html", page, "--figure", figure)
    result = invoke(*common(trace), "--compare", "--verify", "every", *outputs)
    assert result.exit_code == 0, result.output
    report = json.loads(told.read_text())
    assert list(report["runs"]) == ["unified", "static"]
    assert report["model"]["page_bytes"] == {"full": 128, "window": 128, "state": 160}
    for run in report["runs"].values():
        assert run["result"]["served"] + run["result"]["refused"] == report["trace"]["requests"] == 16
        assert run["verify"]["checked"] == run["result"]["steps"]
        assert run["verify"]["stamps_read"] > 0
        assert re.fullmatch("[0-9a-f]{64}", run["digest"])
        assert run["digest"] in result.output
    unified, static = report["runs"].values()
    assert unified["result"]["mean_running"] > static["result"]["mean_running"]
    assert unified["sub_pools"]["full"]["bytes"] > static["sub_pools"]["full"]["bytes"]
    for part in ("requests served", "preemptions", "moved by relief", "window: room, peak live"):
        assert part in result.output
    text = page.read_text()
    assert text.count("<svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    for part in (unified["digest"], static["digest"], "Who holds which bytes", "bytes read back", "Reproduce"):
        assert part in text
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)|@import', text)
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("pool", ["unified", "static"])
def test_the_reproduce_line_gives_the_same_digest(invoke, trace, tmp_path, pool):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    asked = ("--pool", pool, "--no-bytes", "--speed", 3, "--window-ratio", 0.5, "--requests", 9)
    assert invoke(*common(trace), *asked, "--json", first).exit_code == 0
    report = json.loads(first.read_text())
    words = shlex.split(report["reproduce"])
    assert words[:2] == ["pagebind", "replay"]
    assert invoke(*words[2:], "--json", second).exit_code == 0
    again = json.loads(second.read_text())
    assert list(again["runs"]) == [pool]
    assert again["runs"][pool]["digest"] == report["runs"][pool]["digest"]
    assert again["settings"] == {**report["settings"], "model": str(tmp_path / "tiny.toml")}
    assert report["runs"][pool]["verify"]["stamps_read"] == 0


def test_one_run_is_drawn_alone(invoke, trace, tmp_path):
    page, figure = tmp_path / "r.html", tmp_path / "r.svg"
    result = invoke(*common(trace), "--html", page, "--figure", figure)
    assert result.exit_code == 0, result.output
    assert page.read_text().count("<svg") == 3
    ElementTree.fromstring(figure.read_text())


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b", "phi-4-mini-flash"])
def test_every_composite_has_its_page(invoke, trace, tmp_path, name):
    page = tmp_path / "r.html"
    words = (trace, "--backend", "cpu", "--device", "cpu", "--no-bytes", "--max-batch", 4, "--requests", 3)
    result = invoke(*words, "--model", name, "--budget", "1GiB", "--html", page)
    assert result.exit_code == 0, result.output
    assert "3 requests" in page.read_text()


def test_cards_are_listed(invoke):
    result = invoke("--models")
    assert result.exit_code == 0
    for part in ("gemma-3-27b", "qwen3-next-80b-a3b", "73.7", "Qwen/Qwen3-Next-80B-A3B-Instruct"):
        assert part in result.output


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    flat = " ".join(result.output.split())
    assert "Traceback" not in flat
    for part in parts:
        assert part in flat


def test_what_cannot_be_is_refused_in_one_message(invoke, trace, tmp_path):
    words = (trace, "--backend", "cpu", "--device", "cpu")
    model = ("--model", tmp_path / "tiny.toml")
    refused(
        invoke(*words, "--budget", "1GiB", "--compare"), "--compare, --budget goes with --model, which is not given"
    )
    refused(invoke(*words, *model), "--model needs --budget", "as 24GiB")
    refused(invoke(*words, "--model", "gema", "--budget", "1GiB"), "model 'gema' does not exist")
    refused(invoke(*common(trace), "--pages", 7), "with --model pass --budget instead")
    refused(invoke(*common(trace), "--pool", "static", "--compare"), "--compare runs both pools")
    refused(invoke(*common(trace, budget="24GiBs")), "--budget is '24GiBs'")
    refused(invoke(*common(trace, budget="700B")), "a budget of 700 bytes is too small for tiny")
    refused(invoke(*common(trace, budget="1200B")), "none of 16 requests fits a unified pool of 1,200 bytes")
    refused(invoke(*common(trace), "--figure", tmp_path / "r.gif"), "--figure is", ".png, .svg, .pdf")
    refused(invoke(*common(trace), "--figure", tmp_path / "no" / "r.png"), "--figure is", "there is no folder")
    refused(invoke(*common(trace), "--json", tmp_path / "r.png", "--figure", tmp_path / "r.png"), "both name")
    refused(invoke(*common(trace), "--cost-move-us", "1e13"), "--cost-move-us is", "at most 1e+12")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml", "trace.csv"]


def test_a_wrong_table_ends_with_exit_code_1_and_writes_nothing(invoke, trace, tmp_path, monkeypatch):
    class Spoiled(model_command.ModelLoop):
        def _look(self, number, *args):
            self.outs["window"][0, 0] += number == 5
            super()._look(number, *args)

    monkeypatch.setattr(model_command, "ModelLoop", Spoiled)
    out = tmp_path / "r.json"
    result = invoke(*common(trace), "--verify", "every", "--json", out)
    assert result.exit_code == 1
    flat = " ".join(result.output.split())
    assert re.search(r"wrong: step 5, lane 0 \(request \d+, row \d+\), 'window': read table, column 0: expected", flat)
    assert "reproduce: pagebind replay" in flat
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "right"),
    [("24GiB", 24 * 2**30), ("1.5 GiB", 3 * 2**29), ("800MiB", 800 * 2**20), ("9KB", 9000), ("77", 77)],
)
def test_a_budget_is_read_in_any_usual_unit(text, right):
    assert parse_budget(text) == right


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1e400", "nanGiB", "9999PiB"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(InvalidArgument, match="--budget is"):
        parse_budget(text)
