"""The CSV: long form, one row for a case, a contender and a metric, with everything a figure or a reader needs."""

from __future__ import annotations

import csv
import math
import platform
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import pagebind
import torch
from pagebind.errors import InvalidArgument
from pagebind_conformance import source

import pagebind_bench

Row = dict[str, Any]

COLUMNS: dict[str, str] = {
    "run": "of all rows of one run",
    "key": "unique: run, op, case, contender, metric and, in a sweep, launch parameters",
    "started": "of the run, UTC",
    "op": "an operation, or floor, or ceiling",
    "case": "its parameters, as one word",
    "label": "the case for people: what sets it apart from the centre point",
    "groups": "why it is measured; words apart by a space",
    "contender": "a backend, a peer, or a limit",
    "metric": "time: of a call; host: what a call takes the host, where that is another thing",
    "unit": "us: microseconds",
    "method": "graph, graph-difference (what stands around the call is subtracted), wall, host-loop",
    "p50": "median over the samples",
    "p10": "quantile",
    "p90": "quantile",
    "repeats": "samples",
    "calls": "calls in a sample",
    "launches": "nodes of a graph of one call: kernels, copies, fills",
    "compiles": "kernels compiled after the plan was warmed up",
    "allocations": "device allocations a call, measured with the host's time",
    "bytes": "the fewest a call has to move",
    "bytes_per_s": "bytes / p50",
    "percent_of_ceiling": "of the bandwidth of the fastest plain copy; a warm cache can pass 100",
    "floor_us": "an empty kernel, measured in the run with the same cache",
    "bare_us": "the host's time of a bare launch by the same library, measured in turns with it",
    "ceiling_bytes_per_s": "the fastest plain copy, read and written",
    "bs": "lanes",
    "length": "tokens",
    "width": "tokens",
    "page_size": "tokens",
    "form": "unit of the request table",
    "layout": "contiguous or scattered",
    "lengths": "even, skewed or trace",
    "refresh": "steady or all",
    "appends": "whether a step appends to a read table",
    "dtype": "of the page tables of ours; peers have int64",
    "l2": "warm or cold",
    "pages": "of a call",
    "holes": "pages, before the call",
    "pool": "pages of the sub-pool, the sink not counted",
    "page_bytes": "bytes",
    "moved_bytes": "bytes",
    "threads": "launch parameter of a sweep",
    "programs": "launch parameter of a sweep",
    "reason": "why there is no time",
    "backend_version": "of ours",
    "peer_version": "of SGLang",
    "pagebind": "version",
    "pagebind_bench": "version",
    "source": "SHA-256 over the sources of core, suite and backend",
    "report": "the conformance report that lets the speed be shown",
    "report_commit": "its commit",
    "commit": "of the run",
    "device_type": "cuda or cpu",
    "device": "its name",
    "torch_threads": "of torch, on the CPU",
    "platform": "operating system",
    "python": "version",
    "torch": "version",
    "cuda": "version",
    "triton": "version",
    "cupy": "version",
    "numpy": "version",
    "reproduce": "the command of the run",
}
"""Every column, in order, and what it holds."""

TEXT = frozenset(
    {"case", "commit", "report_commit", "python", "torch", "cuda", "triton", "cupy", "numpy", "peer_version"}
)
"""Columns that a reader might take for numbers."""


def environment(device: torch.device, commit: str | None, reproduce: str) -> Row:
    """Return the columns that are the same for a whole run."""
    found = source.environment()
    cupy = next((value for name, value in found.items() if name.startswith("cupy")), None)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    run = f"{zlib.crc32(f'{time.time_ns()} {platform.node()}'.encode()):08x}"
    return {
        "run": f"r{run}",
        "started": started,
        "pagebind": pagebind.__version__,
        "pagebind_bench": pagebind_bench.__version__,
        "commit": commit or source.commit_here(),
        "device_type": device.type,
        "device": source.device_name(device),
        "torch_threads": torch.get_num_threads() if device.type == "cpu" else None,
        "cupy": cupy,
        "reproduce": reproduce,
        **{name: found.get(name) for name in ("platform", "python", "torch", "cuda", "triton", "numpy")},
    }


def key_of(row: Mapping[str, Any]) -> str:
    """Return what a row is known by."""
    words = [row[name] for name in ("run", "op", "case", "contender", "metric")]
    if row.get("threads") is not None:
        words += [f"t{row['threads']}", f"p{row['programs']}"]
    return "/".join(str(word) for word in words)


class Recorder:
    """Takes rows, keeps them, and writes each at once, so that a run that is cut short leaves what it had.

    A file that exists is added to where it has the same columns, and refused otherwise.
    """

    def __init__(self, path: Path | None, common: Row) -> None:
        self.rows: list[Row] = []
        self.common = common
        self._keys: set[str] = set()
        self._path = path
        self._file: TextIO | None = None
        self._writer: csv.DictWriter[str] | None = None

    def __enter__(self) -> Recorder:
        if self._path is not None:
            exists = need_columns(self._path)
            self._file = self._path.open("a", encoding="utf-8", newline="")
            self._writer = csv.DictWriter(self._file, COLUMNS)
            if not exists:
                self._writer.writeheader()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, **values: Any) -> Row:
        """Take in one row; raises ValueError for a column that does not exist and a key that does."""
        row = {**self.common, **values}
        row["key"] = key_of(row)
        unknown = row.keys() - COLUMNS.keys()
        if unknown or row["key"] in self._keys:
            raise ValueError(f"columns {sorted(unknown)} do not exist" if unknown else f"{row['key']} is there already")
        self._keys.add(row["key"])
        self.rows.append(row)
        if self._writer is not None and self._file is not None:
            self._writer.writerow({name: _told(row.get(name)) for name in COLUMNS})
            self._file.flush()
        return row


def need_columns(path: Path) -> bool:
    """Return whether a CSV exists; raises InvalidArgument where it has other columns or its folder does not exist."""
    if not path.parent.is_dir():
        raise InvalidArgument(f"--csv is {path}, but there is no folder {path.parent}: make it, or name another file")
    if path.is_dir():
        raise InvalidArgument(f"--csv is {path}, which is a folder; name a file")
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open(encoding="utf-8", newline="") as stream:
        header = next(csv.reader(stream), [])
    if header != list(COLUMNS):
        raise InvalidArgument(f"--csv is {path}, which has other columns than this version writes; name another file")
    return True


def spread(times: Any) -> Row:
    """Return the columns of a Times."""
    return {
        "unit": "us",
        "method": times.method,
        **{name: getattr(times, name) for name in ("p50", "p10", "p90", "repeats", "calls")},
    }


def find(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """Return the first row that has a median and these values."""
    for row in rows:
        if row.get("p50") is not None and all(row.get(name) == value for name, value in wanted.items()):
            return row
    return None


def _told(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
