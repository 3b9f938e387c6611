"""The raw CUDA backend of pagebind: `.cu` files compiled by NVRTC for the GPU, and by g++ for the CPU to test them.

Importing this imports no CuPy and starts no CUDA context.
"""

from importlib.metadata import PackageNotFoundError, version

from pagebind.backend import Backend

from pagebind_cuda.advance import plan_advance
from pagebind_cuda.alloc import plan_alloc
from pagebind_cuda.assign import plan_assign
from pagebind_cuda.bind import plan_bind
from pagebind_cuda.compact import plan_compact
from pagebind_cuda.evict import plan_evict
from pagebind_cuda.extend import plan_extend
from pagebind_cuda.free import plan_free
from pagebind_cuda.launch import compile_count
from pagebind_cuda.read_stream import plan_read_stream
from pagebind_cuda.read_table import plan_read_table
from pagebind_cuda.refresh_table import plan_refresh_table
from pagebind_cuda.release import plan_release
from pagebind_cuda.requirements import probe
from pagebind_cuda.touch import plan_touch
from pagebind_cuda.translate import plan_translate
from pagebind_cuda.truncate import plan_truncate
from pagebind_cuda.unbind import plan_unbind

try:
    __version__ = version("pagebind-cuda")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

backend = Backend(
    name="cuda",
    version=__version__,
    distribution="pagebind-cuda",
    modes={"cuda": "gpu", "cpu": "host"},
    planners={
        "read_table": plan_read_table,
        "bind": plan_bind,
        "unbind": plan_unbind,
        "translate": plan_translate,
        "read_stream": plan_read_stream,
        "alloc": plan_alloc,
        "free": plan_free,
        "extend": plan_extend,
        "advance": plan_advance,
        "truncate": plan_truncate,
        "assign": plan_assign,
        "release": plan_release,
        "evict": plan_evict,
        "compact": plan_compact,
        "touch": plan_touch,
        "refresh_table": plan_refresh_table,
    },
    features=frozenset(
        {
            "form=token",
            "form=page",
            "granularity=token",
            "granularity=page",
            "fill=prefix",
            "fill=sink",
            "windowed",
            "table",
            "context_parallel",
            "shared",
            "page_bytes",
            "borrowed",
            "emits",
            "append",
            "beside",
        }
    ),
    probe=probe,
    compile_count=compile_count,
    rank=20,
)
"""The record that the entry-point group `pagebind.backends` offers under the name `cuda`."""

__all__ = ["__version__", "backend"]
