"""Pools: host counts over device tables.

    UnifiedPool -> RowTakes, RowReturns -> RowPool -> MultiEndedAllocator -> SharedBuffer
    unified        row_takes row_returns   row_pool   allocator              shared_buffer

Each of these files has what its class adds. Beside them: `chain` says where pages lie, `ledger` counts them and keeps
the lease, `relief` chooses moves and `moves` runs them, `id_plans` and `row_plans` hold planned calls, `joint_calls`
launches those that make up one call of a pool, and `full_checks` is what `checks=full` adds.
"""

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
