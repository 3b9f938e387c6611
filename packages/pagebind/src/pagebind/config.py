"""Settings, each from the first rung of a ladder that has it, and each remembering where it came from.

    argument > environment PAGEBIND_<NAME> > pagebind.toml or [tool.pagebind] of the nearest pyproject.toml > default

A file is looked for in the working directory and upwards; the first directory that has either ends the search,
and pagebind.toml wins there. Nothing is read at import: `resolve` reads when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pagebind.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

PREFIX = "PAGEBIND_"

_MEND = "mend its permissions, or work in another directory"


@dataclass(frozen=True)
class Setting:
    """One resolved setting: its value and the rung it came from, as messages name it."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Config:
    """All settings of a resolution."""

    backend: Setting
    device: Setting
    checks: Setting
    index_dtype: Setting

    def __iter__(self) -> Any:
        return iter((self.backend, self.device, self.checks, self.index_dtype))


def resolve(**arguments: str | None) -> Config:
    """Resolve every setting; `arguments` are the top rung, None where not given.

    Raises ConfigError for a setting that does not exist, cannot be parsed or has a value that does not exist, naming
    its origin.
    """
    model = _settings_type()
    known = model.model_fields
    found: dict[str, Setting] = {}
    for origin_of, values in _rungs(model, arguments):
        for name, value in values.items():
            if name not in known:
                raise ConfigError(
                    f"setting {name!r} (from {origin_of(name)}) does not exist; "
                    f"settings: {', '.join(known)}{did_you_mean(name, known)}"
                )
            if name not in found:
                found[name] = Setting(name, _checked(model, name, value, origin_of(name)), origin_of(name))
    return Config(**{name: found.get(name) or Setting(name, known[name].default, "default") for name in known})


def settings_file(start: Path | None = None) -> Path | None:
    """Return the nearest pagebind.toml, or pyproject.toml with a [tool.pagebind] table, from `start` upwards."""
    try:
        directory = (start or Path.cwd()).resolve()
    except FileNotFoundError:
        raise ConfigError(
            "the working directory, where settings are looked for, does not exist any more; change to one that does"
        ) from None
    for folder in (directory, *directory.parents):
        own, project = folder / "pagebind.toml", folder / "pyproject.toml"
        try:
            if own.is_file():
                return own
            if os.path.lexists(own):
                what = "a directory" if own.is_dir() else "no file, or a link to none"
                raise ConfigError(f"{own} is {what}; it must be a file of settings: replace or remove it")
            if project.is_file():
                return project if _toml_table(project) is not None else None
        except OSError as error:
            raise ConfigError(f"{folder}, where settings are looked for, cannot be read: {error}; {_MEND}") from error
    return None


def _settings_type() -> type[BaseSettings]:
    from pydantic_settings import BaseSettings, SettingsConfigDict

    class Settings(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, extra="allow", validate_default=True)

        backend: str = "auto"
        device: str = "auto"
        checks: Literal["off", "count", "full"] = "count"
        index_dtype: Literal["int32", "int64"] = "int32"

    return Settings


def _rungs(model: type[BaseSettings], arguments: Mapping[str, str | None]) -> Any:
    yield (lambda name: f"argument {name}"), {k: v for k, v in arguments.items() if v is not None}
    # Every PAGEBIND_ variable is ours, so that a misspelt one is an error and not silence.
    variables: dict[str, str] = {}
    for variable in os.environ:
        if variable.upper().startswith(PREFIX):
            name = variable[len(PREFIX) :].lower()
            if variables.setdefault(name, variable) != variable:
                raise ConfigError(f"{variables[name]} and {variable} both set {name}; unset one of them")
    yield variables.__getitem__, {name: os.environ[variable] for name, variable in variables.items()}
    path = settings_file()
    if path is not None:
        yield (lambda name: f"{name} in {path}"), _toml_table(path) or {}


def _toml_table(path: Path) -> dict[str, Any] | None:
    from pydantic_settings import BaseSettings, TomlConfigSettingsSource

    class Empty(BaseSettings):
        pass

    try:
        table = TomlConfigSettingsSource(Empty, toml_file=path)()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; mend the file") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}; {_MEND}") from error
    if path.name == "pagebind.toml":
        return table
    tool = table.get("tool")
    own = tool.get("pagebind") if isinstance(tool, dict) else None
    if own is not None and not isinstance(own, dict):
        raise ConfigError(f"tool.pagebind in {path} is {own!r}; it must be a table")
    return own


def _checked(model: type[BaseSettings], name: str, value: object, origin: str) -> str:
    from pydantic import ValidationError

    try:
        checked = getattr(model.__pydantic_validator__.validate_assignment(model.model_construct(), name, value), name)
    except ValidationError as error:
        near = did_you_mean(value, get_args(model.model_fields[name].annotation)) if isinstance(value, str) else ""
        raise ConfigError(f"{name} {value!r} (from {origin}): {error.errors()[0]['msg']}{near}") from error
    if not checked.strip():
        raise ConfigError(f"{name} (from {origin}) is empty; unset it, or give it a value")
    return str(checked)
