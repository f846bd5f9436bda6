"""Calibration: bins by hand, laws of the scores, a planted temperature found on pairs it was not fitted to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lpt_train.calibration import (
    ONE_HALF,
    SEPARABLE,
    UNINFORMED,
    best_temperature,
    brier,
    calibration,
    calibration_error,
    cross_fitted,
    log_loss,
    probability,
    reliability,
)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def drawn(count: int, temperature: float, seed: int = 0) -> np.ndarray:
    """Margins of pairs whose labels follow s(margin / temperature): the sign says whether the claim was right."""
    rng = np.random.default_rng(seed)
    size = np.abs(rng.normal(0, 2, count))
    return np.where(rng.random(count) < probability(size / temperature), size, -size)


def test_bins_by_hand():
    # Claims of 0.55 (right, wrong), 0.95 (right, right, right, wrong) and a tie, which is half right.
    margins = np.array([logit(0.55), -logit(0.55)] + [logit(0.95)] * 3 + [-logit(0.95)] + [0.0])
    low, high = reliability(margins, 5)
    assert (low.low, low.high, low.n, high.low, high.n) == (0.5, 0.6, 3, 0.9, 4)
    assert low.accuracy == pytest.approx(0.5)
    assert low.confidence == pytest.approx((0.55 + 0.55 + 0.5) / 3)
    assert (high.accuracy, high.confidence) == (pytest.approx(0.75), pytest.approx(0.95))
    assert high.accuracy_low < 0.75 < high.accuracy_high
    expected = (3 * (1.6 / 3 - 0.5) + 4 * 0.2) / 7
    assert calibration_error([low, high]) == pytest.approx(expected)


def test_brier_and_log_loss_by_hand():
    margins = np.array([logit(0.8), -logit(0.6)])  # the chosen side was given 0.8, and 0.4
    assert brier(margins) == pytest.approx((0.2**2 + 0.6**2) / 2)
    assert log_loss(margins) == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)
    assert brier(np.zeros(3)) == 0.25
    assert log_loss(np.zeros(3)) == pytest.approx(math.log(2))


@pytest.mark.parametrize("equal_mass", [False, True])
def test_the_order_of_pairs_changes_nothing_and_ties_stay_together(equal_mass):
    margins = np.concatenate([drawn(300, 1.0), np.full(50, 0.7), np.zeros(20)])
    shuffled = np.random.default_rng(1).permutation(margins)
    assert reliability(margins, 7, equal_mass=equal_mass) == reliability(shuffled, 7, equal_mass=equal_mass)
    assert sum(one.n for one in reliability(margins, 7, equal_mass=equal_mass)) == len(margins)
    assert len(reliability(np.full(9, 0.7), 7, equal_mass=equal_mass)) == 1


def test_bins_of_equal_mass_hold_nearly_the_same_number():
    sizes = [one.n for one in reliability(drawn(1000, 1.0), 10, equal_mass=True)]
    assert len(sizes) == 10
    assert max(sizes) - min(sizes) <= 2


def test_true_claims_have_a_small_error_and_boasts_a_large_one():
    margins = drawn(20_000, 1.0)
    assert calibration_error(reliability(margins, 10)) < 0.02
    assert calibration_error(reliability(4 * margins, 10)) > 0.1


@pytest.mark.parametrize("planted", [0.5, 1.0, 3.0])
def test_a_planted_temperature_is_found_by_a_scale_free_fit(planted):
    margins = drawn(20_000, planted)
    found, why = best_temperature(margins)
    assert (found, why) == (pytest.approx(planted, rel=0.06), "")
    assert best_temperature(100 * margins)[0] == pytest.approx(100 * found, rel=1e-6)
    for other in (0.9 * found, 1.1 * found):
        assert log_loss(margins / found) < log_loss(margins / other)


def test_temperatures_that_do_not_exist_are_said():
    assert best_temperature(np.array([1.0, 2.0, 0.0])) == (None, SEPARABLE)
    assert best_temperature(np.array([1.0, -2.0])) == (None, UNINFORMED)
    assert best_temperature(np.array([])) == (None, UNINFORMED)


def test_a_temperature_is_judged_on_pairs_that_it_was_not_fitted_to():
    margins = drawn(4000, 3.0)
    fold = np.arange(4000) % 2
    scaled, temperatures, why = cross_fitted(margins, fold)
    assert why == ""
    for half in (0, 1):
        assert temperatures[half] == best_temperature(margins[fold != half])[0]
        assert scaled[fold == half] == pytest.approx(margins[fold == half] / temperatures[half])
    body = calibration(margins, fold, 10)
    held_out = body["temperature"]["held_out"]
    assert held_out["ece_equal_width"] < body["ece_equal_width"] / 3
    assert held_out["log_loss"] < body["log_loss"]
    assert body["n"] == sum(one["n"] for one in body["bins"])


def test_one_half_without_a_temperature_leaves_the_margins_alone():
    margins, fold = np.array([1.0, 2.0, 1.0, -0.5]), np.array([0, 0, 1, 1])
    scaled, temperatures, why = cross_fitted(margins, fold)
    assert (scaled.tolist(), temperatures, why) == (margins.tolist(), [None, None], SEPARABLE)
    assert calibration(margins, fold, 5)["temperature"]["held_out"] is None
    assert cross_fitted(drawn(50, 1.0), np.zeros(50))[2] == ONE_HALF


def test_huge_margins_stay_finite():
    margins = np.array([1e6, -1e6, 800.0, -800.0], np.float32)
    assert math.isfinite(log_loss(margins))
    assert np.isfinite(probability(margins)).all()
    assert calibration_error(reliability(margins, 10)) == pytest.approx(0.5)
