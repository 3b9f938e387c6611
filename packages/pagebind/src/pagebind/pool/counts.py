"""The host's side of a pool: how many pages are live, how far the span reaches, and what is leased to a graph.

Holes are taken before the span grows and freed pages become holes, so the counts follow from the calls alone:

    span = live + holes            span = the highest live count since the last retreat
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagebind.errors import InvalidArgument, OutOfPages
from pagebind.operation import need_count


@dataclass
class Lease:
    """Pages set aside for calls captured in a CUDA graph, whose replays run no host code.

    `pages` is the most that the replays may hold at any moment, beyond what was live when they began.
    """

    pages: int
    live: int  # when the lease was opened
    span: int
    settle_with: Callable[[Lease, int, int | None], None] = field(repr=False)
    change: int = 0  # live pages by eager calls since
    highest: int = 0  # the highest that `change` was

    def settle(self, used: int, peak: int | None = None) -> None:
        """Close the lease: the replays hold `used` pages more than before, and held `peak` more at their highest.

        `used` may be below 0 where replays freed more than they took; `peak` is `max(used, 0)` unless given, which is
        right where they only took pages. Eager calls made while the lease was open count as made after the replays.
        Raises InvalidArgument, and changes nothing, for counts the lease cannot have.
        """
        self.settle_with(self, used, peak)


class Counts:
    """Live pages and span of one sub-pool, in Python ints."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live = 0
        self.span = 0
        self.lease: Lease | None = None

    @property
    def holes(self) -> int:
        """Pages inside the span that are free."""
        return self.span - self.live

    @property
    def leased(self) -> int:
        """Pages set aside by the open lease, 0 without one."""
        return self.lease.pages if self.lease is not None else 0

    @property
    def free(self) -> int:
        """Pages a call can take now."""
        return self.capacity - self.live - self.leased

    def need(self, asked: int) -> None:
        """Raise OutOfPages, changing nothing, where `asked` pages are not free."""
        if asked > self.free:
            raise OutOfPages(asked, self.free, self.holes, self.capacity)

    def take(self, pages: int) -> None:
        """Account for pages that were taken."""
        self.live += pages
        self.span = max(self.span, self.live)
        if self.lease is not None:
            self.lease.change += pages
            self.lease.highest = max(self.lease.highest, self.lease.change)

    def need_live(self, pages: int) -> None:
        """Raise InvalidArgument, changing nothing, where more pages are given back than can be live."""
        most = self.live + self.leased
        if pages > most:
            raise InvalidArgument(
                f"{pages} pages are given back, {most} are live: count the pages that come back again"
            )

    def give(self, pages: int) -> None:
        """Account for pages that were freed."""
        self.live -= pages
        if self.lease is not None:
            self.lease.change -= pages

    def retreat(self, pages: int) -> None:
        """Account for a span that was shortened by `pages` holes; raises InvalidArgument while a lease is open."""
        if self.lease is not None:
            raise InvalidArgument(
                f"a lease of {self.lease.pages} pages is open, and how far its replays reach is not known before "
                "settle(used): settle it, then compact"
            )
        self.span -= pages

    def open_lease(self, pages: int) -> Lease:
        """Set `pages` aside; raises OutOfPages where they are not free, InvalidArgument while a lease is open."""
        if self.lease is not None:
            raise InvalidArgument(
                f"{pages} pages asked for a lease while one of {self.lease.pages} is open; call its settle(used) first"
            )
        need_count("pages", pages, 0)
        self.need(pages)
        self.lease = Lease(pages, self.live, self.span, self._settle)
        return self.lease

    def _settle(self, lease: Lease, used: int, peak: int | None) -> None:
        if lease is not self.lease:
            raise InvalidArgument("this lease is not open; it was settled before")
        need_count("used", used, -self.capacity)
        high = max(used, 0) if peak is None else peak
        need_count("peak", high, 0)
        if not -lease.live <= used <= high <= lease.pages:
            raise InvalidArgument(
                f"a lease of {lease.pages} pages, {lease.live} live when it opened, cannot settle with used={used}, "
                f"peak={high}: used <= peak <= pages must hold"
            )
        self.live = lease.live + used + lease.change
        self.span = max(lease.span, lease.live + high, lease.live + used + lease.highest)
        self.lease = None
