"""pagebind on the CPU: every operation in vectorised torch, no loop but over long rows, work by live cells alone."""

from importlib.metadata import PackageNotFoundError, version

from pagebind.backend import Backend

from pagebind_cpu import advance, bind, composed, read_stream, read_table, refresh_table, touch, translate, unbind

try:
    __version__ = version("pagebind-cpu")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

backend = Backend(
    name="cpu",
    version=__version__,
    distribution="pagebind-cpu",
    modes={"cpu": "cpu"},
    planners={
        "read_table": read_table.plan,
        "bind": bind.plan,
        "unbind": unbind.plan,
        "translate": translate.plan,
        "read_stream": read_stream.plan,
        "alloc": composed.alloc,
        "free": composed.free,
        "extend": composed.extend,
        "advance": advance.plan,
        "truncate": composed.truncate,
        "assign": composed.assign,
        "release": composed.release,
        "evict": composed.evict,
        "compact": composed.compact,
        "refresh_table": refresh_table.plan,
        "touch": touch.plan,
    },
    features=frozenset(
        {
            "append",
            "beside",
            "borrowed",
            "context_parallel",
            "emits",
            "fill=prefix",
            "fill=sink",
            "form=page",
            "form=token",
            "granularity=page",
            "granularity=token",
            "page_bytes",
            "shared",
            "table",
            "windowed",
        }
    ),
)
