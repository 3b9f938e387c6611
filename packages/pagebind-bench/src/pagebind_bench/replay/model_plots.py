"""The figures of a model's replay: who holds which bytes, requests at once, and the runs beside each other.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; runs differ in their dashes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from pagebind.errors import InvalidArgument

from pagebind_bench.replay.kinds import FULL, STATE, WINDOW
from pagebind_bench.replay.model_record import column
from pagebind_bench.replay.plots import ALARM, GRID, INK, SOFT, STYLE, as_svg, stairs

GIB = 2**30
COLOURS = {FULL: "#0072B2", WINDOW: "#E69F00", STATE: "#009E73"}
LIGHT = {FULL: "#BFDCEC", WINDOW: "#F9E7BF", STATE: "#BFE7DC"}
NAMES = {FULL: "full attention", WINDOW: "window", STATE: "state"}
RUNS = {"unified": "#AA3377", "static": "#7F8994"}
DASHES: dict[str, Any] = {"unified": "-", "static": (0, (4, 2))}
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Run:
    """What the figures need of one run."""

    name: str
    series: Mapping[str, Sequence[float]]  # thinned by virtual time
    steps: Mapping[str, Sequence[float]]  # thinned by steps
    result: Mapping[str, Any]
    anchors: Mapping[str, str]  # how each kind grows


def space_figure(runs: Sequence[Run], budget: int) -> str:
    """Return the bytes of every kind over the steps, a panel for each run, as SVG."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(runs), sharey=True, sharex=True, squeeze=False)[0]
        _spaces(panels, runs, budget)
        _space_legend(panels[0], runs[0])

    return as_svg(draw, 3.9)


def requests_figure(runs: Sequence[Run]) -> str:
    """Return requests at once and waiting over virtual time, as SVG."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
        _over_time(above, runs, "running", "requests at once", bottom=False)
        _over_time(below, runs, "waiting", "waiting", legend=False)

    return as_svg(draw, 4.1)


def live_figure(runs: Sequence[Run], budget: int) -> str:
    """Return the bytes of live pages over virtual time, as SVG."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        unit, size = _unit(budget)
        for run in runs:
            live = sum(np.array(run.series[column(kind, "live")], dtype=float) for kind in run.anchors) / size
            _line(axes, run, np.asarray(live))
        axes.axhline(budget / size, color=SOFT, lw=1, ls=(0, (1, 2)))
        axes.annotate(
            "budget",
            (1, budget / size),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=9,
            color=SOFT,
        )
        _time_axis(axes, f"live pages, {unit}", legend=len(runs) > 1)

    return as_svg(draw, 2.9)


def bars_figure(runs: Sequence[Run]) -> str:
    """Return the runs' figures beside each other, as SVG."""

    def draw(figure: Figure) -> None:
        figure.subplots_adjust(left=0.02, right=0.99, top=0.78, bottom=0.14, wspace=0.25)
        _bars(list(figure.subplots(1, len(BARS))), runs)

    return as_svg(draw, 2.1)


def need_format(path: Path | None) -> None:
    """Refuse a figure's name that does not say in which form to write it."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InvalidArgument(f"--figure is {path}; its name must end with one of {', '.join(FORMATS)}")


def write_overview(path: Path, runs: Sequence[Run], budget: int, title: str) -> None:
    """Write one figure with everything: bytes over steps, requests over time and, of two runs, bars."""
    both = len(runs) > 1
    width, tops = 11.0, (1.05, 5.1, 7.9)  # inches from the top edge to each row of axes
    height = 9.7 if both else 7.4
    heights = (3.1, 1.7, 1.35)

    def place(figure: Figure, row: int, columns: int, left: float, gap: float) -> list[Axes]:
        each = (width - left - 0.25 - gap * (columns - 1)) / columns
        bottom = 1 - (tops[row] + heights[row]) / height
        return [
            figure.add_axes(((left + n * (each + gap)) / width, bottom, each / width, heights[row] / height))
            for n in range(columns)
        ]

    style: Any = {**STYLE, "figure.facecolor": "white", "axes.facecolor": "white"}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(width, height))
        figure.text(0.2 / width, 1 - 0.18 / height, title, va="top", fontsize=13, fontweight="bold", color=INK)
        _spaces(place(figure, 0, len(runs), 0.85, 0.45), runs, budget)
        handles = _space_handles(runs[0])
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.1 / width, 1 - 0.4 / height), ncols=len(handles)
        )
        _over_time(place(figure, 1, 1, 0.85, 0)[0], runs, "running", "requests at once")
        if both:
            _bars(place(figure, 2, len(BARS), 0.3, 0.2), runs)
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        plt.close(figure)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _spaces(panels: Sequence[Axes], runs: Sequence[Run], budget: int) -> None:
    unit, size = _unit(budget)
    for axes, run in zip(panels, runs, strict=True):
        ends = np.cumsum(run.steps["steps"])
        x = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).reshape(-1)

        def values(kind: str, what: str, run: Run = run) -> np.ndarray:
            return np.repeat(np.array(run.steps[column(kind, what)], dtype=float) / size, 2)

        for kind, grows in run.anchors.items():
            first, end, live = (values(kind, what) for what in ("first", "end", "live"))
            axes.fill_between(x, first, end, color=LIGHT[kind], lw=0)
            low, high = (end - live, end) if grows == "down" else (first, first + live)
            axes.fill_between(x, low, high, color=COLOURS[kind], lw=0)
        _marks(axes, run, x, budget / size)
        axes.set_ylim(0, budget / size * 1.1)
        axes.axhline(budget / size, color=SOFT, lw=1)
        axes.set_title(_run_title(run), loc="left", fontsize=10.5, color=INK)
        axes.set_xlabel("steps")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(axis="x", visible=False)
        axes.set_xlim(0, max(sum(each.steps["steps"]) for each in runs))
    for axes in panels[1:]:
        axes.tick_params(labelleft=False)
    panels[0].set_ylabel(f"place in the buffer, {unit}")


def _marks(axes: Axes, run: Run, x: np.ndarray, top: float) -> None:
    for name, height, colour, marker in (("relieved", 1.03, INK, "|"), ("preempted", 1.07, ALARM, "v")):
        hit = np.array(run.steps[name]) > 0
        at = (x[::2] + x[1::2])[hit] / 2
        axes.plot(at, np.full(len(at), top * height), ls="", marker=marker, ms=4, color=colour, clip_on=False)


def _space_handles(run: Run) -> list[Any]:
    handles: list[Any] = [Patch(color=COLOURS[kind], label=f"{NAMES[kind]}: live") for kind in run.anchors]
    handles.append(Patch(color=LIGHT[FULL], label="light: free inside the frontiers"))
    handles.append(Line2D([], [], ls="", marker="|", color=INK, label="relief"))
    handles.append(Line2D([], [], ls="", marker="v", ms=4, color=ALARM, label="preemption"))
    return handles


def _unit(budget: int) -> tuple[str, int]:
    return ("GiB", GIB) if budget >= GIB else ("MiB", 2**20)


def _space_legend(axes: Axes, run: Run) -> None:
    handles = _space_handles(run)
    axes.figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(handles),
        fontsize=8.5,
        columnspacing=1.0,
        handlelength=1.2,
        handletextpad=0.5,
    )
    axes.figure.subplots_adjust(top=0.8, wspace=0.06)


def _run_title(run: Run) -> str:
    told = "one budget for all kinds" if run.name == "unified" else "split up front"
    return f"{run.name}: {told}; {run.result['steps']:,} steps"


def _line(axes: Axes, run: Run, values: np.ndarray) -> None:
    time, (cells,) = stairs({**run.series, "line": values.tolist()}, "line")
    axes.plot(time, cells, color=RUNS[run.name], ls=DASHES[run.name], lw=1.5, label=run.name)


def _over_time(
    axes: Axes, runs: Sequence[Run], name: str, label: str, *, bottom: bool = True, legend: bool = True
) -> None:
    for run in runs:
        _line(axes, run, np.array(run.series[name], dtype=float))
    _time_axis(axes, label, bottom=bottom, legend=legend and len(runs) > 1)


def _time_axis(axes: Axes, label: str, *, bottom: bool = True, legend: bool = True) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    if bottom:
        axes.set_xlabel("seconds on the virtual clock")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if legend:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)


BARS: tuple[tuple[str, Any], ...] = (
    ("requests\nserved", lambda r: r["served"]),
    ("preemptions\n", lambda r: r["preempted"]),
    ("time to\ncompletion, s", lambda r: r["virtual_s"]),
    ("first token\np90, s", lambda r: r["first_token_ms"]["p90"] / 1000),
    ("requests at\nonce, mean", lambda r: r["mean_running"]),
    ("free inside\nfrontiers, GiB", lambda r: r["mean_waste_bytes"] / GIB),
    ("moved by\nrelief, GiB", lambda r: r["moved_bytes"] / GIB),
)
"""What is compared: a label, and the value in a result."""


def _bars(panels: Sequence[Axes], runs: Sequence[Run]) -> None:
    for axes, (label, value) in zip(panels, BARS, strict=True):
        values = [float(value(run.result)) for run in runs]
        axes.bar([run.name for run in runs], values, color=[RUNS[run.name] for run in runs], width=0.62)
        for place, number in enumerate(values):
            axes.annotate(
                f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.3g}",
                (place, number),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=9,
                color=INK,
            )
        axes.set_title(label, fontsize=9, color=INK)
        axes.set_ylim(0, (max(values) or 1) * 1.2)
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_color(GRID)
        axes.tick_params(axis="x", labelsize=8.5)
