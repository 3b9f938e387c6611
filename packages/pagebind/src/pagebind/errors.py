"""Every error pagebind raises. A message says what was asked, where it came from, what exists and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pickle import PicklingError


class PagebindError(Exception):
    """Base of all errors of pagebind."""


class ConfigError(PagebindError):
    """A setting is misspelt, cannot be parsed or has a value that does not exist."""


class BackendNotFound(PagebindError):
    """No installed backend has the name that was asked for."""


class BackendUnavailable(PagebindError):
    """The backend is installed but cannot be used here; the message has the reason and the mend."""


class DuplicateBackend(PagebindError):
    """Two installed distributions offer a backend of the same name."""


class Unsupported(PagebindError):
    """The backend does not declare what the plan asks for."""


class InvalidArgument(PagebindError, ValueError):
    """A plan or a call has an argument of a wrong dtype, shape, device, stride or value."""


class OutOfPages(PagebindError, MemoryError):
    """A pool cannot serve a demand; nothing was changed.

    `asked`, `free`, `holes` and `capacity` are pages.
    """

    def __init__(self, asked: int, free: int, holes: int, capacity: int, what: str = "pages") -> None:
        super().__init__(
            f"{asked} {what} asked, {free} free ({holes} of them holes) of {capacity}; "
            "free pages first, ask for fewer, or plan a larger pool"
        )
        self.asked, self.free, self.holes, self.capacity = asked, free, holes, capacity


class FaultError(PagebindError):
    """A call had faults that were dropped and counted (`checks=count`), or would have had (`checks=full`).

    `counters` maps counter names to counts; under `checks=full`, `ids` maps them to what the message names: virtual
    pages, or lanes.
    """

    def __init__(
        self, message: str, counters: Mapping[str, int] | None = None, ids: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        super().__init__(message)
        self.counters = dict(counters or {})
        self.ids = dict(ids or {})


class CaptureError(PagebindError):
    """The call is not possible while a CUDA graph is being captured; nothing was launched."""


class NotPicklable(PagebindError, PicklingError):
    """A plan was to be pickled; it belongs to its process, and another one plans anew."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'X'?` for the nearest known word, or an empty string; case and spaces around aside."""
    lower = {one.lower(): one for one in known}
    near = get_close_matches(word.strip().lower(), lower, n=1)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""
