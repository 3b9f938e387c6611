"""The figures of a CSV, drawn from it alone: cost along each axis, skew, host time, percent of the ceiling, sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagebind_bench.bench import drawings
from pagebind_bench.bench.kinds import SKEW
from pagebind_bench.bench.results import read

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched
    "svg.hashsalt": "pagebind",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6eaee",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 110,
}
TABLES = ("refresh_table", "read_table")
AXES = {"length": ("length", "length (tokens a row)"), "batch": ("bs", "batch (rows)")}
POOLED = ("read_table", "alloc", "free")
LARGE = 8_000_000
"""Bytes; what moves fewer is bound by its launch, and its percentage of the bandwidth says nothing."""


def draw_all(path: Path, folder: Path, kind: str = "svg") -> tuple[list[Path], list[str]]:
    """Draw every figure that a CSV has the rows for; return the files, and what could not be drawn and why.

    Raises InvalidArgument for a file that is no CSV of `pagebind bench`.
    """
    table = read(path)
    written, left_out = [], []
    with plt.rc_context(STYLE):  # type: ignore[arg-type]  # newer stubs want its keys as literals
        for name, made in _figures(table):
            if isinstance(made, str):
                left_out.append(f"{name}: {made}")
                continue
            target = folder / f"{path.stem}-{name}.{kind}"
            # No date inside: the same CSV gives the same file.
            made.savefig(target, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
            plt.close(made)
            written.append(target)
    return written, left_out


def _figures(table: pd.DataFrame) -> Iterator[tuple[str, Figure | str]]:
    timed = table[table["p50"].notna()]
    times = timed[(timed["metric"] == "time") & timed["threads"].isna()]
    for name, (column, label) in AXES.items():
        rows = times[_in_group(times, column) & times["op"].isin(TABLES)]
        rows = rows.sort_values("op", key=lambda ops: ops.map(TABLES.index), kind="stable")
        yield name, _along(rows, column, label, table)
    for op in POOLED:
        rows = times[_in_group(times, "pool") & (times["op"] == op)]
        yield f"pool-{op}", _along(rows, "pool", f"{op}: pool (pages of the sub-pool)", table)
    yield "skew", _skew(times, table)
    yield "host", _host(timed, table)
    yield "ceiling", _ceiling(times, table)
    sweep = timed[timed["groups"] == "sweep"]
    shipped = sweep[sweep["threads"].isna()].set_index(["case", "contender"])["p50"].to_dict()
    sweep = sweep[sweep["threads"].notna()]
    if sweep.empty:
        yield "sweep", "no --grid-sweep in it"
    for swept, rows in sweep.groupby("op", sort=False):
        title = f"{swept}, microseconds a call; the lowest is bold. {_where(table, spread=False)}"
        yield f"sweep-{swept}", drawings.heat_maps(rows, shipped, title)


def _in_group(rows: pd.DataFrame, group: str) -> pd.Series[bool]:
    return rows["groups"].fillna("").str.split().map(lambda words: group in words).astype(bool)


def _without_doubles(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out what shows twice or is no table: our grid from the batch beside SGLang's kernel, which has it."""
    there = set(rows["contender"])
    extra = {"published-batch"} if "sglang" in there else set()
    extra |= {"index_select"} if len(there) > 3 else set()
    return rows[~rows["contender"].isin(extra)]


def _along(rows: pd.DataFrame, column: str, label: str, table: pd.DataFrame) -> Figure | str:
    rows = _without_doubles(rows)
    if rows[column].nunique() < 2:
        return "no two points along it"

    def draw(axes: Axes) -> None:
        drawings.lines(axes, rows, column, label)

    return drawings.framed(draw, _where(table))


def _skew(times: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = _without_doubles(times[_in_group(times, "skew") & (times["op"] == "read_table")])
    rows = rows[rows["contender"] != "published-context"]
    if rows["lengths"].nunique() < 2:
        return "no batch of uneven lengths in it"
    ticks = {str(row["case"]): _lengths(row) for _, row in rows.drop_duplicates("case").iterrows()}
    even = [case for case, told in ticks.items() if "each" in told]
    ticks = {case: ticks[case] for case in (*even, *(case for case in ticks if case not in even))}

    def draw(axes: Axes) -> None:
        drawings.bars(axes, rows, "case", ticks)
        axes.set_ylabel("full build, microseconds a call")
        axes.tick_params(axis="x", labelsize=8)
        drawings.floor(axes, rows)
        drawings.legend(axes)

    return drawings.framed(draw, _where(table))


def _lengths(row: pd.Series[Any]) -> str:
    """Return what the rows of a batch hold, in a few lines."""
    bs, length = int(row["bs"]), int(row["length"])
    told = {
        "even": f"{bs} rows,\n{length:,} each",
        "skewed": f"one of {length:,},\n{bs - 1} of {length // SKEW:,}",
        "trace": f"{bs} rows,\nas traced",
    }[str(row["lengths"])]
    return told if row["layout"] == "scattered" else f"{told},\n{row['layout']}"


def _host(timed: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = timed[(timed["metric"] == "host") & _in_group(timed, "promise")]
    rows = rows[~rows["contender"].isin({"published-batch", "published-context", "index_select"})]
    rows = rows.drop_duplicates(["op", "contender"])  # the first promised case of an operation is its centre
    if rows.empty:
        return "no host times in it (they are measured on a GPU)"

    def draw(axes: Axes) -> None:
        drawings.bars(axes, rows, "op", {op: op for (op,) in drawings.ordered(rows, "op")})
        axes.set_ylabel("host, microseconds a call")
        if rows["bare_us"].notna().any():
            axes.plot([], [], color="black", lw=1.6, label="a bare launch by the same library")
        drawings.legend(axes)

    return drawings.framed(draw, _where(table))


def _ceiling(times: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = times[times["percent_of_ceiling"].notna() & (times["l2"] == "warm")]
    # Contenders have tables of different widths: what a case has to move is what the narrowest has to.
    rows = rows.assign(bytes=rows.groupby(["run", "op", "case"])["bytes"].transform("min"))
    rows = rows[(rows["bytes"] >= LARGE) & ~rows["contender"].isin({"published-batch", "published-context"})]
    rows = rows.drop_duplicates(["op", "label", "contender"], keep="last")
    if rows.empty:
        return f"nothing in it moves {LARGE / 1e6:g} MB"
    rows = rows.assign(percent=rows["bytes"] / rows["p50"] * 1e8 / rows["ceiling_bytes_per_s"])
    rows = rows.sort_values(["op", "layout", "bytes"], ascending=[False, True, True], kind="stable")

    def draw(axes: Axes) -> None:
        drawings.dots(axes, rows, "percent", "percent of the bandwidth of the fastest plain copy")
        axes.axvline(100, color="#333333", lw=1)
        drawings.legend(axes)

    return drawings.framed(draw, _where(table), height=1.2 + 0.2 * rows.groupby(["op", "label"]).ngroups)


def _where(table: pd.DataFrame, *, spread: bool = True) -> str:
    last = table.iloc[-1]
    parts = [str(last["device"]), f"torch {last['torch']}"]
    parts += [f"commit {str(last['commit'])[:12]}"] if pd.notna(last["commit"]) else []
    return ", ".join([*parts, "medians, 10th to 90th percentile" if spread else "medians"])
