"""Countdown problems: numbers, a target, and an expression that reaches it using each number exactly once.

Arithmetic is exact over the integers: a division is used only where it leaves no remainder, and no step may give zero
or a negative number, so that no problem is solved by multiplying its other numbers away.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from manifests.errors import UsageError

_TRIES = 200  # draws per problem before the ranges are called too narrow


def problems(
    n: int,
    *,
    numbers: int = 3,
    seed: int = 0,
    low: int = 1,
    high: int = 99,
    max_target: int | None = None,
    distinct: bool = True,
    solution: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield `n` rows {nums, target, solution}, solvable by construction.

    Numbers lie within `low` and `high`, targets within 1 and `max_target` (twice `high` where it is None).

    With `distinct`, no two rows have the same target and the same numbers in any order. Raises UsageError when the
    ranges do not hold that many problems.
    """
    if n < 0 or not 2 <= numbers <= 6 or not 1 <= low <= high:
        raise UsageError(
            "no Countdown problems fit these settings",
            seen=f"n={n}, numbers={numbers}, low={low}, high={high}",
            next="numbers from 2 to 6, and 1 <= low <= high",
        )
    largest = 2 * high if max_target is None else max_target
    rng = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    for made in range(n):
        for _ in range(_TRIES):
            drawn = [rng.randint(low, high) for _ in range(numbers)]
            target, expression = _combine(rng, drawn)
            key = (target, *sorted(drawn))
            if target <= largest and not (distinct and key in seen):
                break
        else:
            raise UsageError(
                "the ranges hold too few Countdown problems",
                seen=f"{made} of {n} found with {numbers} numbers from {low} to {high}",
                next="widen low and high, or ask for fewer",
            )
        seen.add(key)
        row: dict[str, Any] = {"nums": drawn, "target": target}
        yield {**row, "solution": expression} if solution else row


def _combine(rng: random.Random, drawn: list[int]) -> tuple[int, str]:
    """Join two terms at random until one is left; returns its value and the expression, outer brackets left out."""
    terms = [(value, str(value)) for value in drawn]
    while len(terms) > 1:
        (a, left), (b, right) = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        value, sign = rng.choice(_results(a, b))
        if value < 0:  # a marker: the operands change places
            value, left, right = -value, right, left
        terms.append((value, f"({left} {sign} {right})"))
    value, expression = terms[0]
    return value, expression[1:-1]


def _results(a: int, b: int) -> list[tuple[int, str]]:
    """Values that two positive numbers can give, each positive; negative where the second number comes first."""
    found = [(a + b, "+"), (a * b, "*")]
    if a != b:
        found.append((a - b, "-"))  # a < b: marked, since b - a is meant
    if a % b == 0:
        found.append((a // b, "/"))
    elif b % a == 0:
        found.append((-(b // a), "/"))
    return found
