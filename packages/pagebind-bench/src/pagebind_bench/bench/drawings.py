"""How rows of a CSV are drawn: lines along an axis, bars, dots, heat maps; who has which look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


class Look(NamedTuple):
    """Colour, marker, dashes and hatch of a contender; the last three tell apart what the first does."""

    color: str
    marker: str
    dash: str
    hatch: str


# Okabe and Ito's colours, told apart by all kinds of colour vision.
LOOKS = {
    "cuda": Look("#0072B2", "o", "-", ""),
    "triton": Look("#009E73", "s", "-", ""),
    "cpu": Look("#0072B2", "o", "-", ""),
    "sglang": Look("#D55E00", "^", "--", "//"),
    "published-batch": Look("#E69F00", "v", "--", "\\\\"),
    "published-context": Look("#CC79A7", "D", ":", ".."),
    "index_select": Look("#56B4E9", "x", ":", "xx"),
}
OTHER = Look("#444444", "*", "-.", "")
FLOOR = {"color": "#777777", "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
REFRESHED, BUILT = "refresh_table", "read_table"
WORDS = {REFRESHED: "refresh", BUILT: "full build"}


def look(contender: object) -> Look:
    """Return the look of a contender."""
    return LOOKS.get(str(contender), OTHER)


def lines(axes: Axes, rows: pd.DataFrame, name: str, label: str) -> None:
    """Draw cost along a column, a line for each operation and contender; both axes are logarithmic."""
    both = rows["op"].nunique() > 1
    for (op, contender), points in rows.groupby(["op", "contender"], sort=False):
        along = points.sort_values(name).drop_duplicates(name, keep="last")
        color, marker, dash, _ = look(contender)
        own = both and BUILT in set(points["op"]) and contender in set(rows[rows["op"] == REFRESHED]["contender"])
        told = f"{contender}, {WORDS.get(str(op), str(op))}" if both and (own or op == REFRESHED) else str(contender)
        axes.plot(
            along[name], along["p50"], color=color, marker=marker, ls=dash, label=told,
            ms=5, lw=1.1 if own else 1.8, mfc="white" if own else color,
        )  # fmt: skip
        axes.fill_between(along[name], along["p10"], along["p90"], color=color, alpha=0.15, lw=0)
    floor(axes, rows)
    others = [c for c in ("bs", "length", "page_size", "layout", "dtype") if c != name]
    fixed = [f"{c} {number(rows[c].iloc[0])}" for c in others if rows[c].nunique() == 1]
    axes.set(xscale="log", yscale="log", ylabel="microseconds a call")
    axes.set_xlabel("\n".join((label, ", ".join(fixed))))
    axes.xaxis.set_major_locator(LogLocator(base=10 if name == "length" else 4))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if _decades(rows) < 2 else (1.0,)))
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_formatter(FuncFormatter(number))
        side.set_minor_formatter(NullFormatter())
    legend(axes, columns=3)


def _decades(rows: pd.DataFrame) -> float:
    return float(np.log10(rows["p50"].max() / rows["p50"].min()))


def floor(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the empty kernel's time, where rows have one."""
    found = rows["floor_us"].dropna()
    if len(found):
        axes.axhline(float(found.median()), label=f"empty kernel, {found.median():.2f}", **FLOOR)  # type: ignore[arg-type]


def bars(axes: Axes, rows: pd.DataFrame, name: str, ticks: Mapping[Any, str]) -> None:
    """Draw bars from zero, one for each contender, at each value of a column; `ticks` names them in order."""
    contenders = list(dict.fromkeys(rows["contender"]))
    width = 0.84 / len(contenders)
    values = list(ticks)
    at = {value: _placed(rows[rows[name] == value], contenders) for value in values}
    for contender in contenders:
        mine = rows[rows["contender"] == contender].drop_duplicates(name, keep="last").set_index(name)
        own = [value for value in values if value in mine.index]
        heights, low, high = (np.array([float(mine.loc[v, q]) for v in own]) for q in ("p50", "p10", "p90"))
        error = np.clip([heights - low, high - heights], 0, None)
        left = [values.index(value) + at[value][contender] * width for value in own]
        color, _, _, hatch = look(contender)
        drawn = axes.bar(
            left, heights, width * 0.92, yerr=error, color=color, hatch=hatch, edgecolor="white", label=contender,
            error_kw={"lw": 1},
        )  # fmt: skip
        axes.bar_label(drawn, [f"{height:.3g}" for height in heights], fontsize=8, padding=2)
        if "bare_us" in mine.columns:
            told = [(x, float(mine.loc[v, "bare_us"])) for x, v in zip(left, own, strict=True)]
            for x, least in told:
                if np.isfinite(least):
                    axes.plot([x - width * 0.46, x + width * 0.46], [least, least], color="black", lw=1.6)
    axes.set_xticks(range(len(values)), list(ticks.values()))
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.12)


def _placed(rows: pd.DataFrame, contenders: Sequence[str]) -> dict[str, float]:
    """Return how many bars each contender of a group is off its middle."""
    there = [contender for contender in contenders if contender in set(rows["contender"])]
    return {contender: place - (len(there) - 1) / 2 for place, contender in enumerate(there)}


def dots(axes: Axes, rows: pd.DataFrame, column: str, label: str) -> None:
    """Draw a line for each case, the first one on top, with a dot for each contender at a column's value."""
    cases = list(dict.fromkeys(zip(rows["op"], rows["label"], strict=True)))
    height = {case: len(cases) - 1 - place for place, case in enumerate(cases)}
    for contender, points in rows.groupby("contender", sort=False):
        at = [height[case] for case in zip(points["op"], points["label"], strict=True)]
        color, marker, _, _ = look(contender)
        axes.scatter(points[column], at, s=34, color=color, marker=marker, alpha=0.85, label=str(contender))
    told = [f"{op}, {case}" for op, case in cases]
    axes.set_yticks(list(height.values()), told, fontsize=8)
    axes.set_ylim(-0.7, len(cases) - 0.3)
    axes.set_xlabel(label)
    axes.set_xlim(0, max(float(rows[column].max()), 100) * 1.05)


def heat_maps(rows: pd.DataFrame, shipped: Mapping[Any, float], title: str) -> Figure:
    """Draw the launches of a sweep: a map for each case and contender, its lowest time bold.

    `shipped` are the microseconds of the launch that is planned without options, by case and contender.
    """
    groups = list(rows.groupby(["case", "contender"], sort=False))
    across = min(len(groups), 2)
    down = -(-len(groups) // across)
    figure, grid = plt.subplots(down, across, figsize=(5.2 * across, 3.2 * down), squeeze=False, layout="constrained")
    for axes in grid.flat[len(groups) :]:
        axes.set_visible(False)
    for axes, ((case, contender), points) in zip(grid.flat, groups, strict=False):
        cells = points.pivot_table(index="threads", columns="programs", values="p50", aggfunc="last")
        shown = np.log(cells.to_numpy())
        axes.imshow(shown, cmap="cividis_r", aspect="auto")
        axes.set_xticks(range(cells.shape[1]), [f"{int(c):,}" for c in cells.columns])
        axes.set_yticks(range(cells.shape[0]), [f"{int(c):,}" for c in cells.index])
        axes.set(xlabel="programs at most", ylabel="threads at most")
        as_shipped = f"; as shipped {shipped[case, contender]:.3g}" if (case, contender) in shipped else ""
        axes.set_title(f"{contender}: {points['label'].iloc[0]}{as_shipped}", fontsize=9)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        middle = (float(np.nanmin(shown)) + float(np.nanmax(shown))) / 2
        for (i, j), value in np.ndenumerate(cells.to_numpy()):
            weight = "bold" if value == np.nanmin(cells.to_numpy()) else "normal"
            color = "white" if np.log(value) > middle else "black"
            axes.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=8, color=color, weight=weight)
    figure.suptitle(title, fontsize=9)
    return figure


def legend(axes: Axes, columns: int = 4) -> None:
    """Put the legend above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.4)


def framed(draw: Callable[[Axes], None], note: str, height: float = 4.4) -> Figure:
    """Return a figure with one pair of axes, and a note below it."""
    figure, axes = plt.subplots(figsize=(7.2, height))
    draw(axes)
    axes.annotate(
        note, (0, 0), (0, -58), xycoords="axes fraction", textcoords="offset points", fontsize=8, color="#555555"
    )
    return figure


def number(value: Any, _: int = 0) -> str:
    """Return a number with commas, anything else as it is."""
    return f"{value:,.10g}" if isinstance(value, (int, float, np.number)) else str(value)


def ordered(rows: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Return the different values of columns, in the order of the rows."""
    yield from dict.fromkeys(zip(*(rows[column] for column in columns), strict=True))
