"""Countdown problems that have a solution by construction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def problems(
    n: int, *, numbers: int = 3, seed: int = 0, low: int = 1, high: int = 99, distinct: bool = True, solution: bool = True
) -> Iterator[dict[str, Any]]:
    """``n`` rows {nums, target, solution}."""
    return iter(())
