"""Intervals of measured shares. Free to import."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson(k: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of k successes in n; inside [0, 1] and of use at k = 0 and k = n; (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = k / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 0.0 if k == 0 else centre - half, 1.0 if k == n else centre + half
