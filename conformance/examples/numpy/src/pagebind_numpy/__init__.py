"""A backend of pagebind in NumPy: the core, and read_stream, alloc and free, on the memory of torch's tensors."""

from importlib.metadata import PackageNotFoundError, version

from pagebind import Backend

from pagebind_numpy import alloc, bind, free, read_stream, read_table, translate, unbind

try:
    __version__ = version("pagebind-numpy")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

backend = Backend(
    name="numpy",
    version=__version__,
    distribution="pagebind-numpy",
    api_version=2,
    modes={"cpu": "cpu"},
    planners={
        "read_table": read_table.plan,
        "bind": bind.plan,
        "unbind": unbind.plan,
        "translate": translate.plan,
        "read_stream": read_stream.plan,
        "alloc": alloc.plan,
        "free": free.plan,
    },
    features=frozenset(
        {
            "beside",
            "borrowed",
            "context_parallel",
            "fill=prefix",
            "fill=sink",
            "form=page",
            "form=token",
            "granularity=page",
            "granularity=token",
            "table",
            "windowed",
        }
    ),
)
