"""A pool of one kind of page: a `UnifiedPool` with one sub-pool, sized in pages."""

from __future__ import annotations

from typing import Any

from pagebind.operation import INT32_MAX, need_count
from pagebind.pool.chain import SubPool
from pagebind.pool.unified import UnifiedPool


def page_pool(
    num_pages: int, page_size: int, *, page_bytes: int = 0, multiplier: int = 1, name: str = "pages", **sizes: Any
) -> UnifiedPool:
    """Return a pool of `num_pages` pages of `page_size` tokens (the sink comes on top), of one sub-pool `name`.

    With `page_bytes` above 0 it has a buffer, page p at `p * page_bytes`; without, it keeps tables only. `sizes` and
    the rest are those of `UnifiedPool`.

    >>> pool = page_pool(1024, 16, max_requests=8, max_context=4096, max_bs=8, max_tokens=4096, device="cpu")
    >>> ids = pool.alloc(3)
    >>> pool.free(ids)
    >>> pool.stats().sub_pools["pages"].holes
    3
    """
    need_count("num_pages", num_pages, 0, INT32_MAX - 1)
    need_count("page_bytes", page_bytes, 0)
    kind = SubPool(name=name, page_size=page_size, page_bytes=page_bytes or 1, grows="up", multiplier=multiplier)
    return UnifiedPool((num_pages + 1) * kind.page_bytes, [kind], buffer=page_bytes > 0, **sizes)
