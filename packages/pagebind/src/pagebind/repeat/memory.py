"""The calls of a plan that are remembered, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from pagebind.operation import Operation
from pagebind.repeat.alike import Alike, alike
from pagebind.repeat.signature import NO_ADDRESS, Key, Tensors, signature_of

MOST_CALLS = 16
"""Calls of a plan that are remembered, and as many noted; the next one clears them."""

PATIENCE = 8
"""New calls in a row: after more of them the next REST calls are not compared, which would only cost time."""

REST = 64

Again = Callable[[], None]
Calls = tuple[Callable[..., None], Callable[..., Again]]
"""A planned call, and its `ready`: that checks arguments as the call would, and returns what launches."""


class Memory:
    """The calls that a plan remembers. Threads may share it: what an entry holds never changes.

    Nothing of a refused call is kept, nor calls with subclasses of tensors, or of an operation whose arguments are not
    all of a kind that is compared.
    """

    __slots__ = ("_check", "_kept", "_known", "_launch", "_missed", "_noted", "_resting", "_signature")

    def __init__(self, operation: Operation[Any, Any], spec: Any, device: torch.device, launch: Any) -> None:
        self._check: Callable[..., bool] = partial(operation.arguments, spec, device)
        self._launch = launch
        self._known: dict[Key, tuple[Key, Alike, Again | None]] = {}
        self._kept: dict[Key, tuple[Key, Alike, Again | None]] = {}  # what is known, while resting
        self._noted: dict[Key, list[int]] = {}
        self._missed: list[None] = []  # one for each new call since the last that was known
        self._resting = 0
        self._signature = signature_of(operation.name, operation.arguments)

    def calls(self) -> Calls:
        """Return the planned call and its `ready`, which go by this memory. It holds neither of them."""
        if self._signature is None:
            return self._new, self._ready
        return self._signature.write(self._known, self._missed, self._launch, self._new, self._ready)

    def _new(self, *args: Any, **kwargs: Any) -> None:
        if self._check(*args, **kwargs):
            self._launch_new(args, kwargs)

    def _ready(self, *args: Any, **kwargs: Any) -> Again:
        return partial(self._launch_new, args, kwargs) if self._check(*args, **kwargs) else nothing

    def _launch_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Launch a call that was checked, and note it."""
        call = self._compared(args, kwargs)
        if call is None or not self._note(*call):  # making a repetition ready takes longer than a launch
            self._launch(*args, **kwargs)
            return
        repeatable, again = getattr(self._launch, "repeatable", None), None
        if repeatable is None:
            self._launch(*args, **kwargs)
        else:
            again = repeatable(*args, **kwargs)
        self._remember(*call, again)

    def _compared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, Tensors] | None:
        """Return what a call is compared by; None while resting, and where there is nothing to go by."""
        if self._signature is None or self._rests():
            return None
        with suppress(*NO_ADDRESS):
            key, tensors = self._signature.parts(*args, **kwargs)
            if all(type(tensor) is torch.Tensor for tensor in tensors if tensor is not None):
                return key, tensors
        self._miss()
        return None

    def _note(self, key: Key, tensors: Tensors) -> bool:
        """Note a call that was checked; return whether the last one with its key was as large: it may come again."""
        sizes = [tensor.numel() for tensor in tensors if tensor is not None]
        if self._noted.get(key) == sizes:
            return True
        if len(self._noted) >= MOST_CALLS:
            self._noted.clear()
        self._noted[key] = sizes
        self._miss()
        return False

    def _remember(self, key: Key, tensors: Tensors, again: Again | None) -> None:
        if len(self._known) >= MOST_CALLS:
            self._known.clear()
        self._known[key] = key, alike(tensors), again
        self._missed.clear()

    def _miss(self) -> None:
        if len(self._missed) < PATIENCE:
            self._missed.append(None)
            return
        self._resting = REST
        self._kept.update(self._known)
        self._known.clear()  # nothing is compared with nothing

    def _rests(self) -> bool:
        """Return whether calls are not compared, and count one of them."""
        if self._resting <= 0:
            return False
        self._resting -= 1
        if self._resting <= 0:
            self._known.update(self._kept)
            self._kept.clear()
        return True


def nothing() -> None:
    """Launch nothing."""
