"""Who does a case's work, by operation: ours, and whoever can be set beside it. A new operation is a line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagebind_bench.bench.lab import Contender, Lab
from pagebind_bench.bench.makers import advance, alloc, compact, free, read_table, refresh_table

Maker = Callable[[Any, Lab], "list[Contender]"]

MAKERS: dict[str, Maker] = {
    "read_table": read_table.contenders,
    "refresh_table": refresh_table.contenders,
    "advance": advance.contenders,
    "alloc": alloc.contenders,
    "free": free.contenders,
    "compact": compact.contenders,
}
"""`MAKERS[case.op](case, lab)` returns the contenders of a case, ours first; nothing is on the device before they are
made, and what they are made from is shared between them."""
