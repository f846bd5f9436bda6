"""Rows put side by side into bins of so many tokens: one plan for the side that makes data and the one that trains."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from manifests.errors import LptError


def best_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `budget` each: longest first, into the fullest bin that takes it.

    Deterministic; every index is in exactly one bin. Raises `LptError` for a length over the budget.
    """
    if lengths and max(lengths) > budget:
        raise LptError("a row does not fit into an empty bin", seen=f"{max(lengths)} tokens > {budget}")
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = bisect.bisect_left(room, (lengths[index], -1))
        if place == len(room):
            bins.append([index])
            left, number = budget - lengths[index], len(bins) - 1
        else:
            left, number = room.pop(place)
            bins[number].append(index)
            left -= lengths[index]
        bisect.insort(room, (left, number))
    return bins
