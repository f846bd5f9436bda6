"""What a measured number is worth: means, ratios, pass@k, and their 95 % intervals, alone and in pairs.

Items (records, problems, seeds) are what is drawn; tokens of one record are not independent, nor are samples of one
problem, so every interval is clustered by item. Free to import (no torch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manifests.errors import UsageError
from manifests.intervals import Z95, newcombe, wilson

RESAMPLES = 2000
# Two-sided 95 % of Student's t for 1, 2, … degrees of freedom.
_T95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over `n` items."""

    value: float
    low: float
    high: float
    n: int

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of the value."""
        return Estimate(function(self.value), function(self.low), function(self.high), self.n)


@dataclass(frozen=True)
class PairedDifference:
    """After minus before on the same items: the mean difference with its 95 % interval, and an exact test.

    The interval is Newcombe's for paired shares when all scores are 0 or 1, else Student's for the mean of the paired
    differences (of a ratio, its linearised one). `gained` and `lost` count the items that got better and worse.
    `p_value` is McNemar's exact two-sided test over the items that changed sides (None when scores are not all 0 or 1).
    """

    n: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    gained: int
    lost: int
    p_value: float | None

    @property
    def significant(self) -> bool:
        """Whether it is beyond chance at 5 %: by the exact test where there is one, else by an interval without 0."""
        return self.p_value < 0.05 if self.p_value is not None else self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def around(values: Sequence[float] | np.ndarray, critical: float) -> Estimate:
    """The mean, `critical` standard errors to either side; infinite for one value."""
    n, value = len(values), float(sum(values)) / len(values)
    half = critical * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Estimate(value, value - half, value + half, n)


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of a mean: Wilson's when all scores are 0 or 1, else the normal approximation."""
    if all(score in (0.0, 1.0) for score in scores):
        return wilson(int(sum(scores)), len(scores))
    found = around(scores, Z95)
    return found.low, found.high


def mean(scores: Sequence[float]) -> Estimate:
    """The mean of at least one score."""
    return Estimate(sum(scores) / len(scores), *interval(scores), len(scores))


def ratio(parts: Sequence[float], sizes: Sequence[float]) -> Estimate:
    """Sum of `parts` over sum of `sizes` (loss over tokens, say), one of each an item.

    Interval: the linearised variance of a ratio, n/(n-1) Σ (x - R s)² / (Σ s)² (Cochran, Sampling Techniques, 6.4),
    that is, clustered by item.
    """
    parts_n, sizes_n = np.asarray(parts, np.float64), np.asarray(sizes, np.float64)
    n, size = len(parts_n), float(sizes_n.sum())
    value = float(parts_n.sum()) / size
    if n < 2:
        return Estimate(value, -math.inf, math.inf, n)
    half = Z95 * math.sqrt(n / (n - 1) * float(((parts_n - value * sizes_n) ** 2).sum())) / size
    return Estimate(value, value - half, value + half, n)


def clustered_share(right: Sequence[int], sizes: Sequence[int]) -> Estimate:
    """The share of trials that are right, of clusters with `right` among `sizes`; at least one cluster.

    Wilson's interval at the number of independent trials that are worth as much: trials over the design effect, which
    is the linearised clustered variance over the binomial one (Kish), never more than there are trials. Where all are
    right or none is, the clusters. Clusters of one trial each give Wilson's interval itself.
    """
    total, found = sum(sizes), ratio(right, sizes)
    simple = found.value * (1 - found.value)
    effective = float(len(sizes))
    if simple > 0:
        variance = ((found.high - found.value) / Z95) ** 2
        effect = variance * (total - 1) / simple
        effective = total / max(1.0, effect)
    return Estimate(found.value, *wilson(found.value * effective, effective), total)


def seeds_mean(values: Sequence[float]) -> Estimate:
    """The mean over a few seeds; its interval is Student's, infinite for one seed."""
    return around(values, t95(len(values) - 1))


def t95(degrees: int) -> float:
    """Two-sided 95 % of Student's t; beyond 30 degrees of freedom by Cornish and Fisher's expansion."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = Z95
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that one of `k` of `n` samples is right, `correct` of which are: 1 - C(n - c, k) / C(n, k), unbiased.

    Chen et al., Evaluating Large Language Models Trained on Code (2021), equation 1. Exact in whole numbers.
    """
    if not 1 <= k <= n:
        raise UsageError(
            "pass@k needs at least k samples an item", seen=f"k={k}, {n} samples", next="give a larger --k"
        )
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def bootstrap(values: Sequence[float], *, seed: int) -> Estimate:
    """The mean with the 2.5 and 97.5 percentiles of the means of `RESAMPLES` draws of the items, with replacement.

    Where every value is 0 or 1 it is Wilson's interval: a bootstrap of equal values says that nothing is uncertain.
    """
    data_n, n = np.asarray(values, np.float64), len(values)
    if n < 2 or all(value in (0.0, 1.0) for value in values):
        return mean(values)
    random = np.random.default_rng([seed, n])
    means = [float(data_n[random.integers(0, n, n)].mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(data_n.mean()), float(low), float(high), n)


def paired_interval(before: Sequence[float], after: Sequence[float]) -> PairedDifference:
    """The paired difference of two equally long lists of scores (at least two items), of which more is better."""
    n = _same_items(before, after)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    found, p_value = around(differences, t95(n - 1)), None
    low, high = found.low, found.high
    if all(score in (0.0, 1.0) for score in (*before, *after)):
        both = sum(a == b == 1.0 for a, b in zip(before, after, strict=True))
        low, high = newcombe(both, lost, gained, n - both - lost - gained)
        p_value = mcnemar(gained, lost)
    return PairedDifference(
        n=n, before=sum(before) / n, after=sum(after) / n, difference=found.value, low=low, high=high, gained=gained,
        lost=lost, p_value=p_value,
    )  # fmt: skip


def paired_ratio(before: Sequence[float], after: Sequence[float], sizes: Sequence[float]) -> PairedDifference:
    """The paired difference of two ratios over the same sizes, such as losses over tokens; less is better."""
    n = _same_items(before, after)
    difference = ratio([b - a for a, b in zip(before, after, strict=True)], sizes)
    size = float(sum(sizes))
    return PairedDifference(
        n=n, before=sum(before) / size, after=sum(after) / size, difference=difference.value, low=difference.low,
        high=difference.high, gained=sum(b < a for a, b in zip(before, after, strict=True)),
        lost=sum(b > a for a, b in zip(before, after, strict=True)), p_value=None,
    )  # fmt: skip


def _same_items(before: Sequence[float], after: Sequence[float]) -> int:
    if len(before) != len(after) or len(before) < 2:
        raise UsageError(
            "a paired difference needs the same items twice, two or more", seen=f"{len(before)} and {len(after)}"
        )
    return len(before)


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test: `gained` of `gained + lost` under a fair coin."""
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n) if n else 1.0
