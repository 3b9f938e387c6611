"""What was promised and what became of it, as a Markdown table rendered from a CSV of `pagebind bench` alone.

    | work | beside | cuda | triton | aimed at |
    | refresh, 64 x 8,224 scattered | sglang, 6.21 us | **1.60 us, 3.9x** | 1.38 us, 4.5x | 4.5x |

Beside a peer or a copy a figure is how many times faster; beside an empty kernel, a bare launch or a full build of its
own, how many times as long. What is missed is bold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from pagebind.errors import InvalidArgument

from pagebind_bench.bench.promises import BARE, EMPTY, ITSELF, PROMISES, Promise, Verdict, verdicts
from pagebind_bench.bench.results import read

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
AS_LONG = {EMPTY, BARE, ITSELF}
"""What a promise gives calls a multiple of the time of; beside anything else they are to be faster."""


def render(path: Path) -> str:
    """Return the table of a CSV's last run, and a line that says where and on what commit it ran.

    Raises InvalidArgument for a file that is no CSV of `pagebind bench`, or a run that tells of no promise.
    """
    table = read(path)
    table = table[table["run"] == table["run"].iloc[-1]] if len(table) else table
    rows = [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]
    backends = list(dict.fromkeys(table["contender"][table["report"].notna()]))
    device_types = list(dict.fromkeys(table["device_type"].dropna()))
    found = [one for kind in device_types for one in verdicts(rows, backends, kind)]
    if not found:
        raise InvalidArgument(
            f"the last run in {path} tells of no promise: run pagebind bench --promised, or without --op and --case"
        )
    last = table.iloc[-1]
    return f"{_table(found, backends)}\n{_kept(found, backends)} {last['device']}, commit {last['commit']}.\n"


def _table(found: Sequence[Verdict], backends: Sequence[str]) -> str:
    lines = [
        "| work | beside | " + " | ".join(backends) + " | aimed at |",
        "|---|---|" + "---:|" * (len(backends) + 1),
    ]
    for promise in PROMISES:
        by = {one.contender: one for one in found if one.promise is promise}
        if by:
            cells = [_cell(by[name]) if name in by else "" for name in backends]
            lines.append(f"| {' | '.join((promise.what, _beside(promise, by.values()), *cells, _aim(promise)))} |")
    return "\n".join(lines) + "\n"


def _beside(promise: Promise, verdicts: Iterable[Verdict]) -> str:
    others = {_us(one.other_us) for one in verdicts}
    return f"{promise.against}, {others.pop()} us" if len(others) == 1 else promise.against


def _cell(verdict: Verdict) -> str:
    own = verdict.ratio if verdict.promise.against in AS_LONG else 1 / verdict.ratio
    cell = f"{_us(verdict.own_us)} us, {_times(own)}"
    return cell if verdict.kept else f"**{cell}**"


def _aim(promise: Promise) -> str:
    if promise.against in AS_LONG:
        return f"at most {_times(promise.most)}"
    slack = f", or {promise.slack_us:g} us more" if promise.slack_us else ""
    return f"{_times(1 / promise.most)}{slack}"


def _kept(found: Sequence[Verdict], backends: Sequence[str]) -> str:
    told = []
    for name in backends:
        own = [one.kept for one in found if one.contender == name]
        told.append(f"`{name}` keeps {sum(own)} of {len(own)}")
    return f"{', '.join(told)}; what is missed is bold. Medians of one run on"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"
