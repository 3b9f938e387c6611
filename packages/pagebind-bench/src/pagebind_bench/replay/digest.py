"""The digest of a replay: what the tables said, step by step. Free of times, devices, dtypes and backends."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


class Digest:
    """SHA-256 over every step's counts, live table cells and write slots, all as little-endian int64."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *parts: Sequence[int] | np.ndarray) -> None:
        """Take in one step: integer sequences of one dimension, each preceded by its length."""
        for part in parts:
            cells = np.asarray(part, dtype="<i8")
            self._sha.update(cells.size.to_bytes(8, "little"))
            self._sha.update(cells.tobytes())

    def hexdigest(self) -> str:
        """Return the digest of all steps so far."""
        return self._sha.hexdigest()
