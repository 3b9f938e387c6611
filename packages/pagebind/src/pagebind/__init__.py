"""pagebind: the page tables of LLM serving engines, on any backend.

Importing this reads no file, imports no backend and starts no CUDA context.
"""

from importlib.metadata import PackageNotFoundError, version

from pagebind import errors, ops, words
from pagebind.backend import Backend
from pagebind.operation import LaunchOptions, Operation
from pagebind.plan import Planned, check, plan
from pagebind.registry import Candidate, available_backends, get_backend

try:
    __version__ = version("pagebind")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Backend",
    "Candidate",
    "LaunchOptions",
    "Operation",
    "Planned",
    "__version__",
    "available_backends",
    "check",
    "errors",
    "get_backend",
    "ops",
    "plan",
    "words",
]
