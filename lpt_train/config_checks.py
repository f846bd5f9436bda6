"""What every block of options checks of its values."""

from __future__ import annotations

import math

from lpt_train.habits import CHOICES
from manifests.errors import UsageError
from manifests.spec_values import of_choices


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `UsageError` unless `value` is one of `choices`."""
    if value not in choices:
        advice = of_choices(str(value), choices, CHOICES.get(str(value)))
        raise UsageError(f"{name} has no choice of that name", seen=value, next=advice)


def at_least(name: str, value: float, low: float) -> None:
    """Raise `UsageError` unless `value >= low` and is finite (NaN fails)."""
    if math.isinf(value):
        raise UsageError(f"{name} is no finite number", seen=value, next=f"give {name} >= {low}")
    if not value >= low:
        raise UsageError(f"{name} is too small", seen=value, next=f"give {name} >= {low}")
