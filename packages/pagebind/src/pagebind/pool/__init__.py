"""Pools: host counts over device tables."""

from pagebind.errors import OutOfPages
from pagebind.pool.allocator import MultiEndedAllocator
from pagebind.pool.chain import SubPool
from pagebind.pool.ledger import Lease
from pagebind.pool.page_pool import page_pool
from pagebind.pool.read_table import ReadTable
from pagebind.pool.rows import RequestTable, Row
from pagebind.pool.stats import PoolStats, SubPoolStats
from pagebind.pool.unified import UnifiedPool

__all__ = [
    "Lease",
    "MultiEndedAllocator",
    "OutOfPages",
    "PoolStats",
    "ReadTable",
    "RequestTable",
    "Row",
    "SubPool",
    "SubPoolStats",
    "UnifiedPool",
    "page_pool",
]
