"""Virtual ids and physical pages of the sub-pools of one buffer: set aside, taken, given back, moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import torch

from pagebind.errors import CaptureError
from pagebind.operation import need_choice, need_count, need_length, need_tensor
from pagebind.ops.compact import SIDES, Side
from pagebind.plan import capturing
from pagebind.pool.joint_calls import Call
from pagebind.pool.ledger import Demand, Lease
from pagebind.pool.readers import Event
from pagebind.pool.relief import Move
from pagebind.pool.shared_buffer import SharedBuffer
from pagebind.words import SINK


class MultiEndedAllocator(SharedBuffer):
    """Sub-pools that grow up, down or float in one buffer of `total_bytes`; see `UnifiedPool` for what they are.

    Calls by id need no request table: ids are handed out and taken back. `rows_of` is the sub-pool that calls without a
    `name` mean, the first that owns its ids unless given.
    """

    def reserve(self, demand: Demand) -> Lease:
        """Set pages aside for replays or calls with `pages=None`, and make room for them now.

        Raises OutOfPages, changing nothing, where the demand does not fit; InvalidArgument while a lease is open.
        """
        if capturing(self.device):
            raise CaptureError("reserve makes room on the host's counts, which a replay does not; reserve before it")
        self.ledger.need_no_lease()
        counts = self.ledger.spread(demand)
        self._moves.run(self.ledger.moves_for(counts, self._readers.held))
        return self.ledger.open_lease(counts)

    # ---- pages by id -------------------------------------------------------------------------------------------------

    def alloc(
        self,
        count: int,
        *,
        name: str | None = None,
        also: Sequence[str] = (),
        ids: torch.Tensor | None = None,
        on_lease: bool = False,
    ) -> torch.Tensor:
        """Take `count` pages of `name` and return their virtual ids, int32 `[count]` (written to `ids` where given).

        `also` names sub-pools that borrow these ids and bind a page of their own to each. Inside a capture, or told to
        be `on_lease`, no count moves: the open lease bounds it. Raises OutOfPages, changing nothing, where the pages
        are not free.
        """
        name = self._name(name)
        need_count("count", count, 0)
        self._need_owner(name, also)
        if ids is None:
            ids = torch.empty(count, dtype=torch.int32, device=self.device)
        need_tensor("ids", ids, torch.int32, 1, self.device)
        need_length("ids", ids, count, "count")
        counts = self.ledger.spread(dict.fromkeys((name, *also), count))
        pages = self._pages[:count]
        calls: list[Call] = [(self._ids[name].alloc, (self.tables[name],), {"ids": ids, "pages": pages})]
        clears = [(name, pages)]
        for borrower in self.ledger.in_order(also):
            taken = self._targets[:count]
            calls.append((self._ids[borrower].alloc, (self.tables[borrower],), {"ids": ids, "pages": taken}))
            clears.append((borrower, taken))
        on_lease = self._calls.on_lease(None if on_lease else count)
        launches = self._calls.make_room([0] * len(counts) if on_lease else counts, calls)
        for launch, (cleared, of) in zip(launches, clears, strict=True):
            launch()
            self._clear(cleared, of)
        if not on_lease:
            self.ledger.take(counts)
        return ids

    def free(
        self,
        ids: torch.Tensor,
        *,
        name: str | None = None,
        also: Mapping[str, int] | None = None,
        on_lease: bool = False,
    ) -> None:
        """Free virtual page ids of `name`, int32 `[n]`, each bound there.

        `also` says how many of them have a page in sub-pools that borrow them: those go first. Inside a capture, or
        told to be `on_lease`, no count moves. A fault is dropped and counted, and then counts are off.
        """
        name, also = self._name(name), also or {}
        need_tensor("ids", ids, torch.int32, 1, self.device)
        self._need_owner(name, tuple(also))
        n = ids.shape[0]
        counts = self.ledger.spread({name: n, **also})
        freed = self._pages[:n]
        calls: list[Call] = [
            (self._ids[b].free, (ids, self.tables[b]), {"freed": freed, "pages": pages}) for b, pages in also.items()
        ]
        calls.append((self._ids[name].free, (ids, self.tables[name]), {"freed": freed}))
        self._calls.give_back("free", None if self._calls.on_lease(None if on_lease else n) else counts, calls)

    def _clear(self, name: str, pages: torch.Tensor) -> None:
        # Clears the bytes of pages that were handed out; lanes that got none clear the sink, which holds nothing.
        if self.buffer is None or not self.sub_pools[name].zero_on_alloc or not pages.shape[0]:
            return
        place = self.ledger.places[self.ledger.index(name)]
        index = self._to_clear[: pages.shape[0]].copy_(pages).clamp_(min=SINK)
        words = self.buffer[place.base : place.byte(place.num_physical)].view(torch.int64)
        words.view(place.num_physical, -1).index_fill_(0, index, 0)

    # ---- moving pages ------------------------------------------------------------------------------------------------

    def compact(self, max_pages: int | None = None, *, name: str | None = None, side: Side = "high") -> int:
        """Close holes: retreat a span by up to `max_pages` holes, all of them by default; return the pages retreated.

        `side` is the end at which a float retreats. Moves are picked, copied and rebound on the device; the current
        stream waits for registered readers first, the host for nothing. 0 while the move gate is closed. Raises
        InvalidArgument while a lease is open, CaptureError inside a capture.
        """
        if capturing(self.device):
            raise CaptureError("compact decides on the host how far to retreat; call it outside the capture")
        if max_pages is not None:
            need_count("max_pages", max_pages, 0)
        need_choice("side", side, SIDES)
        index = self.ledger.index(self._name(name))
        holes = self.ledger.positions[index].holes
        retreat = 0 if self._readers.held else min(holes, holes if max_pages is None else max_pages)
        if not retreat:
            return 0
        self.ledger.need_no_lease()
        grows = self.ledger.places[index].grows
        at = side if grows == "float" else "high" if grows == "up" else "low"
        self._moves.run([Move(index, at, retreat)])
        return retreat

    def hold_moves(self) -> AbstractContextManager[None]:
        """Close the move gate for a `with` block, in which a transfer reads pages; then nothing is moved.

        Capacity figures honour it: what would need a retreat is not free meanwhile. The current stream is ordered
        behind the moves that were enqueued before.
        """
        return self._readers.hold()

    def reading(self, event: Event) -> None:
        """Register a reader whose reads end at `event`: moves, and takes of pages vacated meanwhile, wait for it.

        The stream waits, never the host. Inside a capture nothing waits: call `join_readers` before the replay.
        """
        self._readers.reading(event)

    def join_readers(self) -> None:
        """Make the current stream wait for every registered reader now."""
        self._readers.join()
