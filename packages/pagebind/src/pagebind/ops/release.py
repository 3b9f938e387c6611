"""release: empty a row, when its request leaves. Pages of a shared prefix are skipped, all the others freed.

    lane b, row r:   tokens 0 ......... start - 1 | start ....... len - 1
                     pages  [ shared ][ shared    ][ freed ][ freed ]   freed: pages [ceil(start / ps), ceil(len / ps))
                     request-table cells of tokens [0, len), or of their pages, become -1

Pages are freed as free frees ids, lane after lane and page after page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagebind.errors import InvalidArgument
from pagebind.operation import Launch, LaunchOptions, Operation, Planner, need_length, need_tensor
from pagebind.ops import cuts, truncate
from pagebind.ops.apart import need_memory_of_its_own
from pagebind.ops.composed import Composed
from pagebind.words import PageTables


@dataclass(frozen=True, kw_only=True)
class ReleaseSpec(truncate.TruncateSpec):
    """What a release's plan decides; fields as in TruncateSpec. `shared` plans for calls with `starts`."""

    shared: bool = False


class Release(Protocol):
    """The planned call."""

    def __call__(
        self,
        request_table: torch.Tensor,  # [max_requests, max_context or max_pages], int32; rows apart; written
        req_rows: torch.Tensor,  # [bs], row_dtype; no row twice
        seq_lens: torch.Tensor,  # [bs], length_dtype; tokens the row holds
        tables: PageTables,  # written
        *,
        freed: torch.Tensor,  # [capacity], id_dtype; physical pages in the order of the lanes; written
        starts: torch.Tensor | None = None,  # [bs], length_dtype; tokens of the shared prefix; with shared plans
        pages: int | None = None,  # the host's count of freed pages; None where it has none
    ) -> None:
        """Empty every lane's row.

        `freed`, faults and counters as in truncate, with `starts` (0 where None) in place of the keep lengths; pages
        past the capacity of `freed` stay bound and in their row. The epoch stays. Raises InvalidArgument before
        launching.
        """

    def warmup(self) -> None:
        """Compile what later calls need."""


def arguments(
    spec: ReleaseSpec,
    device: torch.device,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    starts: torch.Tensor | None = None,
    pages: int | None = None,
) -> bool:
    """Check a call; False for an empty batch."""
    some = truncate.arguments(
        spec, device, request_table, req_rows, seq_lens, seq_lens, tables, freed=freed, pages=pages
    )
    if (starts is not None) != spec.shared:
        raise InvalidArgument(f"starts is {'given' if starts is not None else 'None'}, shared={spec.shared}")
    if starts is not None:
        need_tensor("starts", starts, spec.length_dtype, 1, device)
        need_length("starts", starts, req_rows.shape[0], "req_rows")
        need_memory_of_its_own("request_table freed", (request_table, freed), "starts", (starts,))
    return some


def features(spec: ReleaseSpec) -> frozenset[str]:
    """Return the features a spec asks for."""
    return truncate.features(spec) | ({"shared"} if spec.shared else set())


def faults(
    spec: ReleaseSpec,
    request_table: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: PageTables,
    *,
    freed: torch.Tensor,
    starts: torch.Tensor | None = None,
    pages: int | None = None,
) -> Mapping[str, Sequence[int]]:
    """Return what a call would count: lanes, and virtual pages."""
    lanes = truncate.lanes_of(spec, request_table, req_rows, seq_lens, starts, freed, whole_row=True)
    return cuts.faults_of(spec, request_table, tables, lanes, pages)


def compose(spec: ReleaseSpec, device: torch.device, planners: Mapping[str, Planner], options: LaunchOptions) -> Launch:
    """Unbind with the core operation; push what it released and empty the cells with torch."""
    unbind = cuts.plan_unbind(spec, device, planners, options)

    def run(
        request_table: torch.Tensor,
        req_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        tables: PageTables,
        *,
        freed: torch.Tensor,
        starts: torch.Tensor | None = None,
        pages: int | None = None,
    ) -> None:
        lanes = truncate.lanes_of(spec, request_table, req_rows, seq_lens, starts, freed, whole_row=True)
        truncate.give_back(spec, request_table, tables, lanes, unbind, options.count, freed, pages)

    return Composed("release", device, run, unbind)


RELEASE: Operation[ReleaseSpec, Release] = Operation(
    name="release",
    level="extended",
    spec=ReleaseSpec,
    arguments=arguments,
    bytes_moved=truncate.bytes_moved,
    features=features,
    faults=faults,
    compose=compose,
)
