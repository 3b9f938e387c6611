"""What `checks=full` adds to calls of a pool: no fault before a move, and who released an id first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pagebind.errors import FaultError
from pagebind.plan import Planned
from pagebind.words import SINK, PageTables


def need_sound(planned: Planned, args: tuple[Any, ...], kwargs: dict[str, Any], *, room_comes: bool) -> None:
    """Refuse a take that would count a fault, before anything moves; what starves only until room comes is none."""
    try:
        planned.check(*args, **kwargs)
    except FaultError as error:
        if not room_comes or set(error.counters) != {"starved"}:
            raise


class Releases:
    """The call that released each id last, by sub-pool. It looks at tables before and after calls, and so it waits."""

    def __init__(self) -> None:
        self._calls = 0
        self._by: dict[tuple[str, int], str] = {}

    @contextmanager
    def watch(self, what: str, tables: Mapping[str, PageTables]) -> Iterator[None]:
        """Remember what the calls inside release; name the earlier call in a FaultError that they raise."""
        self._calls += 1
        before = {name: t.v2p > SINK for name, t in tables.items()}
        try:
            yield
        except FaultError as error:
            told = [
                f"id {v} was released first by {by}" for v in error.ids.get("double_free", ()) for by in self._first(v)
            ]
            if not told:
                raise
            raise FaultError(f"{error}; {'; '.join(told)}", error.counters, error.ids) from None
        for name, t in tables.items():
            released = (before[name] & ~(t.v2p > SINK)).nonzero().flatten()
            for v in released.tolist():
                self._by[name, v] = f"{what} in {name!r}, release {self._calls} of this pool"

    def _first(self, v: int) -> list[str]:
        return [by for (_, released), by in self._by.items() if released == v][:1]
