"""Preference losses: values by hand, directions of their gradients, and float64 close to where they are hard."""

from __future__ import annotations

import math

import pytest
import torch

from lpt_train.losses.preference import LOSSES, Options, Pairs, _log1mexp

LOG2 = math.log(2)


def pairs(chosen=-10.0, rejected=-12.0, reference=(-11.0, -11.0), tokens=(5.0, 4.0), dtype=torch.float32) -> Pairs:
    return Pairs(*(torch.tensor([value], dtype=dtype) for value in (chosen, rejected, *reference, *tokens)))


def value(name: str, **options) -> float:
    return float(LOSSES[name].of(pairs(), Options(**{"beta": 0.5, **options})))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_by_hand():
    # Log-ratios +1 and -1, so h = 2 and beta h = 1; per token +1/5 and -1/4; log-probs per token -2 and -3.
    assert value("sigmoid") == pytest.approx(-log_sigmoid(1))
    assert value("sigmoid", label_smoothing=0.1) == pytest.approx(-0.9 * log_sigmoid(1) - 0.1 * log_sigmoid(-1))
    robust = (-0.9 * log_sigmoid(1) + 0.1 * log_sigmoid(-1)) / 0.8
    assert value("robust", label_smoothing=0.1) == pytest.approx(robust)
    assert value("hinge") == pytest.approx(0.0)
    assert value("hinge", beta=0.2) == pytest.approx(1 - 0.4)
    assert value("ipo") == pytest.approx((0.45 - 1) ** 2)
    assert value("simpo", simpo_gamma=0.25) == pytest.approx(-log_sigmoid(0.5 * 1 - 0.25))
    assert value("cpo") == pytest.approx(-log_sigmoid(0.5 * 2))
    odds = [math.exp(mean) / (1 - math.exp(mean)) for mean in (-2, -3)]
    assert value("orpo") == pytest.approx(-0.5 * log_sigmoid(math.log(odds[0] / odds[1])), rel=1e-5)


def test_no_preference_yet_costs_log_two_and_robust_is_unbiased():
    even = pairs(-11.0, -11.0)
    assert float(LOSSES["sigmoid"].of(even, Options(0.1))) == pytest.approx(LOG2)
    # Mean over labels that are flipped with probability e is the loss of the true labels.
    true, flipped = pairs(-10.0, -12.0), pairs(-12.0, -10.0)
    options = Options(0.5, label_smoothing=0.2)
    mean = 0.8 * LOSSES["robust"].of(true, options) + 0.2 * LOSSES["robust"].of(flipped, options)
    assert float(mean) == pytest.approx(float(LOSSES["sigmoid"].of(true, Options(0.5))), rel=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_better_chosen_side_is_cheaper(name):
    found = pairs(-11.0, -11.0, tokens=(5.0, 5.0))
    found.chosen_P.requires_grad_()
    found.rejected_P.requires_grad_()
    LOSSES[name].of(found, Options(LOSSES[name].beta)).sum().backward()
    assert float(found.chosen_P.grad) < 0 < float(found.rejected_P.grad)


@pytest.mark.parametrize("mean", [-1e-6, -1e-3, -0.6931, -0.7, -5.0, -30.0])
def test_log1mexp_keeps_its_digits(mean):
    x = torch.tensor(mean, requires_grad=True)
    wide = torch.tensor(mean, dtype=torch.float64, requires_grad=True)
    exact = torch.log(-torch.expm1(wide))
    assert float(_log1mexp(x)) == pytest.approx(float(exact), rel=1e-5, abs=1e-12)
    _log1mexp(x).backward()
    exact.backward()
    assert float(x.grad) == pytest.approx(float(wide.grad), rel=1e-3)


def test_certain_completions_give_finite_losses_and_gradients():
    certain = pairs(0.0, -1e4)
    certain.chosen_P.requires_grad_()
    certain.rejected_P.requires_grad_()
    for name, loss in LOSSES.items():
        total = loss.of(certain, Options(loss.beta)).sum()
        total.backward()
        assert math.isfinite(float(total)), name
        assert bool(torch.isfinite(certain.chosen_P.grad).all()), name
