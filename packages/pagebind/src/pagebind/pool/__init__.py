"""Pools: host counts over device tables."""

from pagebind.errors import OutOfPages
from pagebind.pool.counts import Lease
from pagebind.pool.page_pool import PagePool, PoolStats
from pagebind.pool.rows import RequestTable, Row

__all__ = ["Lease", "OutOfPages", "PagePool", "PoolStats", "RequestTable", "Row"]
