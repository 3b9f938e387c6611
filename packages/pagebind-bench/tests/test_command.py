"""`pagebind replay` as a user meets it: through the core's command line."""

import json
import os
import re
import shlex
from xml.etree import ElementTree

import pytest
from pagebind.cli import build
from pagebind.errors import InvalidArgument
from pagebind_bench.replay import loop as loop_module
from pagebind_bench.replay.files import write_whole
from pagebind_bench.replay.report import render_json
from typer.testing import CliRunner


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{7 * n},{17 + n % 7},{3 + n % 9},1 2 {10 + n}\n" for n in range(24))
    path.write_text("arrival_ms,input_tokens,output_tokens,hash_ids\n" + rows)
    return path


@pytest.fixture
def invoke(monkeypatch):
    for name in ("BACKEND", "DEVICE", "CHECKS", "INDEX_DTYPE"):
        monkeypatch.delenv(f"PAGEBIND_{name}", raising=False)
    app, runner = build(), CliRunner()

    def call(*words, debug=False):
        return runner.invoke(app, [*(["--debug"] if debug else []), "replay", *map(str, words)])

    return call


COMMON = ("--backend", "cpu", "--device", "cpu")


def test_a_trace_is_replayed_and_told_as_table_json_and_page(invoke, trace, tmp_path):
    told, page = tmp_path / "r.json", tmp_path / "r.html"
    result = invoke(trace, *COMMON, "--page-size", 4, "--verify", "every", "--json", told, "--html", page)
    assert result.exit_code == 0, result.output
    report = json.loads(told.read_text())
    steps = report["result"]["steps"]
    assert report["result"]["served"] == report["trace"]["requests"] == 24
    assert report["verify"] == {"mode": "every", "checked": steps, "balanced": True}
    assert report["settings"]["block_tokens"] == 8
    assert report["trace"]["block_origin"] == "inferred from the numbers of hashes"
    assert report["result"]["hit_rate"] > 0.3
    assert re.fullmatch("[0-9a-f]{64}", report["digest"])
    for part in ("24 of 24", f"{steps:,} of {steps:,} steps; pages balance to zero", report["digest"], "extend"):
        assert part in result.output
    text = page.read_text()
    assert text.count("<svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    for part in (report["digest"], "every step verified", "Reproduce", "hit rate".capitalize()):
        assert part in text
    # Self-contained: nothing is loaded from anywhere. Namespaces of SVG are names, not addresses.
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)|@import', text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "trace.csv"]


def test_the_reproduce_line_gives_the_same_digest(invoke, trace, tmp_path):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    assert invoke(trace, *COMMON, "--page-size", 3, "--requests", 9, "--json", first).exit_code == 0
    report = json.loads(first.read_text())
    words = shlex.split(report["reproduce"])
    assert words[:2] == ["pagebind", "replay"]
    assert invoke(*words[2:], "--json", second).exit_code == 0
    again = json.loads(second.read_text())
    assert again["digest"] == report["digest"]
    assert again["settings"] == report["settings"]


@pytest.mark.parametrize("profile", ["chat", "code", "prefix-chat"])
def test_without_a_trace_one_is_generated(invoke, tmp_path, profile):
    told = tmp_path / "r.json"
    result = invoke(*COMMON, "--profile", profile, "--requests", 4, "--chunk", 100_000, "--json", told)
    assert result.exit_code == 0, result.output
    report = json.loads(told.read_text())
    assert report["trace"]["source"] == f"generated: profile {profile}, seed 0"
    assert f"--profile {profile} --seed 0" in report["reproduce"]


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    flat = " ".join(result.output.split())
    assert "Traceback" not in flat
    for part in parts:
        assert part in flat
    return flat


def test_bad_input_is_one_clear_message_and_exit_code_2(invoke, trace, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_ms,input_tokens,output_tokens\n0,5,1\n1,-5,1\n")
    out = tmp_path / "r.json"
    refused(invoke(tmp_path / "trce.csv"), "does not exist; did you mean 'trace.csv'?")
    refused(invoke(bad, "--json", out), "line 3 of trace", "input_tokens is '-5'")
    refused(invoke(trace, "--backend", "cpuu"), "backend 'cpuu' (from argument backend) is not installed", "'cpu'")
    refused(
        invoke(trace, *COMMON, "--page-size", 4, "--pages", 3, "--json", out),
        "the largest",
        "the pool has 3: pass --pages 8 or more",
    )
    refused(invoke(trace, *COMMON, "--max-context", 20), "the largest", "--max-context is 20: pass --max-context 31")
    refused(invoke(trace, *COMMON, "--block-tokens", 64), "request 1 has 3 hashes for 17 tokens", "8 fits every")
    refused(invoke("--profile", "caht", *COMMON), "profile 'caht' does not exist; profiles: chat", "mean 'chat'")
    refused(invoke(trace, "--json", tmp_path / "no" / "r.json"), "--json is", "there is no folder")
    refused(invoke(trace, "--html", tmp_path), "--html is", "which is a folder")
    for words in (("--page-size", 0), ("--verify", "never"), ("--requests", -1), ("--pages", "many"), ("--form", "x")):
        assert invoke(trace, *words).exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "trace.csv"]


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_what_cannot_be_written_is_refused_before_the_replay(invoke, trace, tmp_path, monkeypatch, option):
    monkeypatch.setattr(loop_module.Loop, "run", lambda *_: pytest.fail("the replay ran"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    for path in ("/proc/x.html", tmp_path / ("x" * 255), trace / "r.out", tmp_path / "loop", "/dev/null"):
        refused(invoke(trace, *COMMON, option, path), f"{option} is")
    assert sorted(tmp_path.iterdir()) == before


def test_what_can_no_longer_be_written_is_one_clear_message(tmp_path):
    for path in (tmp_path / "gone" / "r.json", tmp_path / ("x" * 255), tmp_path):
        with pytest.raises(InvalidArgument, match="cannot be written"):
            write_whole(path, "text")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_one_file_for_both_outputs_is_refused(invoke, trace, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "r")
    refused(
        invoke(trace, *COMMON, "--json", tmp_path / "r", "--html", tmp_path / "link"), "--json and --html both name"
    )
    assert not (tmp_path / "r").exists()


def test_numbers_have_upper_bounds(invoke, trace):
    for option in ("--cost-step-ms", "--cost-prefill-us", "--cost-entry-us"):
        refused(invoke(trace, *COMMON, option, "1e13"), f"{option} is", "at most 1e+12")
    for option, value in (("--requests", 10_000_001), ("--threads", (os.cpu_count() or 1) + 1)):
        refused(invoke(trace, *COMMON, option, value), option)


def test_json_has_no_words_that_are_not_json():
    with pytest.raises(ValueError, match="JSON"):
        render_json({"value": float("nan")})


def test_a_misspelt_setting_is_refused(invoke, trace, monkeypatch):
    monkeypatch.setenv("PAGEBIND_BAKEND", "cpu")
    refused(invoke(trace), "bakend", "did you mean 'backend'")


def test_debug_keeps_the_traceback(invoke, tmp_path):
    result = invoke(tmp_path / "none.csv", debug=True)
    assert type(result.exception).__name__ == "InvalidArgument"


def test_a_wrong_table_ends_with_exit_code_1_and_writes_nothing(invoke, trace, tmp_path, monkeypatch):
    class Spoiled(loop_module.Loop):
        def _look(self, number, *args):
            self.table[0, 0] += number == 5
            super()._look(number, *args)

    monkeypatch.setattr(loop_module, "Loop", Spoiled)
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    out.write_text("before")
    result = invoke(trace, *COMMON, "--page-size", 4, "--verify", "every", "--json", out, "--html", page)
    assert result.exit_code == 1
    flat = " ".join(result.output.split())
    assert re.search(
        r"wrong: step 5, lane 0 \(request \d+, row \d+\): read table, column 0: expected \d+, got \d+", flat
    )
    assert "reproduce: pagebind replay" in flat
    assert out.read_text() == "before"
    assert not page.exists()


def test_the_command_is_listed_and_explains_itself(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    for option in ("--backend", "--requests", "--page-size", "--verify", "--block-tokens", "--profile"):
        assert option in result.output
