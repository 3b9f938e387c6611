"""pagebind-conformance: the suite every backend must pass, its oracle, and the reports it writes.

`pytest --pyargs pagebind_conformance --backend NAME` runs it. Importing this imports neither torch nor pytest.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pagebind-conformance")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
