"""Calls written out for an operation, from the signature of its argument check, as `dataclasses` writes an `__init__`.

For `read_table` this is, in short:

    def read_table(request_table, ..., *, out, starts=None, seq_len_delta=0, state=None, beside=None):
        if known:
            try:
                key = (request_table.data_ptr(), ..., None if starts is None else starts.data_ptr(), ...)
                found = latest[0]
                if found[0] != key:
                    found = latest[0] = find(key, unknown)
            except NO_ADDRESS:
                found = unknown
            _, alike, again = found
            if alike(request_table, req_rows, seq_lens, v2p, out, starts, state):
                return again()
        latest[0] = unknown
        return new(request_table, req_rows, seq_lens, v2p, out=out, starts=starts, ...)

Arguments are read where Python has put them. A function with `*args` would have them packed and unpacked on the way,
which was a third of what a repeated call took.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import torch

PLAIN = (int, bool, str)
"""Types of arguments that are compared by value."""

NO_ADDRESS = (AttributeError, TypeError, RuntimeError)
"""What asking for the address of something else than a tensor with memory raises, or a value that has no hash."""

Key = tuple[Any, ...]
"""Addresses of the tensors and the other arguments with their types, in the order of the signature."""
Tensors = tuple[torch.Tensor | None, ...]
_Wrap = Callable[[Callable[..., bool]], Callable[..., bool]]

_CALLS = """
def write(_known, _missed, _launch, _new, _check):
    _find = _known.get
    _latest = [_unknown]

    def {name}({head}):
{found}
                if _again is None:
                    return _launch({handed})
                return _again()
        _latest[0] = _unknown
        return _new({handed})

    def ready({head}):
{found}
                return _partial(_launch, {handed}) if _again is None else _again
        _latest[0] = _unknown
        return _check({handed})

    {name}.__qualname__ = {name}.__name__
    return {name}, ready

def parts({head}):
    if not ({fits}):
        raise TypeError
    {opened}
    return {key}, {tensors}
"""
_FOUND = """\
        if _known and {fits}:
            {opened}
            try:
                _key = {key}
                _found = _latest[0]
                if _found[0] != _key:
                    _found = _latest[0] = _find(_key, _unknown)
            except _no_address:
                _found = _unknown
            _, _alike, _again = _found
            if _alike{tensors}:
                if _missed:
                    _missed.clear()"""
# Names with an underscore are ours, others are those of the arguments.


def _never(*tensors: object) -> bool:
    return False


_UNKNOWN = (None, _never, None)


class Signature(NamedTuple):
    """What is written for the calls of an operation."""

    write: Callable[..., tuple[Callable[..., None], Callable[..., Callable[[], None]]]]
    """`write(known, missed, launch, new, check) -> call, ready`.

    `known` maps keys to `(key, alike, again)`. Where `alike` of the tensors is true, `call` calls `again`, or `launch`
    with the arguments if it is None, and `ready` returns that; `missed` is emptied. Other calls are handed to `new` and
    `check`. All arguments are handed on, those left out by their defaults; but an optional named tuple only where it is
    given, as a launch that has no use for it need not take it.
    """
    parts: Callable[..., tuple[Key, Tensors]]
    """Return the key and the tensors of a call, None for those that are; raises NO_ADDRESS where it has no key."""


@cache
def signature_of(name: str, arguments: Callable[..., bool]) -> Signature | None:
    """Return what is written for `arguments(spec, device, *call arguments)`, or None.

    It is written where the annotation of each argument is a tensor, a named tuple of such arguments, or a type of
    PLAIN; each may be optional.
    """
    hints = _hints(arguments)
    parameters = list(inspect.signature(arguments).parameters.values())[2:]
    scope: dict[str, Any] = {"_no_address": NO_ADDRESS, "_partial": partial, "_type": type, "_unknown": _UNKNOWN}
    head, handed, fits, opened = [], [], [], []
    key: list[str] = []
    tensors: list[str] = []
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) or p.name.startswith("_"):
            return None
        if p.kind is p.KEYWORD_ONLY and "*" not in head:
            head.append("*")
        head.append(p.name)
        if p.default is not p.empty:
            scope[f"_default_{p.name}"] = p.default
            head[-1] += f"=_default_{p.name}"
        kind, optional = _without_none(hints.get(p.name))
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            fields = {field: f"_{field}_of_{p.name}" for field in kind._fields}
            scope[f"_type_of_{p.name}"] = kind
            inside = _hints(kind)
            compared = [(fields[field], inside.get(field)) for field in fields]
            if optional:  # left out, its tensors are None, and it is one cell of the key
                scope[f"_none_of_{p.name}"] = (None,) * len(fields)
                fits.append(f"({p.name} is None or _type({p.name}) is _type_of_{p.name})")
                opened.append(f"{', '.join(fields.values())}, = _none_of_{p.name} if {p.name} is None else {p.name}")
                cells: list[str] = []
                if not all(_compare(variable, of, cells, tensors) for variable, of in compared):
                    return None
                key.append(f"None if {p.name} is None else ({', '.join(cells)},)")
                handed.append(f"**({{}} if {p.name} is None else {{'{p.name}': {p.name}}})")
                continue
            fits.append(f"_type({p.name}) is _type_of_{p.name}")
            opened.append(f"{', '.join(fields.values())}, = {p.name}")
        else:
            compared = [(p.name, hints.get(p.name))]
        handed.append(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name)
        for variable, of in compared:
            if not _compare(variable, of, key, tensors):
                return None
    written = {
        "name": name if name.isidentifier() else "call",
        "head": ", ".join(head),
        "handed": ", ".join(handed),
        "fits": " and ".join(fits) or "True",
        "opened": "; ".join(opened) or "pass",
        "key": f"({', '.join(key)},)",
        "tensors": f"({', '.join(tensors)},)",
    }
    exec(_CALLS.format(found=_FOUND.format(**written), **written), scope)
    return Signature(scope["write"], scope["parts"])


def _hints(of: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(of)
    except (NameError, TypeError):  # types that are known to type checkers alone
        return {}


def _without_none(kind: Any) -> tuple[Any, bool]:
    # The type of an optional argument, and whether it is one; a union of several types stays as it is.
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    some = [one for one in get_args(kind) if one is not NoneType]
    return (some[0], True) if len(some) == 1 < len(get_args(kind)) else (kind, False)


def _compare(variable: str, kind: Any, key: list[str], tensors: list[str]) -> bool:
    # Adds what a variable contributes to the key and the tensors; False for a kind that is not compared.
    kinds = set(get_args(kind)) if get_origin(kind) in (Union, UnionType) else {kind}
    some = kinds - {NoneType}
    if some == {torch.Tensor}:
        tensors.append(variable)
        address = f"{variable}.data_ptr()"
        key.append(address if some == kinds else f"None if {variable} is None else {address}")
        return True
    key += [f"_type({variable})", variable]  # True and 1 are equal
    return bool(some) and all(one in PLAIN or get_origin(one) is Literal for one in some)


@cache
def given(mask: tuple[bool, ...]) -> _Wrap:
    """Return what makes a test of all tensors of a call from one of those that `mask` says are given."""
    names = [f"t{i}" for i in range(len(mask))]
    some = [name for name, there in zip(names, mask, strict=True) if there]
    return cast("_Wrap", eval(f"lambda test: lambda {', '.join(names)}: test({', '.join(some)})"))
