"""What every block of options checks of its values."""

from __future__ import annotations

import difflib
import math

from manifests.errors import UsageError


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `UsageError` unless `value` is one of `choices`."""
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        raise UsageError(f"{name} has no choice of that name", seen=value, next=f"one of {', '.join(close or choices)}")


def at_least(name: str, value: float, low: float) -> None:
    """Raise `UsageError` unless `value >= low` and is finite (NaN fails)."""
    if math.isinf(value):
        raise UsageError(f"{name} is no finite number", seen=value, next=f"give {name} >= {low}")
    if not value >= low:
        raise UsageError(f"{name} is too small", seen=value, next=f"give {name} >= {low}")
