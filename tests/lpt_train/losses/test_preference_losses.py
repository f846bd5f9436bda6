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


def log_s(x: torch.Tensor) -> torch.Tensor:
    return torch.log(1 / (1 + torch.exp(-x)))


def log_ratios(p: Pairs) -> torch.Tensor:
    return (p.chosen_P - p.reference_chosen_P) - (p.rejected_P - p.reference_rejected_P)


def odds(logp_P: torch.Tensor, tokens_P: torch.Tensor) -> torch.Tensor:
    mean_P = torch.exp(logp_P / tokens_P)
    return mean_P / (1 - mean_P)


# The papers' formulas as they stand there, for float64. A loss of the table that is not here fails.
EXACT = {
    "sigmoid": lambda p, o: -((1 - o.label_smoothing) * log_s(o.beta * log_ratios(p))
        + o.label_smoothing * log_s(-o.beta * log_ratios(p))),
    "robust": lambda p, o: ((1 - o.label_smoothing) * -log_s(o.beta * log_ratios(p))
        - o.label_smoothing * -log_s(-o.beta * log_ratios(p))) / (1 - 2 * o.label_smoothing),
    "hinge": lambda p, o: torch.maximum(1 - o.beta * log_ratios(p), torch.zeros_like(p.chosen_P)),
    "ipo": lambda p, o: ((p.chosen_P - p.reference_chosen_P) / p.chosen_tokens_P
        - (p.rejected_P - p.reference_rejected_P) / p.rejected_tokens_P - 0.5 / o.beta) ** 2,
    "simpo": lambda p, o: -log_s(o.beta * p.chosen_P / p.chosen_tokens_P
        - o.beta * p.rejected_P / p.rejected_tokens_P - o.simpo_gamma),
    "cpo": lambda p, o: -((1 - o.label_smoothing) * log_s(o.beta * (p.chosen_P - p.rejected_P))
        + o.label_smoothing * log_s(-o.beta * (p.chosen_P - p.rejected_P))),
    "orpo": lambda p, o: -o.beta * log_s(
        torch.log(odds(p.chosen_P, p.chosen_tokens_P) / odds(p.rejected_P, p.rejected_tokens_P))),
}  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_formula_in_float64(name, smoothing):
    torch.manual_seed(0)
    logps = [-40 * torch.rand(64) - 1 for _ in range(4)]
    tokens = [torch.randint(3, 30, (64,)).float() for _ in range(2)]
    options = Options(LOSSES[name].beta, label_smoothing=smoothing, simpo_gamma=1.0)
    found = []
    for of, dtype in ((LOSSES[name].of, torch.float32), (EXACT[name], torch.float64)):
        given = Pairs(*(value.to(dtype, copy=True) for value in (*logps, *tokens)))
        for side in (given.chosen_P, given.rejected_P):
            side.requires_grad_()
        value_P = of(given, options)
        value_P.sum().backward()
        assert value_P.dtype is dtype
        found.append([value_P.detach(), given.chosen_P.grad, given.rejected_P.grad])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-5, atol=2e-6)
        assert float(exact.abs().max()) > 1e-3


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
