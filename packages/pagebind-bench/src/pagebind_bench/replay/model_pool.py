"""A model's pool, and which requests an empty one can serve."""

from __future__ import annotations

from pagebind.errors import InvalidArgument
from pagebind.pool import UnifiedPool

from pagebind_bench.replay.cards import Card
from pagebind_bench.replay.kinds import Kinds
from pagebind_bench.replay.scheduler import Scheduler
from pagebind_bench.replay.settings import ModelSettings
from pagebind_bench.replay.split import sub_pools


def new_pool(settings: ModelSettings, card: Card, backend: str | None, device: str | None) -> UnifiedPool:
    """Return a model's pool; raises InvalidArgument where the device has not the memory."""
    kinds = sub_pools(
        card, settings.budget, settings.page_size, settings.pool, settings.window_ratio, settings.state_ratio
    )
    try:
        return UnifiedPool(
            settings.budget,
            kinds,
            max_requests=settings.max_batch,
            max_context=settings.max_context,
            max_bs=settings.max_batch,
            max_tokens=settings.chunk + settings.max_batch,
            form=settings.form,
            buffer=settings.real_bytes,
            backend=backend,
            device=device,
        )
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "alloc" in str(error) or "out of memory" in str(error):
            raise InvalidArgument(
                f"a pool of {settings.budget:,} bytes does not fit the device's memory: {error}; pass --no-bytes to "
                "plan tables only, or a smaller --budget"
            ) from error
        raise


def refuse_too_long(scheduler: Scheduler, pool: UnifiedPool, kinds: Kinds) -> int:
    """Drop the requests that an empty pool could not serve even alone, and return how many those are."""
    every = list(scheduler.coming)
    scheduler.coming.clear()
    scheduler.coming.extend(job for job in every if pool.can_reserve(kinds.demand(scheduler.most(job.request))))
    return len(every) - len(scheduler.coming)
