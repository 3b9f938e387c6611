"""The kinds of page that a request needs, and how many of each."""

from __future__ import annotations

from dataclasses import dataclass

FULL, WINDOW, STATE = "full", "window", "state"


@dataclass(frozen=True)
class Kinds:
    """Names of sub-pools: the owner of the ids that rows hold, the one that borrows them, the one of states."""

    owner: str
    window: str | None = None
    state: str | None = None

    @property
    def paged(self) -> tuple[str, ...]:
        """Those with a page for every few tokens, which a read table is built over."""
        return (self.owner,) if self.window is None else (self.owner, self.window)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.paged if self.state is None else (*self.paged, self.state)

    def demand(self, need: Need) -> dict[str, int]:
        """Return a need as pages by the name of their sub-pool."""
        counts = {self.owner: need.full, self.window: need.window, self.state: need.states}
        return {name: pages for name, pages in counts.items() if name is not None}


@dataclass(frozen=True)
class Need:
    """Pages of each kind; 0 of those a model has not."""

    full: int = 0
    window: int = 0
    states: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.full + other.full, self.window + other.window, self.states + other.states)
