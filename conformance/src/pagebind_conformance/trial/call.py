"""What all trials share: tensors placed between guard bands, one call, and the comparison of everything after it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from pagebind import LaunchOptions, Operation
from pagebind.errors import PagebindError
from pagebind.ops import OPERATIONS, SecondTable
from pagebind.words import (
    BASE,
    COUNTERS,
    EPOCH,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    REACH,
    SEAT,
    STATE_WORDS,
    TICKET,
    VIRTUAL_TOP,
    WATERMARK,
    PageTables,
)

from pagebind_conformance import difference
from pagebind_conformance.difference import Difference
from pagebind_conformance.guarded import POISON, POSITIONS, Guarded, Layout, Unspecified
from pagebind_conformance.oracle import DOWN, Block, SubPool
from pagebind_conformance.subject import Subject


@dataclass(frozen=True)
class How:
    """How a trial is made: `layouts` by argument name, and what the plan is made with.

    `counted` False passes no state block where one is optional.
    """

    layouts: Mapping[str, Layout] | None = None
    checks: str = "count"
    options: LaunchOptions | None = None
    counted: bool = True

    def layout(self, name: str) -> Layout:
        """Return the layout of one argument."""
        return (self.layouts or {}).get(name, Layout())


USUAL = How()

LONGEST_VALUES = 200
"""Characters a message gives to the values of one argument."""


def state_words(pool: SubPool | None = None, block: Block | None = None) -> list[int]:
    """Return a state block before a call: its counters are not 0, so that adding shows, spare words are poison.

    Without a `block` the sub-pool shares no chain, and nothing may depend on the words that tell its place in one.
    """
    words = [POISON[torch.int64]] * STATE_WORDS
    words[TICKET:GROWTH] = [0] * (GROWTH - TICKET)
    for i, word in enumerate(COUNTERS.values()):
        words[word] = 1000 * (i + 1)
    positions = (pool.virtual_top, pool.hole_top, pool.watermark, pool.epoch, pool.seat) if pool else (0, 0, 0, 0, 0)
    for word, value in zip((VIRTUAL_TOP, HOLE_TOP, WATERMARK, EPOCH, SEAT), positions, strict=True):
        words[word] = value
    words[GROWTH] = DOWN
    if block is not None:
        words[GROWTH], words[BASE], words[PAGE_BYTES] = block.growth, block.base, block.page_bytes
        words[REACH] = block.reach
    return words


def chain_words(pool: SubPool) -> list[list[int]]:
    """Return the state blocks of a sub-pool's chain before a call, its own among them."""
    assert pool.chain is not None
    blocks = []
    for j, block in enumerate(pool.chain.blocks):
        words = state_words(pool if j == pool.chain.place else None, block)
        if j != pool.chain.place:
            for word in (VIRTUAL_TOP, HOLE_TOP, EPOCH):
                words[word] = POISON[torch.int64]
            words[WATERMARK], words[SEAT] = block.watermark, block.seat
        blocks.append(words)
    return blocks


def counted(words: Sequence[int], counters: Mapping[str, int], pool: SubPool | None = None) -> list[int]:
    """Return the state block after a call that counted `counters` and left the positions of `pool`."""
    after = list(words)
    for name, count in counters.items():
        after[COUNTERS[name]] += count
    if pool is not None:
        after[VIRTUAL_TOP], after[HOLE_TOP] = pool.virtual_top, pool.hole_top
        after[WATERMARK], after[EPOCH], after[SEAT] = pool.watermark, pool.epoch, pool.seat
    return after


class GuardedPool:
    """The tensors of a sub-pool, each between guard bands; of one in a chain the state blocks of all lie in one."""

    def __init__(self, pool: SubPool, dtype: torch.dtype, device: torch.device, how: How = USUAL) -> None:
        def place(name: str) -> Guarded:
            return Guarded(getattr(pool, name), dtype, device, how.layout(name))

        self.parts = {name: place(name) for name in ("v2p", "p2v", "virtual_stack", "hole_stack")}
        self.place = None if pool.chain is None else pool.chain.place
        self.blocks = [state_words(pool)] if pool.chain is None else chain_words(pool)
        name = "state" if self.place is None else "chain"
        self.parts[name] = self.placed_blocks(device, how.layout(name))

    def placed_blocks(self, device: torch.device, layout: Layout | None = None) -> Guarded:
        """Return the state block, or those of the chain, in memory of their own."""
        words: list[Any] = self.blocks[0] if self.place is None else self.blocks
        return Guarded(words, torch.int64, device, layout or Layout())

    @property
    def words(self) -> list[int]:
        """The sub-pool's own state block as it was when last expected."""
        return self.blocks[self.place or 0]

    @property
    def tables(self) -> PageTables:
        """The tensors as operations take them."""
        views: dict[str, Any] = {name: part.view for name, part in self.parts.items()}
        if self.place is not None:
            views |= {"state": views["chain"][self.place], "place": self.place}
        return PageTables(**views)

    def again(self, place: Callable[[Guarded], Guarded]) -> GuardedPool:
        """Return the same sub-pool with each of its tensors placed anew."""
        other = copy(self)
        other.parts = {name: place(part) for name, part in self.parts.items()}
        return other

    def expected(
        self,
        before: SubPool,
        after: SubPool,
        counters: Mapping[str, int],
        *,
        pushes: bool = False,
        repeats: bool = False,
        borrowed: bool = False,
    ) -> dict[str, Any]:
        """Return what each tensor must hold after a call.

        Of a call that `pushes` on the stacks, cells at or above the new tops mean nothing; where ids repeat in it,
        those pushed may stand in any order; where they are `borrowed`, the virtual stack stays.
        """
        wanted: dict[str, Any] = {
            "v2p": after.v2p,
            "p2v": after.p2v,
            "virtual_stack": after.virtual_stack,
            "hole_stack": after.hole_stack,
        }
        for name, old, new in zip(("virtual_stack", "hole_stack"), before.tops(), after.tops(), strict=True):
            if pushes and not (borrowed and name == "virtual_stack"):
                wanted[name] = Unspecified(_stack(getattr(after, name), min(old, new), new, repeats))
        blocks = list(self.blocks)
        blocks[self.place or 0] = counted(self.words, counters, after)
        self.blocks = blocks
        return wanted | ({"state": blocks[0]} if self.place is None else {"chain": blocks})


class GuardedSecond:
    """The tensors of a second read table, each between guard bands; None where the call has none."""

    def __init__(self, **fields: Guarded | None) -> None:
        self.fields = fields

    @property
    def parts(self) -> dict[str, Guarded]:
        """The tensors by the names that messages give them."""
        return {f"beside.{name}": part for name, part in self.fields.items() if part is not None}

    @property
    def tables(self) -> SecondTable:
        """The tensors as operations take them."""
        views: dict[str, Any] = {name: None if part is None else part.view for name, part in self.fields.items()}
        return SecondTable(**views)

    def again(self, place: Callable[[Guarded], Guarded]) -> GuardedSecond:
        """Return the same table with each of its tensors placed anew."""
        return GuardedSecond(**{name: None if part is None else place(part) for name, part in self.fields.items()})


GROUPS = (GuardedPool, GuardedSecond)
"""Arguments that are several tensors: their `parts` by name, `tables` as operations take them."""


def hold(
    subject: Subject,
    operation: Operation[Any, Any],
    spec: Any,
    arguments: Mapping[str, Any],
    expected: Mapping[str, Any],
    how: How = USUAL,
) -> None:
    """Plan, call, and compare every tensor of the call with what it must hold; others have not changed.

    A call that is refused must have changed nothing at all. A failure tells the call: spec, and values before it.
    """
    __tracebackhide__ = True
    planned = subject.plan(operation, spec, how.checks, how.options)
    # Comparing replaces these tensors and writes none of them, so holding on to them is a copy.
    before = {name: tensor.before for name, tensor in parts_of(arguments).items()}
    try:
        try:
            call(planned, operation, arguments)
        except PagebindError:
            compare(arguments)
            raise
        compare(arguments, expected)
    except PagebindError:
        raise  # a refusal, which its case expects
    except Difference as error:
        told = _recorded(operation, spec, arguments, before), _spelled(operation, spec, arguments, before)
        raise error.of(*told) from None
    except Exception as error:
        told = _recorded(operation, spec, arguments, before), _spelled(operation, spec, arguments, before)
        raise Difference(f"the call raised {type(error).__name__}: {error}").of(*told) from error


def call(planned: Callable[..., None], operation: Operation[Any, Any], arguments: Mapping[str, Any]) -> None:
    """Call with the tensors of `arguments`, each in the manner its operation takes it."""
    in_order, by_name = _manner(operation.name)
    given = {name: _plain(value) for name, value in arguments.items()}
    planned(*(given[name] for name in in_order), **{name: given[name] for name in by_name if name in given})


def compare(arguments: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> None:
    """Fail unless every tensor of `arguments` holds what is expected, and nothing else has changed."""
    __tracebackhide__ = True
    expected = expected or {}
    found = []
    for name, tensor in parts_of(arguments).items():
        try:
            tensor.verify(name, expected.get(name))
        except Difference as error:
            found.append(error)
    if found:
        raise difference.joined(found)


def parts_of(arguments: Mapping[str, Any]) -> dict[str, Guarded]:
    """Return every tensor of a call by name, those of a sub-pool or of a second table too."""
    found: dict[str, Guarded] = {}
    for name, value in arguments.items():
        if isinstance(value, GROUPS):
            found |= value.parts
        elif isinstance(value, Guarded):
            found[name] = value
    return found


def shape_of(rows: Sequence[Sequence[int]], width: int | None = None) -> tuple[int, int]:
    """Return the shape of nested lists."""
    return len(rows), len(rows[0]) if rows else width or 0


def released(exact: Sequence[int], ids: Sequence[int]) -> Any:
    """Return what `freed` must hold: exactly that, or where ids repeat, each page in one of the lanes of its id."""
    if not repeating(ids):
        return list(exact)

    def check(got: list[int]) -> str | None:
        lanes_of: dict[int, list[int]] = {}
        for i, v in enumerate(ids):
            lanes_of.setdefault(v, []).append(i)
        for v, lanes in lanes_of.items():
            if sorted(got[i] for i in lanes) != sorted(exact[i] for i in lanes):
                given, due = [got[i] for i in lanes], [exact[i] for i in lanes]
                return f"lanes {_short(lanes)} free id {v} and give {_short(given)}, not {_short(due)}"
        if got[len(ids) :] != list(exact[len(ids) :]):
            return f"past the {len(ids)} pages it holds {_short(got[len(ids) :])}"
        return None

    return Unspecified(check)


def repeating(ids: Sequence[int]) -> bool:
    """Return whether an id, other than holes, stands in more than one lane."""
    real = [v for v in ids if v >= 0]
    return len(set(real)) < len(real)


def _stack(exact: list[int], old: int, new: int, any_order: bool) -> Callable[[list[int]], str | None]:
    def check(got: list[int]) -> str | None:
        if got[:old] != exact[:old]:
            return f"below the old top {old} it holds {_short(got[:old])}, expected {_short(exact[:old])}"
        pushed, wanted = got[old:new], exact[old:new]
        same = Counter(pushed) == Counter(wanted) if any_order else pushed == wanted
        return None if same else f"above the old top {old} it holds {_short(pushed)}, expected {_short(wanted)}"

    return check


@lru_cache
def _manner(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    parameters = list(inspect.signature(OPERATIONS[name].arguments).parameters.values())[2:]
    in_order = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    return in_order, tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def _plain(value: Any) -> Any:
    if isinstance(value, GROUPS):
        return value.tables
    return value.view if isinstance(value, Guarded) else value


def _spelled(
    operation: Operation[Any, Any], spec: Any, arguments: Mapping[str, Any], before: Mapping[str, torch.Tensor]
) -> str:
    tensors = parts_of(arguments)
    lines = [f"of {operation.name} with {spec}, before the call:"]
    for name, tensor in tensors.items():
        cells = before[name].as_strided(*tensor.geometry)
        lines.append(f"  {name} {list(cells.shape)}: {_values(name, cells)}")
    for name, value in arguments.items():
        if value is not None and not isinstance(value, (Guarded, *GROUPS)):
            lines.append(f"  {name}: {_short(value)}")
    return "\n".join(lines)


def _recorded(
    operation: Operation[Any, Any], spec: Any, arguments: Mapping[str, Any], before: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    tensors = list(parts_of(arguments).items())[: difference.MOST_INPUTS]
    cells = [(name, tensor, before[name].as_strided(*tensor.geometry)) for name, tensor in tensors]
    plain = {name: v for name, v in arguments.items() if v is not None and not isinstance(v, (Guarded, *GROUPS))}
    return {
        "operation": operation.name,
        "spec": {one.name: str(getattr(spec, one.name)) for one in fields(spec)},
        "arguments": {name: _short(value) for name, value in plain.items()},
        "inputs": [difference.before(name, c, POISON[c.dtype], tensor.words(name)) for name, tensor, c in cells],
    }


def _values(name: str, cells: torch.Tensor) -> str:
    poison = POISON[cells.dtype]
    if name == "chain":
        return "; ".join(_values("state", block) for block in cells)
    if name.rpartition(".")[2] == "state":
        words = cells.tolist()
        told = {position: words[word] for position, word in POSITIONS.items() if words[word] != poison}
        return ", ".join(f"{position} {value}" for position, value in told.items()) or "no positions"
    if cells.numel() and bool((cells == poison).all()):
        return "not written"
    return _short(cells.tolist())


def _short(values: Any) -> str:
    text = str(values)
    return text if len(text) <= LONGEST_VALUES else f"{text[: LONGEST_VALUES - 4]} ..."
