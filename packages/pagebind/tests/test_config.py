"""The configuration ladder: each rung beats the next, each value names its origin, and bad settings are errors."""

import os
from pathlib import Path

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
        ("PAGEBIND_BACKEND", " \n", ["PAGEBIND_BACKEND", "empty"]),
        ("PAGEBIND_CHECKS", "FULL", ["'FULL'", "PAGEBIND_CHECKS", "did you mean 'full'"]),
        ("PAGEBIND_INDEX_DTYPE", " int64 ", ["' int64 '", "did you mean 'int64'"]),
        ("Pagebind_Checks", "ful", ["'ful'", "Pagebind_Checks"]),
    ],
)
def test_bad_environment_is_an_error_that_names_it(monkeypatch, variable, value, told):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        resolve()
    for word in told:
        assert word in str(caught.value)


def test_two_variables_that_differ_by_case_alone_are_refused(monkeypatch):
    monkeypatch.setenv("pagebind_backend", "a")
    assert (resolve().backend.value, resolve().backend.origin) == ("a", "pagebind_backend")
    monkeypatch.setenv("PAGEBIND_BACKEND", "b")
    with pytest.raises(ConfigError, match=r"(?i)^pagebind_backend and pagebind_backend both set backend; unset one"):
        resolve()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.mkdir(), "is a directory; it must be a file of settings: replace or remove it"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "is no file, or a link to none; it must be a file"),
        (lambda path: path.symlink_to(path), "is no file, or a link to none; it must be a file"),
        (os.mkfifo, "is no file, or a link to none; it must be a file"),
    ],
    ids=["directory", "link-to-nowhere", "link-to-itself", "pipe"],
)
def test_what_is_named_as_the_settings_file_and_is_none_is_not_passed_over(tmp_path, make, told):
    path = tmp_path / "pagebind.toml"
    make(path)
    with pytest.raises(ConfigError, match=told) as caught:
        resolve()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["pagebind.toml", "pyproject.toml"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(monkeypatch, tmp_path, name):
    path, read = tmp_path / name, Path.open
    path.write_text("")

    def refuse(self, *args, **kwargs):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)  # as for a user without the right; the superuser has it always
    with pytest.raises(ConfigError, match=r"cannot be read: .*Permission denied.*; mend its permissions") as caught:
        resolve()
    assert str(path) in str(caught.value)


def test_a_directory_that_cannot_be_looked_into_is_an_error_that_names_it(monkeypatch, tmp_path):
    look = Path.is_file

    def refuse(self):
        if self.parent == tmp_path.parent:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self)

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read: .*Permission denied.*; mend its permissions") as caught:
        resolve()
    assert str(tmp_path.parent) in str(caught.value)
    (tmp_path / "pagebind.toml").write_text('backend = "a"\n')
    assert resolve().backend.value == "a", "a nearer file ends the search before it"


def test_a_working_directory_that_is_gone_is_an_error(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(
        ConfigError, match=r"the working directory, .* does not exist any more; change to one that does"
    ):
        resolve()


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
