"""KTO in float32 against its formula in float64: values and gradients."""

from __future__ import annotations

import pytest
import torch

from lpt_train.losses.kto import kl_estimate, kto


def in_words(ratio_S, good_S, point, beta, good_weight, bad_weight):
    """The loss completion by completion, as in eq. 7 and 8 of the paper."""
    found = []
    for ratio, good in zip(ratio_S, good_S.tolist(), strict=True):
        gain = ratio - point if good else point - ratio
        found.append((good_weight if good else bad_weight) * (1 - 1 / (1 + torch.exp(-beta * gain))))
    return torch.stack(found)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("shift", [-3.0, 2.0], ids=["no distance", "a distance"])
def test_value_and_gradient_are_those_of_the_formula_in_float64(beta, shift):
    torch.manual_seed(0)
    ratios, others, good_S = 8 * torch.randn(64), torch.randn(64) + shift, torch.rand(64) > 0.5
    ratio_S, exact_S = ratios.clone().requires_grad_(), ratios.double().requires_grad_()
    apart_S = others.clone().requires_grad_()
    ours = kto(ratio_S, good_S, kl_estimate(apart_S), beta=beta, desirable_weight=1.5, undesirable_weight=0.7)
    exact = in_words(exact_S, good_S, max(0.0, float(others.double().mean())), beta, 1.5, 0.7)
    ours.sum().backward()
    exact.sum().backward()
    assert ours.dtype is torch.float32
    assert (float(kl_estimate(others)) > 0) is (shift > 0)
    torch.testing.assert_close(ours.detach().double(), exact.detach(), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(ratio_S.grad.double(), exact_S.grad, rtol=2e-5, atol=2e-6)
    assert apart_S.grad is None  # the estimate is not differentiated
