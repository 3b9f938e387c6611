"""A read table of a pool that is kept: each refresh writes only what changed since the last one."""

from __future__ import annotations

import torch

from pagebind.ops.refresh_table import RefreshTable, new_built
from pagebind.pool.rows import RequestTable
from pagebind.words import PageTables


class ReadTable:
    """What attention kernels read of one sub-pool, `[max_bs, width]`, and what is known of its cells.

    Made by `UnifiedPool.read_table`. Any number of them may follow the pool's request table, each at a pace of its own.
    After `refresh`, cells are those that a fresh `read_table` of the same batch would hold. Its address never changes,
    so that kernels and captured graphs may keep it; a captured `refresh` is right at every replay.
    """

    def __init__(
        self,
        launch: RefreshTable,
        cells: torch.Tensor,
        requests: RequestTable,
        tables: PageTables,
        first: torch.Tensor | None,
    ) -> None:
        self.cells = cells
        """`[max_bs, width]`, out_dtype: what kernels read; written by nothing but `refresh`."""
        self._unknown = new_built(cells.shape[0], cells.shape[1], cells.device)
        self._built = self._unknown.clone()
        self._launch, self._requests, self._tables, self._first = launch, requests, tables, first

    def refresh(
        self,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        starts: torch.Tensor | None = None,
        seq_len_delta: int = 0,
    ) -> torch.Tensor:
        """Bring the rows of a batch up to date, in one launch, and return `cells`.

        `req_rows` and `seq_lens`, int32 `[bs]` on the pool's device, and `starts` for a windowed table are those of
        `pagebind.ops.refresh_table`, which says what is written and counted. Raises InvalidArgument before launching.
        """
        self._launch(
            self._requests.table,
            req_rows,
            seq_lens,
            self._tables.v2p,
            out=self.cells,
            built=self._built,
            versions=self._requests.versions,
            state=self._tables.state,
            first=self._first,
            starts=starts,
            seq_len_delta=seq_len_delta,
        )
        return self.cells

    def forget(self) -> None:
        """Have the next refresh write every cell, as after something else wrote to `cells`; waits for nothing."""
        self._built.copy_(self._unknown)

    def warmup(self) -> None:
        """Compile what refreshes need."""
        self._launch.warmup()

    @property
    def nbytes(self) -> int:
        """Bytes on the device: the cells, and 32 a row twice for what is known of them."""
        return self.cells.nbytes + self._built.nbytes + self._unknown.nbytes
