"""Statistics of evaluations against values worked out by hand and against plain simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lpt_train.estimates import bootstrap, clustered_share, mean, paired_ratio, pass_at_k, ratio, seeds_mean, t95
from manifests.errors import UsageError
from manifests.intervals import wilson


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for n, correct in itertools.product(range(1, 7), range(7)):
        for k in range(1, n + 1):
            if correct <= n:
                subsets = list(itertools.combinations(range(n), k))
                right = sum(any(sample < correct for sample in subset) for subset in subsets)
                assert pass_at_k(n, correct, k) == pytest.approx(right / len(subsets))


def test_pass_at_k_is_not_the_plug_in_estimate():
    assert pass_at_k(8, 2, 4) == pytest.approx(1 - 15 / 70)  # C(6,4) / C(8,4); 1 - (6/8)^4 = .684 is biased
    assert pass_at_k(4, 4, 4) == 1.0
    assert pass_at_k(10**4, 1, 100) == pytest.approx(0.01)  # whole numbers, no overflow
    with pytest.raises(UsageError, match="k samples"):
        pass_at_k(4, 1, 5)


def test_ratio_by_hand():
    # losses 2, 6, 4 over 1, 3, 4 tokens: 12/8; residuals .5, 1.5, -2; 3/2 * 6.5 / 64
    found = ratio([2, 6, 4], [1, 3, 4])
    half = 1.959964 * math.sqrt(3 / 2 * 6.5) / 8
    assert (found.value, found.low, found.high, found.n) == pytest.approx((1.5, 1.5 - half, 1.5 + half, 3))
    assert ratio([3], [2]).low == -math.inf  # one record says nothing about the next


def test_the_interval_is_clustered_by_record():
    """A hundred equal tokens of one record are one draw: a token-wise interval would be a tenth as wide."""
    random = np.random.default_rng(0)
    means = random.normal(2, 0.5, 50)
    wide = ratio(list(means * 100), [100] * 50)
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * means.std(ddof=1) / math.sqrt(50), rel=1e-3)


def test_the_ratio_interval_covers():
    """Nineteen times of twenty the interval holds the true ratio, with records of very different lengths."""
    random, hits = np.random.default_rng(1), 0
    for _ in range(400):
        sizes = random.integers(1, 100, 200)
        found = ratio(list(sizes * random.normal(1.5, 0.4, 200)), list(sizes))
        hits += found.low <= 1.5 <= found.high
    assert 0.92 <= hits / 400 <= 0.975


def test_a_clustered_share_by_hand():
    # 2 of 2, 0 of 2, 1 of 2: share 1/2, residuals 1, -1, 0; variance 3/2 * 2 / 36 = 1/12; binomial 1/4 / 5 = 1/20
    found = clustered_share([2, 0, 1], [2, 2, 2])
    effective = 6 / ((1 / 12) / (1 / 20))
    assert (found.value, found.n) == (0.5, 6)
    assert (found.low, found.high) == pytest.approx(wilson(effective / 2, effective))
    assert clustered_share([1, 0, 1, 1], [1, 1, 1, 1]) == mean([1.0, 0.0, 1.0, 1.0])
    assert clustered_share([3, 3], [3, 3]).low == wilson(2, 2)[0]  # two prompts, not six pairs
    assert (clustered_share([1], [3]).low, clustered_share([1], [3]).high) == (0.0, 1.0)


def test_paired_ratio_needs_the_pairing():
    first = [2.0, 8.0, 3.0, 9.0]
    found = paired_ratio(first, [value - 0.1 for value in first], [1, 4, 2, 4])
    assert found.difference == pytest.approx(-0.4 / 11)
    assert found.high < 0
    assert (found.gained, found.lost, found.n) == (4, 0, 4)
    assert found.before == pytest.approx(2.0)
    unpaired = ratio(first, [1, 4, 2, 4])
    assert unpaired.high - unpaired.low > 10 * (found.high - found.low)


def test_bootstrap_repeats_covers_and_does_not_collapse():
    values = [0.0, 0.25, 0.5, 1.0] * 25
    found = bootstrap(values, seed=3)
    assert found == bootstrap(values, seed=3)
    half = 1.96 * float(np.std(values)) / 10
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.01)
    for certain in ([0.0] * 20, [1.0] * 20):  # resampling equal values would give an interval of width 0
        assert (bootstrap(certain, seed=0).low, bootstrap(certain, seed=0).high) == wilson(int(sum(certain)), 20)


def test_students_t():
    assert t95(2) == 4.3027
    assert t95(30) > t95(31) > t95(1000) > 1.959963
    assert t95(40) == pytest.approx(2.0211, abs=1e-4)
    assert t95(0) == math.inf
    found = seeds_mean([1.0, 2.0, 3.0])  # standard deviation 1
    assert (found.low, found.high) == pytest.approx((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)))
    assert seeds_mean([1.0]).high == math.inf
