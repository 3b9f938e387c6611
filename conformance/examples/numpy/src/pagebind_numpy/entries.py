"""Ids -> pages -> entries.

A table of pages ends with a tombstone behind its last page, and begins with the sink. So `take` may clip: a hole reads
row 0, an id past the table the tombstone, and no id needs a look before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pagebind.words import SINK

from pagebind_numpy.arrays import Array


@dataclass(frozen=True)
class Unit:
    """How entries count."""

    scale: int  # entries of one physical page
    dtype: np.dtype[np.int32] | np.dtype[np.int64]

    def of_pages(self, page: Array, v2p: Array) -> Array:
        """Return the entry of each virtual page."""
        entry = np.maximum(v2p.take(page, mode="clip"), SINK).astype(self.dtype, copy=False)
        return entry if self.scale == 1 else np.multiply(entry, self.scale, out=entry)

    def of_tokens(self, page: Array, offset: Array, v2p: Array) -> Array:
        """Return the entry of each token, given its virtual page and its offset there."""
        physical = v2p.take(page, mode="clip")
        entry = physical.astype(self.dtype) * self.scale + offset
        return np.where((physical >= 0) & (page >= 0), entry, SINK).astype(self.dtype, copy=False)


def past_table(page: Array, v2p: Array) -> int:
    """Return how many pages are past the table."""
    return int(np.count_nonzero(page >= v2p.shape[0] - 1))
