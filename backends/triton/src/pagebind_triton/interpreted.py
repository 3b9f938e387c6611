"""Spares the interpreter what it repeats to no effect at every call of a kernel's function: a third of its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

_one_at_a_time = RLock()
"""The language is one for all host threads: a launch that began in another's would restore that one's patch."""


@contextmanager
def patched_once() -> Iterator[None]:
    """Let the one launch within patch Triton's language once, not again at every call of a function.

    The interpreter patches `triton.language` when a launch begins, restores it when it ends, and patches it anew at
    every call of a function in between, where all of it is patched already unless that function names it in another
    way. A Triton whose interpreter does otherwise is left as it is.
    """
    from triton.runtime import interpreter

    done: set[frozenset[str]] = set()
    with _one_at_a_time:
        patch: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
        if patch is None:
            yield
            return

        def once(fn: Any) -> Any:
            languages = _languages(fn)
            if languages in done:
                return None
            done.add(languages)
            return patch(fn)

        interpreter._patch_lang = once
        try:
            yield
        finally:
            interpreter._patch_lang = patch


@cache
def _languages(fn: Any) -> frozenset[str]:
    """Return which modules of Triton's language a function's module names: those are patched when it is called."""
    import triton.language as tl

    return frozenset(one.__name__ for one in (tl, tl.core) if any(named is one for named in fn.__globals__.values()))
