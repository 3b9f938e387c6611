"""The configuration ladder: each rung beats the next, each value names its origin, and bad settings are errors."""

import pytest
from pagebind.config import resolve, settings_file
from pagebind.errors import ConfigError


def test_default_is_the_last_rung():
    config = resolve()
    assert [(s.name, s.value, s.origin) for s in config] == [
        ("backend", "auto", "default"),
        ("device", "auto", "default"),
        ("checks", "count", "default"),
        ("index_dtype", "int32", "default"),
    ]


def test_each_rung_beats_the_next(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.pagebind]\nbackend = "a"\ndevice = "cpu"\n')
    assert resolve().backend.value == "a"
    (tmp_path / "pagebind.toml").write_text('backend = "b"\n')
    config = resolve()
    assert (config.backend.value, config.backend.origin) == ("b", f"backend in {tmp_path / 'pagebind.toml'}")
    assert config.device.origin == "default", "pagebind.toml ends the search"
    monkeypatch.setenv("PAGEBIND_BACKEND", "c")
    assert (resolve().backend.value, resolve().backend.origin) == ("c", "PAGEBIND_BACKEND")
    assert (resolve(backend="d").backend.value, resolve(backend="d").backend.origin) == ("d", "argument backend")


def test_nearest_file_is_found_upwards(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pagebind]\nchecks = 'full'\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert resolve().checks.value == "full"
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings_file() is None, "the nearest pyproject.toml ends the search, with or without a table of ours"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PAGEBIND_BAKEND", "cpu", ["'bakend'", "PAGEBIND_BAKEND", "index_dtype", "did you mean 'backend'"]),
        ("PAGEBIND_CHECKS", "ful", ["'ful'", "PAGEBIND_CHECKS", "'full'"]),
        ("PAGEBIND_INDEX_DTYPE", "int16", ["'int16'", "PAGEBIND_INDEX_DTYPE", "'int64'"]),
        ("PAGEBIND_DEVICE", "", ["PAGEBIND_DEVICE", "empty"]),
    ],
)
def test_bad_environment_is_an_error_that_names_it(monkeypatch, variable, value, told):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        resolve()
    for word in told:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("backend = [", "not valid TOML"),
        ("backnd = 'cpu'", "did you mean 'backend'"),
        ("backend = 3", "should be a valid string"),
    ],
)
def test_bad_file_is_an_error_that_names_it(tmp_path, text, told):
    path = tmp_path / "pagebind.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        resolve()
    assert str(path) in str(caught.value)


def test_tool_table_must_be_a_table(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\npagebind = 3\n")
    with pytest.raises(ConfigError, match="must be a table"):
        resolve()
