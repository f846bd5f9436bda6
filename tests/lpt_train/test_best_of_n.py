"""Best-of-n: the estimator against every draw, ties, what is left out, and a planted over-optimisation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lpt_train.best_of_n import Scored, curve, expected_best, kl, loss_since_peak
from manifests.errors import BadInputError, UsageError


def every_draw(proxy, gold, n):
    """The mean over all subsets, ties broken in every way."""
    means = []
    for drawn in itertools.combinations(range(len(proxy)), n):
        best = max(proxy[i] for i in drawn)
        means.append(np.mean([gold[i] for i in drawn if proxy[i] == best]))
    return np.mean(means)


def planted(prompts=200, n=16, turn=math.inf, seed=0):
    """Gold follows the proxy up to `turn` and falls beyond it."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt in range(prompts):
        for proxy in rng.normal(size=n):
            gold = proxy if proxy < turn else turn - 3 * (proxy - turn)
            rows.append(Scored(f"p{prompt}", float(proxy), float(gold + rng.normal() / 4)))
    return rows


def test_kl_by_hand():
    assert kl(1) == 0
    assert kl(4) == pytest.approx(math.log(4) - 0.75)


def test_best_of_two_of_three_by_hand():
    # Pairs {1,2}, {1,3}, {2,3}: the better ones are 2, 3, 3.
    assert expected_best(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 60.0]), 2) == pytest.approx(
        (20 + 60 + 60) / 3
    )


@pytest.mark.parametrize("n", range(1, 8))
def test_the_estimator_is_the_mean_over_every_draw(n):
    rng = np.random.default_rng(3)
    proxy, gold = rng.normal(size=7), rng.normal(size=7)
    assert expected_best(proxy, gold, n) == pytest.approx(every_draw(proxy, gold, n))
    assert expected_best(proxy, proxy, 7) == pytest.approx(proxy.max())


def test_completions_of_the_same_reward_are_equally_likely():
    proxy, gold = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.5, 9.0])
    assert expected_best(proxy, gold, 4) == pytest.approx(0.5)
    for order in itertools.permutations(range(4)):
        chosen = list(order)
        assert expected_best(proxy[chosen], gold[chosen], 2) == pytest.approx(expected_best(proxy, gold, 2))


def test_weights_stay_finite_for_many_completions():
    values = np.arange(4000.0)
    assert expected_best(values, np.ones(4000), 1000) == pytest.approx(1.0)
    assert expected_best(values, values, 4000) == 3999


def test_a_good_proxy_gains_with_n_and_is_not_over_optimised():
    found = curve(planted())
    assert [point.n for point in found.points] == [1, 2, 4, 8, 16]
    golds = [point.gold for point in found.points]
    assert golds == sorted(golds)
    assert found.peak == 16
    assert not found.over_optimised
    assert found.loss == 0
    assert found.points[0].gain == 0
    assert found.points[-1].gain_low > 1
    assert found.correlation > 0.9


def test_a_proxy_that_turns_is_found_to_be_over_optimised():
    found = curve(planted(turn=0.5))
    assert found.peak < 16
    assert found.over_optimised
    assert found.loss_low > 0
    assert found.points[-1].gold < found.points[1].gold
    proxies = [point.proxy for point in found.points]
    assert proxies == sorted(proxies)  # which is why nobody sees it without a gold reward


def test_the_loss_since_the_peak_by_hand():
    # Means 1, 3, 2; second less last column 0, 2: mean 1, standard deviation sqrt(2), two prompts.
    peak, loss = loss_since_peak(np.array([[1.0, 2.0, 2.0], [1.0, 4.0, 2.0]]))
    assert (peak, loss.value, loss.n) == (1, 1.0, 2)
    assert loss.high - 1 == pytest.approx(2.2414, abs=1e-4)  # 1 - .025 / 2 of the normal distribution
    assert loss_since_peak(np.array([[2.0, 1.0], [4.0, 1.0]]))[1].high - 2 == pytest.approx(1.96, abs=1e-3)


def test_curves_without_a_turn_are_rarely_called_over_optimised():
    """Five means of the same height, the largest of them picked: at most one time of forty, not one of fourteen."""
    rng = np.random.default_rng(0)
    curves = [rng.normal(size=(100, 5)) for _ in range(4000)]
    said = sum(loss_since_peak(gold_P_n)[1].low > 0 for gold_P_n in curves)
    assert 0.005 * 4000 < said <= 0.025 * 4000


def test_the_order_of_rows_changes_nothing():
    rows = planted(prompts=20)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    one, other = curve(rows), curve(shuffled)
    assert [point.n for point in one.points] == [point.n for point in other.points]
    assert [point.gold for point in one.points] == pytest.approx([point.gold for point in other.points])


def test_what_could_not_be_scored_is_left_out_and_counted_and_never_zero():
    rows = [Scored("a", 1.0, 1.0), Scored("a", 0.0, 1.0), Scored("a", 9.0, None), Scored("b", 1.0, 1.0)]
    rows += [Scored("b", 0.0, 1.0), Scored("c", None, 1.0), Scored("c", 2.0, 1.0)]
    found = curve(rows, [2])
    assert found.left_out == {"completions_without_a_score": 2, "prompts_with_too_few": 1}
    assert (found.prompts, found.completions) == (2, 4)
    assert [point.gold for point in found.points] == [1.0, 1.0]


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    inside = 0
    for seed in range(1000, 1200):
        found = curve(planted(prompts=40, n=4, seed=seed), [4])
        inside += found.points[-1].proxy_low <= 1.0294 <= found.points[-1].proxy_high  # E[max of 4 normals]
    assert 180 <= inside <= 199


@pytest.mark.parametrize("rows", [[], [Scored("a", 1.0, 1.0)] * 8, [Scored("a", 1.0, 1.0), Scored("b", 1.0, 1.0)]])
def test_too_little_to_draw_from_is_bad_input(rows):
    with pytest.raises(BadInputError, match="two prompts"):
        curve(rows)


def test_no_best_of_none():
    with pytest.raises(UsageError):
        curve(planted(prompts=3), [0])
    with pytest.raises(BadInputError, match="0 of 3 prompts"):
        curve(planted(prompts=3), [32])
