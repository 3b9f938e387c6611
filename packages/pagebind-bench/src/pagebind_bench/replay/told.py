"""What the command prints of a replay of one kind of page."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_report(report: dict[str, Any]) -> None:
    """Print the figures of a report."""
    console = Console()
    result, checked, backend = report["result"], report["verify"], report["backend"]
    summary = Table(title=f"replay of {report['trace']['source']}", title_justify="left", show_header=False)
    summary.add_column(style="dim")
    summary.add_column()
    pages = report["settings"]["pages"]
    rows = [
        ("backend", f"{backend['name']} {backend['version']}, mode {backend['mode']}, on {backend['device']}"),
        ("requests served", f"{result['served']:,} of {report['trace']['requests']:,}"),
        ("preempted", f"{result['preempted']:,}"),
        ("steps", f"{result['steps']:,} in {report['wall_s']:.1f} s"),
        ("virtual clock", f"{result['virtual_s']:,.1f} s"),
        ("pages, peak and mean", f"{result['peak_pages']:,} and {result['mean_pages']:,.0f} of {pages:,}"),
        ("batch, peak and mean", f"{result['peak_batch']:,} and {result['mean_batch']:,.1f}"),
        ("tail waste", f"{result['tail_waste']:.2%} of the tokens that held pages could hold"),
        ("hit rate", _hit_rate(report)),
        ("verified", f"{checked['checked']:,} of {result['steps']:,} steps; pages balance to zero"),
    ]
    for row in rows:
        summary.add_row(*row)
    console.print(summary)
    times = Table(title="host time of a call, microseconds", title_justify="left")
    times.add_column("operation")
    for column in ("calls", "p50", "p99"):
        times.add_column(column, justify="right")
    for name, told in report["operations"].items():
        times.add_row(name, f"{told['calls']:,.0f}", f"{told['p50_us']:,.1f}", f"{told['p99_us']:,.1f}")
    console.print(times)
    console.print(f"digest: {report['digest']}", highlight=False, soft_wrap=True)
    console.print(f"reproduce: {report['reproduce']}", highlight=False, soft_wrap=True)


def _hit_rate(report: dict[str, Any]) -> str:
    if not report["settings"]["block_tokens"]:
        return f"no prefix cache: {report['trace']['block_origin']}"
    return f"{report['result']['hit_rate']:.2%} of prompt tokens"
