"""The ids a lane's cells hold in a request table, in the unit of the output: token ids, or page ids."""

from __future__ import annotations

import torch

from pagebind.ops.ragged import gather, quotient
from pagebind.words import HOLE, Form


def read_ids(
    form: Form, granularity: Form, page_size: int, request_table: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """Return the id behind each output cell, int32, or int64 for tokens of a table of pages; holes are negative.

    `row` and `column`, int64 `[n]`, name cells of the output that the request table covers.
    """
    if form == granularity:
        return gather(request_table, row, column)
    if form == "token":
        return quotient(gather(request_table, row, column * page_size), page_size)
    behind = quotient(column, page_size)
    page = gather(request_table, row, behind).long()
    return (page * page_size + (column - behind * page_size)).masked_fill_(page < 0, HOLE)


def past_table(ids: torch.Tensor, unit: int, v2p: torch.Tensor) -> torch.Tensor:
    """Return the page ids among `ids` that lie past the table; an id counts `unit` to a page."""
    page = quotient(ids, unit)
    return page[page >= v2p.shape[0] - 1]


def scale_of(num_physical: int, multiplier: int, page_size: int) -> int:
    """Return what a physical page counts in entries; 0 where the sink is the only page, whatever the multiplier."""
    return multiplier * page_size if num_physical > 1 else 0
