"""The figures of a replay, as SVG text that fits into a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pagebind_bench.replay.record import Record

INK, SOFT, GRID = "#1f2933", "#6b7785", "#e6eaee"
OWN, SHARED, CACHED = "#2f6fde", "#7fa9ee", "#d5e3fa"
RUNNING, WAITING, ENTRIES, ALARM = "#0f9d84", "#e58a2b", "#7a52cc", "#d23b4a"
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it takes the page's font and can be searched
    "svg.hashsalt": "pagebind",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#b8c2cc",
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
WIDTH = 9.6
"""Inches; text is sized against it, the page scales the whole."""
Series = Mapping[str, Sequence[float]]


def pages(series: Series, capacity: int) -> str:
    """Pages over virtual time: requests' own, shared prefixes, cached ones that nobody uses; marks for preemptions."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        time, (live, cached, idle, peak) = stairs(series, "live", "cached", "idle", "peak_live")
        own = live - cached
        axes.fill_between(time, 0, own, color=OWN, lw=0, label="requests' own")
        if np.nanmax(cached, initial=0) > 0:
            axes.fill_between(time, own, live - idle, color=SHARED, lw=0, label="shared prefixes in use")
            axes.fill_between(time, live - idle, live, color=CACHED, lw=0, label="cached, not in use")
        axes.plot(time, peak, color=INK, lw=0.7, alpha=0.7, label="highest")
        axes.axhline(capacity, color=SOFT, lw=1, ls=(0, (5, 3)), label=f"the pool, {capacity:,}")
        axes.set_ylim(0, capacity * 1.08)
        preempted = np.array(series.get("preempted", ())) > 0
        if preempted.any():
            at = np.array(series["began_ms"])[preempted] / 1000
            marks = np.full(len(at), capacity * 1.04)
            axes.plot(at, marks, ls="", marker="v", ms=4.5, color=ALARM, label="preemption")
        _finish(axes, time, "pages")

    return as_svg(draw, 3.3)


def batch(series: Series, most: int) -> str:
    """Requests over virtual time: running, and waiting for admission."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
        time, (lanes, peak, waiting, peak_waiting) = stairs(series, "batch", "peak_batch", "waiting", "peak_waiting")
        above.fill_between(time, 0, lanes, color=RUNNING, alpha=0.8, lw=0, label="lanes of a step, mean")
        above.plot(time, peak, color=INK, lw=0.7, alpha=0.7, label="highest")
        top = max(float(np.nanmax(peak, initial=1)), 1)
        if top > most * 0.6:
            above.axhline(most, color=SOFT, lw=1, ls=(0, (5, 3)), label=f"--max-batch, {most:,}")
        above.set_ylim(0, top * 1.12)
        _finish(above, time, "lanes", bottom=False)
        below.fill_between(time, 0, waiting, color=WAITING, alpha=0.8, lw=0, label="waiting requests, mean")
        below.plot(time, peak_waiting, color=INK, lw=0.7, alpha=0.7)
        below.set_ylim(0, max(float(np.nanmax(peak_waiting, initial=1)), 1) * 1.12)
        _finish(below, time, "waiting")

    return as_svg(draw, 4.1)


def entries(series: Series) -> str:
    """Read-table entries of a step over virtual time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        time, (mean, peak) = stairs(series, "entries", "peak_entries")
        axes.fill_between(time, 0, mean, color=ENTRIES, alpha=0.75, lw=0, label="entries of a step, mean")
        axes.plot(time, peak, color=INK, lw=0.7, alpha=0.7, label="highest")
        axes.set_ylim(0, max(float(np.nanmax(peak, initial=1)), 1) * 1.12)
        _finish(axes, time, "entries")

    return as_svg(draw, 2.9)


def times(record: Record) -> str:
    """Host time of every operation's calls: box from p25 to p75, line at p50, whiskers from p1 to p99."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        called = record.called()[::-1]
        for place, (_, nanoseconds) in enumerate(called):
            spent = np.frombuffer(nanoseconds, dtype=np.int64) / 1000
            low, q1, median, q3, high = (float(np.quantile(spent, q)) for q in (0.01, 0.25, 0.5, 0.75, 0.99))
            axes.hlines(place, low, high, color=OWN, lw=1.4)
            axes.vlines([low, high], place - 0.12, place + 0.12, color=OWN, lw=1.4)
            axes.barh(place, q3 - q1, left=q1, height=0.44, color="#bcd3f7", edgecolor=OWN, lw=1.2, zorder=3)
            axes.vlines(median, place - 0.22, place + 0.22, color=INK, lw=2, zorder=4)
            axes.annotate(f"{median:,.1f}", (median, place + 0.27), ha="center", va="bottom", fontsize=9, color=INK)
        axes.set_yticks(range(len(called)), [name for name, _ in called])
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.set_xlabel("microseconds (log scale)")
        axes.set_ylim(-0.5, len(called) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", labelcolor=INK)

    return as_svg(draw, 0.8 + 0.55 * max(len(record.called()), 1))


def stairs(series: Series, *names: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return virtual seconds and some columns as stairs: a span keeps its value from its first step to its last.

    A span's end reaches the next one's beginning, or leaves a gap (NaN) where a time went by without a step.
    """
    began, ended = (np.array(series.get(name, ()), dtype=float) / 1000 for name in ("began_ms", "time_ms"))
    time = np.stack([began, ended], axis=1).reshape(-1)
    columns = [np.repeat(np.array(series.get(name, ()), dtype=float), 2) for name in names]
    idle = np.flatnonzero(began[1:] - ended[:-1] > (ended[-1] if len(ended) else 0) / 500) * 2 + 2
    return np.insert(time, idle, time[idle]), [np.insert(column, idle, np.nan) for column in columns]


def _finish(axes: Axes, time: np.ndarray, label: str, *, bottom: bool = True) -> None:
    axes.set_ylabel(label)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if len(time):
        axes.set_xlim(0, float(np.nanmax(time)) or 1)
    if bottom:
        axes.set_xlabel("seconds on the virtual clock")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0.2, columnspacing=1.4, handlelength=1.4
    )


def as_svg(draw: Callable[[Figure], None], height: float) -> str:
    """Return what `draw` draws into a figure of `height` inches, as SVG text."""
    with plt.rc_context(STYLE):  # type: ignore[arg-type]  # newer stubs want its keys as literals
        figure = plt.figure(figsize=(WIDTH, height))
        # The same margins everywhere, in inches, so that the axes of all figures stand above one another.
        figure.subplots_adjust(
            left=0.8 / WIDTH, right=1 - 0.1 / WIDTH, bottom=0.5 / height, top=1 - 0.32 / height, hspace=0.45
        )
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # The page sizes the figure; the viewBox keeps its proportions.
    opening, rest = svg.split(">", 1)
    return re.sub(r' (?:width|height)="[^"]*"', "", opening) + ">" + rest
