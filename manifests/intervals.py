"""Intervals of measured shares. Free to import."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson(k: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of k successes in n; inside [0, 1] and of use at k = 0 and k = n; (0, 1) for n = 0.

    Both may be fractions: an effective number of independent trials.
    """
    if n == 0:
        return 0.0, 1.0
    share, z2 = k / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 0.0 if k == 0 else centre - half, 1.0 if k == n else centre + half


def newcombe(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """A 95 % interval of the share of successes of the second try less that of the first, on the same items.

    Counts are of items that succeed at both tries, at the first only, at the second only, at neither; one at least.
    Wilson's intervals of both shares, put together by their correlation, which is corrected for continuity (Newcombe
    1998, Statistics in Medicine 17, 2635-2650, method 10). Never of no width, whatever the counts.
    """
    n = both + first + second + neither
    before, after = (both + first) / n, (both + second) / n
    (low_b, high_b), (low_a, high_a) = wilson(both + first, n), wilson(both + second, n)
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    excess = both * neither - first * second
    phi = (max(excess - n / 2, 0.0) if excess > 0 else excess) / math.sqrt(margins) if margins else 0.0
    down, up = (after - low_a, high_b - before), (high_a - after, before - low_b)
    return after - before - _third_side(*down, phi), after - before + _third_side(*up, phi)


def _third_side(a: float, b: float, cosine: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * cosine * a * b + b * b))
