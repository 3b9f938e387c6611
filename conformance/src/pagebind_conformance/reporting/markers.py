"""Pages of which a part is rendered: what stands between two markers, each on its own line."""

from __future__ import annotations

from pagebind_conformance.reporting.report import ReportError


def replaced(text: str, begin: str, end: str, inner: str, origin: str) -> str:
    """Return a page with `inner` between its markers. Raises ReportError where it does not have each once."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ReportError(f"{origin} has no place for what is rendered: put one {begin} and one {end} where it belongs")
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{inner}{end}{rest.partition(end)[2]}"
