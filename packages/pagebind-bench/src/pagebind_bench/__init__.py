"""Replays of serving traces through pagebind's page tables."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pagebind-bench")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
