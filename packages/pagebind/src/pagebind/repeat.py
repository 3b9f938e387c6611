"""When a call is like an earlier one: then it need not be checked again, and its launch need not be made ready again.

    first call           checked, launched, noted
    second one like it   checked, launched; the launch hands over what launches the same again
    every further one    compared, launched again

Calls are alike where each tensor has the address, shape, strides, dtype and device of its counterpart, and every other
argument is equal and of the same type. A check and a launch go by nothing else, so it does not matter whether the
tensors are the same objects, nor what was done to them in between: what is compared is what they are now. Nothing here
keeps a tensor alive.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

import torch

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # a torch without it: tensors are compared in Python
    TensorGuards = None  # type: ignore[assignment,misc]

PLAIN = (int, bool, str, type(None))
"""Types of arguments that are compared by value; a call with another one, tensors apart, is always new."""

MOST_CALLS = 16
"""Calls of a plan that are remembered, and as many noted; the next one clears them."""

PATIENCE = 8
"""New calls in a row: after more of them the next REST calls are not compared, which would only cost time."""

REST = 64

Alike = Callable[..., bool]
Again = Callable[[], None]
Key = tuple[Any, ...]
Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]

_address = torch.Tensor.data_ptr
_size = torch.Tensor.numel
_facts = attrgetter("__class__", "shape", "dtype", "device", "layout", "requires_grad")


def with_arguments() -> None:
    """Stand for a remembered launch that cannot be repeated on its own, and is called with the arguments."""
    raise TypeError("with_arguments is a mark, and is not called")


class Seen(NamedTuple):
    """A new call of a form that is known."""

    tensors: tuple[Any, ...]
    key: Key
    """Addresses of the tensors, then the other arguments."""


class _Form(NamedTuple):
    """What calls of one memory have in common: their keywords, and at each place a tensor, a tuple or a type."""

    positional: int
    names: tuple[str, ...]
    nested: tuple[tuple[int, type[tuple[Any, ...]]], ...]
    """Places of named tuples. What they hold is taken to stand behind the arguments."""
    tensors: Pick
    others: Pick
    kinds: tuple[type, ...]
    """Types of the others."""


class Memory:
    """The calls of one form that a plan remembers. Threads may share it: what an entry holds never changes."""

    __slots__ = ("_find", "_known", "_misses", "_noted", "_resting", "find")

    def __init__(self, form: _Form | None = None, misses: int = 0) -> None:
        """Remember calls of `form`, or none; `misses` new calls came right before."""
        self._known: dict[Key, tuple[Alike, Again]] = {}
        self._noted: dict[Key, list[int]] = {}
        self._misses = 0
        self._resting = 0
        self._find = _nothing if form is None else self._finder(form)
        self.find = self._find
        """`find(args, kwargs)` returns what launches a call again, or a new call, or None for one of another form."""
        self._miss(misses)

    def of_form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Memory:
        """Return a memory for calls of the form of this one, which this memory does not know; the call is noted."""
        memory = Memory(_form_of(args, kwargs), self._misses)
        call = memory.find(args, kwargs)
        if isinstance(call, Seen):
            memory.note(call)
        else:
            memory._miss(1)
        return memory

    def rests(self) -> bool:
        """Return whether calls are not compared, and count one of them."""
        if self._resting <= 0:
            return False
        self._resting -= 1
        if self._resting == 0:
            self.find = self._find
        return True

    def note(self, call: Seen) -> bool:
        """Note a call that was checked; return whether the last one with its key was as large: it may come again."""
        sizes = list(map(_size, call.tensors))
        if self._noted.get(call.key) == sizes:
            return True
        if len(self._noted) >= MOST_CALLS:
            self._noted.clear()
        self._noted[call.key] = sizes
        self._miss(1)
        return False

    def remember(self, call: Seen, again: Again) -> None:
        """Remember a call that was checked and launched, and what launches it again."""
        if len(self._known) >= MOST_CALLS:
            self._known.clear()
        self._known[call.key] = alike(call.tensors), again
        self._misses = 0

    def _miss(self, count: int) -> None:
        self._misses += count
        if self._misses > PATIENCE:
            self._resting = REST
            self.find = _nothing

    def _finder(self, form: _Form) -> Callable[[tuple[Any, ...], dict[str, Any]], Again | Seen | None]:
        # A closure, because this is what a repeated call costs: its variables are at hand, attributes are not.
        positional, names, nested, pick_tensors, pick_others, kinds = form
        known = self._known

        def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Again | Seen | None:
            if len(args) != positional or tuple(kwargs) != names:
                return None
            flat: tuple[Any, ...] = (*args, *kwargs.values())
            for place, kind in nested:
                part = flat[place]
                if type(part) is not kind:
                    return None
                flat += part
            tensors, others = pick_tensors(flat), ()
            if kinds:
                others = pick_others(flat)
                if tuple(map(type, others)) != kinds:  # True and 1 are equal
                    return None
            try:
                key = (*map(_address, tensors), *others)
            except (TypeError, RuntimeError):  # no tensor, or one without an address
                return None
            remembered = known.get(key)
            if remembered is None:
                return Seen(tensors, key)
            alike, again = remembered
            if not alike(*tensors):
                return Seen(tensors, key)
            if self._misses:
                self._misses = 0
            return again

        return find


def alike(tensors: tuple[torch.Tensor, ...]) -> Alike:
    """Return a test whether as many tensors have the types, shapes, strides, dtypes and devices of these."""
    if TensorGuards is not None:
        try:
            check: Alike = TensorGuards(
                *tensors,
                dynamic_dims_sizes=cast("Any", [list(tensor.shape) for tensor in tensors]),
                dynamic_dims_strides=cast("Any", [list(tensor.stride()) for tensor in tensors]),
            ).check
            if check(*tensors):
                return check
        except (TypeError, RuntimeError, ValueError, SystemError):
            pass  # it is no public interface: where it has changed, Python compares
    return alike_in_python(tensors)


def alike_in_python(tensors: tuple[torch.Tensor, ...]) -> Alike:
    """Return the same test, which takes several times as long."""
    facts = [(_facts(tensor), tensor.stride()) for tensor in tensors]
    return lambda *others: [(_facts(other), other.stride()) for other in others] == facts


def _nothing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Find nothing."""


def _form_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Form | None:
    # None where an argument is of a type that is not compared.
    flat = [*args, *kwargs.values()]
    nested, tensors, others = [], [], []
    for place, value in enumerate(flat):  # grows on the way
        kind = type(value)
        if kind is torch.Tensor:
            tensors.append(place)
        elif kind in PLAIN:
            others.append(place)
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            nested.append((place, kind))
            flat += value
        else:
            return None
    kinds = tuple(type(flat[place]) for place in others)
    return _Form(len(args), tuple(kwargs), tuple(nested), _pick(tensors), _pick(others), kinds)


def _pick(places: list[int]) -> Pick:
    # itemgetter returns a tuple of two places or more.
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        (place,) = places
        return lambda flat: (flat[place],)
    return lambda flat: ()
