"""Losses of reward models: values by hand, float64, directions of gradients, and what they must not depend on."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lpt_train.losses.reward import bradley_terry, centering, plackett_luce


def wide(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_bradley_terry_by_hand():
    # Differences 1, 0 and -2; with a margin of 1 the first two are 0 and -1.
    chosen, rejected = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, 2.0])
    assert bradley_terry(chosen, rejected).tolist() == pytest.approx(
        [math.log1p(math.exp(-1)), math.log(2), math.log1p(math.exp(2))]
    )
    with_margin = bradley_terry(chosen, rejected, torch.tensor([1.0, 1.0, 0.0]))
    assert with_margin.tolist() == pytest.approx([math.log(2), math.log1p(math.exp(1)), math.log1p(math.exp(2))])


def test_only_differences_count_until_rewards_are_centred():
    chosen, rejected = torch.tensor([3.0, 1.0]), torch.tensor([2.0, -1.0])
    assert bradley_terry(chosen + 7, rejected + 7).tolist() == bradley_terry(chosen, rejected).tolist()
    assert centering(chosen, rejected).tolist() == [25.0, 0.0]
    assert centering(chosen - 2.5, rejected - 2.5)[0] == 0


@pytest.mark.parametrize("gap", [-1e4, -30.0, -1e-3, 0.0, 1e-3, 30.0, 1e4])
def test_values_and_gradients_are_those_of_float64_and_finite(gap):
    narrow = [torch.tensor([value], requires_grad=True) for value in (gap, 0.0)]
    exact = [wide(gap), wide(0.0)]
    for one in (narrow, exact):
        bradley_terry(one[0], one[1], 0.5).sum().backward()
    assert float(bradley_terry(*narrow, 0.5)) == pytest.approx(float(bradley_terry(*exact, 0.5)), rel=1e-6, abs=1e-30)
    for mine, theirs in zip(narrow, exact, strict=True):
        assert float(mine.grad) == pytest.approx(float(theirs.grad), rel=1e-5, abs=1e-30)


def test_a_better_chosen_side_is_cheaper():
    chosen, rejected = wide(0.2), wide(0.1)
    bradley_terry(chosen, rejected).sum().backward()
    assert float(chosen.grad) < 0 < float(rejected.grad)
    assert float(chosen.grad) == -float(rejected.grad)  # the mean reward is not moved


def test_plackett_luce_by_hand():
    # First 2 out of {2, 1, 0}, then 1 out of {1, 0}; the last place is certain.
    rewards, mask = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1, 3)
    first = math.log(math.exp(2) + math.exp(1) + 1) - 2
    second = math.log(math.exp(1) + 1) - 1
    assert float(plackett_luce(rewards, mask)) == pytest.approx(first + second)


def test_a_ranking_of_two_is_a_pair_and_the_filler_behind_it_nothing():
    rewards = torch.tensor([[1.5, -0.5, 99.0], [0.0, 1.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found = plackett_luce(rewards, mask)
    pair = bradley_terry(torch.tensor([1.5]), torch.tensor([-0.5]))
    assert float(found[0]) == pytest.approx(float(pair))
    found.sum().backward()
    assert rewards.grad[0, 2] == 0
    assert bool(torch.isfinite(rewards.grad).all())


def test_plackett_luce_is_a_distribution_over_orders():
    rewards = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    orders = torch.stack([rewards[list(order)] for order in itertools.permutations(range(4))])
    assert float(torch.exp(-plackett_luce(orders, torch.ones_like(orders))).sum()) == pytest.approx(1.0)


def test_plackett_luce_gradient_is_that_of_float64():
    values = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)) * 3
    mask = torch.ones(5, 6)
    mask[1, 4:] = 0
    mask[3, 2:] = 0
    narrow, exact = values.clone().requires_grad_(), values.double().requires_grad_()
    for one in (narrow, exact):
        plackett_luce(one, mask).sum().backward()
    assert torch.allclose(narrow.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)
    assert torch.autograd.gradcheck(lambda r: plackett_luce(r, mask), values.double().requires_grad_())
