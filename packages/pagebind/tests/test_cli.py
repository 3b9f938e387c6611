"""The command line: backends and config in both forms, errors as one message, commands of other distributions."""

import json
from importlib.metadata import EntryPoint

import pytest
import typer
from pagebind import cli
from typer.testing import CliRunner


def run(*args):
    return CliRunner().invoke(cli.build(), args)


def test_backends_json_has_each_backend_with_reason_or_choice():
    done = run("backends", "--json", "--device", "cpu")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    rows = {row["name"]: row for row in told["backends"]}
    assert told["device"] == "cpu"
    assert rows["cpu"]["auto"] is True
    assert all((row["reason"] is None) == row["usable"] for row in rows.values())
    assert [row["name"] for row in rows.values() if row["auto"]] == ["cpu"]


def test_backends_table_names_every_backend():
    done = run("backends", "--device", "cpu")
    assert done.exit_code == 0
    assert "auto takes it" in " ".join(done.stdout.split())


def test_config_shows_value_and_origin(monkeypatch):
    monkeypatch.setenv("PAGEBIND_CHECKS", "full")
    assert json.loads(run("config", "--json").stdout)["checks"] == {"value": "full", "origin": "PAGEBIND_CHECKS"}
    assert "PAGEBIND_CHECKS" in run("config").stdout


def test_an_error_is_one_message_exit_code_2_and_no_traceback(monkeypatch):
    monkeypatch.setenv("PAGEBIND_BAKEND", "cpu")
    done = run("config")
    assert done.exit_code == 2
    assert "did you mean 'backend'" in done.stderr
    assert "Traceback" not in done.output


def test_debug_keeps_the_traceback(monkeypatch):
    monkeypatch.setenv("PAGEBIND_BAKEND", "cpu")
    done = run("--debug", "config")
    assert type(done.exception).__name__ == "ConfigError"


def hello() -> None:
    """Say hello."""
    typer.echo("hello")


group = typer.Typer()


@group.command()
def one() -> None:
    """Say one."""
    typer.echo("one")


@group.command()
def two() -> None:
    """Say two."""
    typer.echo("two")


@pytest.fixture
def added(monkeypatch):
    points = [
        EntryPoint("hello", f"{__name__}:hello", cli.COMMAND_GROUP),
        EntryPoint("group", f"{__name__}:group", cli.COMMAND_GROUP),
        EntryPoint("bad", "no_such_module_here:x", cli.COMMAND_GROUP),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)


def test_other_distributions_add_functions_and_groups(added):
    assert run("hello").stdout == "hello\n"
    assert run("group", "two").stdout == "two\n"


def test_a_broken_command_says_why_and_leaves_the_others(added):
    done = run("bad")
    assert done.exit_code == 2
    assert "No module named 'no_such_module_here'" in done.stderr
    assert run("hello").exit_code == 0
