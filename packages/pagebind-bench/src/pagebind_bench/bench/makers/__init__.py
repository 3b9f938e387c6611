"""Who does a case's work, by operation: ours, and whoever can be set beside it. A new operation is a line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagebind_bench.bench.lab import Contender, Lab
from pagebind_bench.bench.makers import alloc, compact, free, read_table

Maker = Callable[[Any, Lab], "list[Contender]"]

MAKERS: dict[str, Maker] = {
    "read_table": read_table.contenders,
    "alloc": alloc.contenders,
    "free": free.contenders,
    "compact": compact.contenders,
}
"""`MAKERS[case.op](case, lab)` returns the contenders of a case, ours first; nothing is on the device before they are
made, and what they are made from is shared between them."""
