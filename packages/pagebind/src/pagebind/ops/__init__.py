"""The operations, one file each. A new operation is a file here and a line below."""

from typing import Any

from pagebind.operation import Operation
from pagebind.ops.advance import ADVANCE, AdvanceSpec
from pagebind.ops.alloc import ALLOC, AllocSpec
from pagebind.ops.assign import ASSIGN, AssignSpec
from pagebind.ops.beside import Beside, SecondTable
from pagebind.ops.bind import BIND, BindSpec
from pagebind.ops.compact import COMPACT, CompactSpec
from pagebind.ops.evict import EVICT, EvictSpec
from pagebind.ops.extend import EXTEND, ExtendSpec
from pagebind.ops.free import FREE, FreeSpec
from pagebind.ops.read_stream import READ_STREAM, ReadStreamSpec
from pagebind.ops.read_table import READ_TABLE, ReadTableSpec
from pagebind.ops.refresh_table import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.release import RELEASE, ReleaseSpec
from pagebind.ops.touch import TOUCH, TouchSpec
from pagebind.ops.translate import TRANSLATE, TranslateSpec
from pagebind.ops.truncate import TRUNCATE, TruncateSpec
from pagebind.ops.unbind import UNBIND, UnbindSpec

OPERATIONS: dict[str, Operation[Any, Any]] = {
    operation.name: operation
    for operation in (
        READ_TABLE,
        BIND,
        UNBIND,
        TRANSLATE,
        READ_STREAM,
        ALLOC,
        FREE,
        EXTEND,
        ADVANCE,
        TRUNCATE,
        ASSIGN,
        RELEASE,
        EVICT,
        COMPACT,
        TOUCH,
        REFRESH_TABLE,
    )
}
"""Every operation by name, the core ones first."""

FEATURES = frozenset(
    {
        *("form=token", "form=page"),  # what a request table holds
        *("granularity=token", "granularity=page"),  # what a read table or stream holds
        *("fill=prefix", "fill=sink"),  # read_table
        "windowed",  # read_table, refresh_table, read_stream: calls with starts
        "beside",  # read_table: calls with a second table
        "table",  # read_stream: calls with a table
        "context_parallel",  # translate: ranks above 1
        "shared",  # release: calls with starts
        "page_bytes",  # compact: moves bytes
        "borrowed",  # alloc, free, refresh_table: ids of another sub-pool
        "emits",  # extend, advance: calls that tell what they took
        "append",  # advance: calls with a table
    }
)
"""Every name that a spec can ask for by its operation's `features`, and a backend can declare."""

__all__ = [
    "ADVANCE",
    "ALLOC",
    "ASSIGN",
    "BIND",
    "COMPACT",
    "EVICT",
    "EXTEND",
    "FEATURES",
    "FREE",
    "OPERATIONS",
    "READ_STREAM",
    "READ_TABLE",
    "REFRESH_TABLE",
    "RELEASE",
    "TOUCH",
    "TRANSLATE",
    "TRUNCATE",
    "UNBIND",
    "AdvanceSpec",
    "AllocSpec",
    "AssignSpec",
    "Beside",
    "BindSpec",
    "CompactSpec",
    "EvictSpec",
    "ExtendSpec",
    "FreeSpec",
    "ReadStreamSpec",
    "ReadTableSpec",
    "RefreshTableSpec",
    "ReleaseSpec",
    "SecondTable",
    "TouchSpec",
    "TranslateSpec",
    "TruncateSpec",
    "UnbindSpec",
]
