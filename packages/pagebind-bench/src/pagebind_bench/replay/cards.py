"""Model cards: how many bytes a page of each kind has, derived from a model's public configuration."""

from __future__ import annotations

import sys
from importlib import resources
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pagebind.errors import InvalidArgument, did_you_mean
from pagebind.ops.compact import ALIGNMENT
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from pagebind_bench.replay.kinds import FULL, STATE, WINDOW, Kinds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DType = Literal["bfloat16", "float16", "float32"]
ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
PAGE_TOKENS = 16
"""Tokens of a page, unless a replay says otherwise."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attention(_Strict):
    """Layers that keep a key and a value for every token."""

    layers: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt

    def token_bytes(self, dtype: DType) -> int:
        """Return the bytes of a token: K and V of every head in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ITEM_BYTES[dtype]


class Window(Attention):
    """Layers that attend to the last `tokens` tokens, the newest counted."""

    tokens: PositiveInt


class StatePart(_Strict):
    """One tensor of a layer's state."""

    name: str
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    dtype: DType


class State(_Strict):
    """Layers that keep a state of fixed size for each request."""

    layers: PositiveInt
    parts: Annotated[list[StatePart], Field(min_length=1)]

    @property
    def request_bytes(self) -> int:
        """Bytes of a request: every part in every layer."""
        return self.layers * sum(prod(part.shape) * ITEM_BYTES[part.dtype] for part in self.parts)


class Card(_Strict):
    """One model: its layers by what they keep. `source` says where the figures stand; comments name the fields."""

    name: str
    source: str
    layers: PositiveInt
    without_cache: int = Field(default=0, ge=0)
    """Layers that keep nothing of their own."""
    kv_dtype: DType
    full: Attention
    window: Window | None = None
    state: State | None = None

    @model_validator(mode="after")
    def _need_all_layers(self) -> Card:
        told = [part.layers for part in (self.full, self.window, self.state) if part is not None]
        if sum(told) + self.without_cache != self.layers:
            raise ValueError(
                f"layers by kind {told} and {self.without_cache} without a cache are not all {self.layers}"
            )
        return self

    @property
    def kinds(self) -> Kinds:
        """Its sub-pools."""
        return Kinds(FULL, WINDOW if self.window else None, STATE if self.state else None)

    def page_bytes(self, page_size: int) -> dict[str, int]:
        """Return the bytes of a page of each kind, rounded up so that pages can move; a state is one page."""
        told = {FULL: page_size * self.full.token_bytes(self.kv_dtype)}
        if self.window is not None:
            told[WINDOW] = page_size * self.window.token_bytes(self.kv_dtype)
        if self.state is not None:
            told[STATE] = self.state.request_bytes
        return {kind: -(-size // ALIGNMENT) * ALIGNMENT for kind, size in told.items()}


def card_names() -> list[str]:
    """Return the names of all cards."""
    folder = resources.files("pagebind_bench.replay") / "models"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_card(name: str) -> Card:
    """Return a card by its name, or by the path of its TOML file; raises InvalidArgument for neither."""
    names = card_names()
    if name.endswith(".toml"):
        try:
            return parse_card(Path(name).stem, Path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"model card {name} cannot be read: {error}; models: {', '.join(names)}") from error
    if name not in names:
        raise InvalidArgument(
            f"model {name!r} does not exist{did_you_mean(name, names)}; models: {', '.join(names)} (--models tells "
            "more), or the path of a card of your own, NAME.toml"
        )
    text = (resources.files("pagebind_bench.replay") / "models" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_card(name, text)


def parse_card(name: str, text: str) -> Card:
    """Return the card that TOML text spells; raises InvalidArgument, naming the field, where it does not."""
    try:
        return Card(name=name, **tomllib.loads(text))
    except (ValidationError, tomllib.TOMLDecodeError, TypeError) as error:
        raise InvalidArgument(f"model card {name!r} is not sound: {error}") from error
