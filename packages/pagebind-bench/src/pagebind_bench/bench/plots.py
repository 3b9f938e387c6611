"""The figures of a CSV, drawn from it alone: cost along each axis, skew, host time, percent of the ceiling, sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from pagebind.errors import InvalidArgument

from pagebind_bench.bench.record import COLUMNS, TEXT

# Okabe and Ito's colours, told apart by all kinds of colour vision; markers and dashes tell the same once more.
LOOK: dict[str, tuple[str, str, str]] = {
    "cuda": ("#0072B2", "o", "-"),
    "triton": ("#009E73", "s", "-"),
    "cpu": ("#0072B2", "o", "-"),
    "sglang": ("#D55E00", "^", "--"),
    "published-batch": ("#E69F00", "v", "--"),
    "published-context": ("#CC79A7", "D", ":"),
    "index_select": ("#56B4E9", "x", ":"),
}
OTHER = ("#444444", "*", "-.")
FLOOR = {"color": "#777777", "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
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
AXES = {"length": "length (tokens a row)", "bs": "batch (rows)"}
FILES = {"length": "length", "bs": "batch"}
SKEWS = ("even", "skewed", "trace")

Draw = Callable[[Axes], None]


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


def read(path: Path) -> pd.DataFrame:
    """Read a CSV of `pagebind bench`; raises InvalidArgument where it is none."""
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(TEXT, "string"))
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise InvalidArgument(f"{path} cannot be read as a CSV: {error}") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InvalidArgument(f"{path} has no column {missing[0]!r}: it is no CSV of pagebind bench")
    if table["key"].duplicated().any():
        raise InvalidArgument(f"{path} has a key twice: {table['key'][table['key'].duplicated()].iloc[0]}")
    return table


def _figures(table: pd.DataFrame) -> Iterator[tuple[str, Figure | str]]:
    timed = table[table["p50"].notna()]
    times = timed[(timed["metric"] == "time") & timed["threads"].isna()]
    for name, label in AXES.items():
        found = False
        for op, rows in times[_in_group(times, name)].groupby("op", sort=False):
            if rows[name].nunique() > 1:
                found = True
                yield f"{op}-{FILES[name]}", _figure(_along(rows, name, label, str(op)), table)
        if not found:
            yield FILES[name], "no operation has two points along it"
    yield "skew", _skew(times, table)
    yield "host", _host(timed, table)
    yield "ceiling", _ceiling(times, table)
    sweep = timed[(timed["groups"] == "sweep") & timed["threads"].notna()]
    if sweep.empty:
        yield "sweep", "no --grid-sweep in it"
    for op, rows in sweep.groupby("op", sort=False):
        yield f"sweep-{op}", _heat_maps(rows, str(op), table)


def _in_group(rows: pd.DataFrame, group: str) -> pd.Series[bool]:
    return rows["groups"].fillna("").str.split().map(lambda words: group in words).astype(bool)


# ---- along an axis ---------------------------------------------------------------------------------------------------


def _along(rows: pd.DataFrame, name: str, label: str, op: str) -> Draw:
    def draw(axes: Axes) -> None:
        for contender, points in rows.groupby("contender", sort=False):
            along = points.sort_values(name).drop_duplicates(name, keep="last")
            color, marker, dash = LOOK.get(str(contender), OTHER)
            axes.plot(along[name], along["p50"], color=color, marker=marker, ls=dash, ms=5, label=str(contender))
            axes.fill_between(along[name], along["p10"], along["p90"], color=color, alpha=0.15, lw=0)
        _floor(axes, rows)
        others = [c for c in ("bs", "length", "page_size", "layout", "dtype") if c != name and rows[c].nunique() == 1]
        fixed = ", ".join(f"{c} {_number(rows[c].iloc[0])}" for c in others)
        axes.set(xscale="log", yscale="log", xlabel=f"{label}\n{fixed}", ylabel=f"{op}, microseconds a call")
        axes.xaxis.set_major_locator(LogLocator(base=2 if name == "bs" else 10))
        for side in (axes.xaxis, axes.yaxis):
            side.set_major_formatter(FuncFormatter(_number))
            side.set_minor_formatter(NullFormatter())
        _legend(axes)

    return draw


def _floor(axes: Axes, rows: pd.DataFrame) -> None:
    floor = rows["floor_us"].dropna()
    if len(floor):
        axes.axhline(float(floor.median()), label=f"empty kernel, {floor.median():.2f}", **FLOOR)  # type: ignore[arg-type]


# ---- bars ------------------------------------------------------------------------------------------------------------


def _skew(times: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = times[_in_group(times, "lengths") & (times["op"] == "read_table")]
    uneven = rows.groupby("length")["lengths"].nunique()
    if uneven.max() < 2 or uneven.empty:
        return "no batch of uneven lengths in it"
    rows = rows[rows["length"] == uneven[uneven > 1].index.max()]  # the longest row says most
    kinds = [kind for kind in SKEWS if kind in set(rows["lengths"])]

    def draw(axes: Axes) -> None:
        _bars(axes, rows, "lengths", kinds)
        axes.set_ylabel("read_table, microseconds a call")
        length, bs = int(rows["length"].iloc[0]), int(rows["bs"].iloc[0])
        told = {"even": f"{bs} rows of {length:,}", "skewed": f"one of {length:,},\nothers 1/128", "trace": "as traced"}
        axes.set_xticks(range(len(kinds)), [told[kind] for kind in kinds])
        _floor(axes, rows)
        _legend(axes)

    return _figure(draw, table)


def _host(timed: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = timed[(timed["metric"] == "host") & _in_group(timed, "promise")]
    rows = rows.drop_duplicates(["op", "contender"])  # the first promised case of an operation is its centre
    if rows.empty:
        return "no host times in it (they are measured on a GPU)"
    ops = list(dict.fromkeys(rows["op"]))

    def draw(axes: Axes) -> None:
        _bars(axes, rows, "op", ops)
        axes.set(ylabel="host, microseconds a call")
        axes.set_xticks(range(len(ops)), ops)
        launch = timed[(timed["op"] == "floor") & (timed["metric"] == "host")]["p50"]
        if len(launch):
            axes.axhline(float(launch.min()), label=f"launch of an empty kernel, {launch.min():.1f}", **FLOOR)  # type: ignore[arg-type]
        _legend(axes)

    return _figure(draw, table)


def _bars(axes: Axes, rows: pd.DataFrame, name: str, values: list[str]) -> None:
    contenders = list(dict.fromkeys(rows["contender"]))
    width = 0.8 / len(contenders)
    for place, contender in enumerate(contenders):
        mine = rows[rows["contender"] == contender].drop_duplicates(name, keep="last").set_index(name)
        at = [i for i, value in enumerate(values) if value in mine.index]
        heights = [float(mine.loc[values[i], "p50"]) for i in at]
        low, high = ([float(mine.loc[values[i], q]) for i in at] for q in ("p10", "p90"))
        error = np.clip([np.subtract(heights, low), np.subtract(high, heights)], 0, None)
        color, marker, _ = LOOK.get(contender, OTHER)
        hatch = {"^": "//", "v": "\\\\", "D": "..", "x": "xx"}.get(marker)
        left = [i + (place - (len(contenders) - 1) / 2) * width for i in at]
        bars = axes.bar(
            left, heights, width * 0.92, yerr=error, color=color, hatch=hatch, edgecolor="white", label=contender
        )
        axes.bar_label(bars, [f"{height:.3g}" for height in heights], fontsize=8, padding=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)


# ---- the ceiling, and sweeps -----------------------------------------------------------------------------------------


def _ceiling(times: pd.DataFrame, table: pd.DataFrame) -> Figure | str:
    rows = times[times["percent_of_ceiling"].notna() & (times["percent_of_ceiling"] > 0)]
    if rows.empty:
        return "no bytes in it"

    def draw(axes: Axes) -> None:
        for contender, points in rows.groupby("contender", sort=False):
            color, marker, _ = LOOK.get(str(contender), OTHER)
            axes.scatter(
                points["bytes"], points["percent_of_ceiling"], s=22, color=color, marker=marker, alpha=0.8, lw=1,
                label=str(contender),
            )  # fmt: skip
        axes.axhline(100, color="#333333", lw=1, label="the fastest plain copy")
        floor = rows["floor_us"].dropna()
        if len(floor):
            moved = np.geomspace(float(rows["bytes"].min()), float(rows["bytes"].max()), 60)
            most = moved / float(floor.min()) * 1e6 / float(rows["ceiling_bytes_per_s"].iloc[0]) * 100
            below = most <= 150
            axes.plot(moved[below], most[below], label="in the time of an empty kernel", **FLOOR)  # type: ignore[arg-type]
        axes.set(
            xscale="log", yscale="log", xlabel="bytes a call has to move", ylabel="percent of the copy's bandwidth"
        )
        axes.xaxis.set_major_formatter(FuncFormatter(_bytes))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _legend(axes)

    return _figure(draw, table)


def _heat_maps(rows: pd.DataFrame, op: str, table: pd.DataFrame) -> Figure:
    groups = list(rows.groupby(["case", "contender"], sort=False))
    across = min(len(groups), 2)
    down = -(-len(groups) // across)
    figure, grid = plt.subplots(down, across, figsize=(5.2 * across, 3.4 * down), squeeze=False)
    for axes in grid.flat[len(groups) :]:
        axes.set_visible(False)
    for axes, ((_, contender), points) in zip(grid.flat, groups, strict=False):
        cells = points.pivot_table(index="threads", columns="programs", values="p50", aggfunc="last")
        axes.imshow(np.log(cells.to_numpy()), cmap="cividis_r", aspect="auto")
        axes.set_xticks(range(cells.shape[1]), [f"{int(c):,}" for c in cells.columns])
        axes.set_yticks(range(cells.shape[0]), [f"{int(c):,}" for c in cells.index])
        axes.set(xlabel="programs at most", ylabel="threads at most")
        axes.set_title(f"{contender}: {points['label'].iloc[0]}", fontsize=9)
        axes.grid(visible=False)
        lowest = float(np.nanmin(cells.to_numpy()))
        middle = float(np.nanmedian(np.log(cells.to_numpy())))
        for (i, j), value in np.ndenumerate(cells.to_numpy()):
            weight = "bold" if value == lowest else "normal"
            color = "white" if np.log(value) > middle else "black"
            axes.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=8, color=color, weight=weight)
    figure.suptitle(f"{op}, microseconds a call; the lowest is bold. {_where(table)}", fontsize=9)
    figure.tight_layout()
    return figure


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2, columnspacing=1.4)


def _figure(draw: Draw, table: pd.DataFrame) -> Figure:
    figure, axes = plt.subplots(figsize=(7.2, 4.4))
    draw(axes)
    figure.text(0.01, -0.06, _where(table), fontsize=8, color="#555555")
    return figure


def _where(table: pd.DataFrame) -> str:
    last = table.iloc[-1]
    parts = [str(last["device"]), f"torch {last['torch']}"]
    parts += [f"commit {str(last['commit'])[:12]}"] if pd.notna(last["commit"]) else []
    return ", ".join([*parts, "medians, 10th to 90th percentile"])


def _number(value: Any, _: int = 0) -> str:
    return f"{value:,.10g}" if isinstance(value, (int, float, np.number)) else str(value)


def _bytes(value: float, _: int = 0) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
