"""The oracle: what every operation must do, on plain Python lists, written from the contracts alone.

Each function takes lists, changes none of them, and returns the lists as they must be afterwards together with the
fault counters of the call. It shares no code with any backend, nor with the core, so that no mistake can hide in both.
"""

from pagebind_conformance.oracle.advance import Advanced, advance
from pagebind_conformance.oracle.alloc import alloc
from pagebind_conformance.oracle.assign import assign
from pagebind_conformance.oracle.bind import bind
from pagebind_conformance.oracle.compact import compact
from pagebind_conformance.oracle.evict import evict
from pagebind_conformance.oracle.extend import Emitted, extend
from pagebind_conformance.oracle.free import free
from pagebind_conformance.oracle.read_stream import read_stream
from pagebind_conformance.oracle.read_table import read_table
from pagebind_conformance.oracle.refresh_table import refresh_table
from pagebind_conformance.oracle.release import release
from pagebind_conformance.oracle.span import DOWN, FLOAT, UP, Block, Chain
from pagebind_conformance.oracle.subpool import SubPool
from pagebind_conformance.oracle.touch import touch
from pagebind_conformance.oracle.translate import translate
from pagebind_conformance.oracle.truncate import truncate
from pagebind_conformance.oracle.unbind import unbind

__all__ = [
    "DOWN",
    "FLOAT",
    "UP",
    "Advanced",
    "Block",
    "Chain",
    "Emitted",
    "SubPool",
    "advance",
    "alloc",
    "assign",
    "bind",
    "compact",
    "evict",
    "extend",
    "free",
    "read_stream",
    "read_table",
    "refresh_table",
    "release",
    "touch",
    "translate",
    "truncate",
    "unbind",
]
