"""Numbers as people read them, and the plain words of verdicts and statuses."""

from __future__ import annotations

import math
from typing import Any

VERDICTS = {
    "accept": "Accepted",
    "tune": "Accepted for tuning only",
    "reject": "Rejected",
}
MEANS = {
    "accept": "Every required check ran and passed. The trainer takes this data.",
    "tune": "The trainer takes this data and marks what it makes of it; it passes no release gate.",
    "reject": "The trainer refuses this data.",
}
STATUSES = {"pass": "passed", "warn": "warning", "fail": "failed", "error": "broke", "skipped": "not run"}
SIGNS = {"pass": "✓", "warn": "!", "fail": "✕", "error": "✕", "skipped": "–"}
ACTIONS = {"remove": "removed", "rewrite": "rewritten", "quarantine": "set aside"}
_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def count(n: int) -> str:
    """12345 as 12,345."""
    return f"{n:,}"


def rows(n: int) -> str:
    """A number of rows."""
    return f"{n:,} row" if n == 1 else f"{n:,} rows"


def share(part: float, whole: float) -> str:
    """Part of a whole in per cent; what is not all is never 100 %, what is something never 0 %."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if part and percent < 0.1:
        return "< 0.1 %"
    if part != whole and percent >= 99.95:
        return "> 99.9 %"
    return f"{percent:.3g} %"


def value(given: Any) -> str:
    """A measured value: short, without trailing zeros; – where there is none."""
    if given is None:
        return "–"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int):
        return f"{given:,}"
    if isinstance(given, float):
        return f"{given:,.0f}" if given.is_integer() and abs(given) < 1e15 else f"{given:,.4g}"
    return str(given)


def size(n: int) -> str:
    """Bytes with a unit of a thousand."""
    left = float(n)
    for unit in _UNITS:
        if left < 1000 or unit == _UNITS[-1]:
            return f"{left:,.0f} {unit}" if unit == "bytes" else f"{left:,.1f} {unit}"
        left /= 1000
    return ""


def duration(seconds: float) -> str:
    """A time: 0.4 s, 3.2 s, 37 s, 4 min 10 s, 2 h 5 min; ? where it is not known."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
