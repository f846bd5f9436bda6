from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_train.advantages import group_advantages

NAN = math.nan


def advantages(rows, **kwargs):
    return group_advantages(torch.tensor(rows, dtype=torch.float64), **kwargs)


def test_hand_worked_group():
    # mean 0.5, sample deviation sqrt(4 * 0.25 / 3) = 1 / sqrt(3)
    found = advantages([[1, 0, 0, 1]])
    assert torch.allclose(found.advantages_P_G, torch.tensor([[1, -1, -1, 1]]).double() * 0.5 * math.sqrt(3))
    assert found.counted_P_G.all()


def test_mean_only_and_batch_scale():
    rows = [[1, 0, 0, 0], [2, 0, 2, 0]]
    plain = advantages(rows, scale_rewards="none").advantages_P_G
    assert torch.equal(plain, torch.tensor([[0.75, -0.25, -0.25, -0.25], [1, -1, 1, -1]]).double())
    deviation = torch.tensor(rows).double().flatten().std()
    assert torch.allclose(advantages(rows, scale_rewards="batch").advantages_P_G, plain / deviation)


def test_equal_rewards_leave_the_loss_whatever_their_value():
    found = advantages([[1, 1, 1], [0, 0, 0], [0.1, 0.1, 0.1], [1, 0, 1]])
    assert found.zero_variance_groups == 3
    assert found.counted_P_G.tolist() == [[False] * 3] * 3 + [[True] * 3]
    assert (found.advantages_P_G[:3] == 0).all()


def test_equality_is_exact_and_not_a_threshold():
    tiny_difference = [[0.5, 0.5 + 1e-12, 0.5, 0.5]]
    assert advantages(tiny_difference).zero_variance_groups == 0
    assert torch.isfinite(advantages(tiny_difference).advantages_P_G).all()
    # A mean that is not representable leaves a residue; equal rewards are equal all the same.
    assert advantages([[0.1] * 7], scale_rewards="none").zero_variance_groups == 1


def test_unscorable_completions_are_no_zeros():
    found = advantages([[1, NAN, 0, NAN], [NAN, NAN, 1, NAN], [NAN] * 4, [1, 1, NAN, 1]])
    assert found.counted_P_G.tolist() == [[True, False, True, False], [False] * 4, [False] * 4, [False] * 4]
    assert torch.allclose(found.advantages_P_G[0], torch.tensor([1, 0, -1, 0]).double() / math.sqrt(2))
    assert (found.short_groups, found.zero_variance_groups) == (2, 1)
    assert torch.isfinite(found.advantages_P_G).all()


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, NAN]), min_size=4, max_size=4), min_size=1, max_size=5),
       st.sampled_from(["group", "batch", "none"]), st.permutations(range(4)))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_laws(rows, scale, order):
    found = advantages(rows, scale_rewards=scale)
    assert torch.isfinite(found.advantages_P_G).all()
    assert torch.allclose(found.advantages_P_G.sum(1), torch.zeros(len(rows)).double(), atol=1e-9)  # centred
    shifted = advantages([[r + 3 for r in row] for row in rows], scale_rewards=scale)
    assert torch.allclose(shifted.advantages_P_G, found.advantages_P_G, atol=1e-9)
    permuted = advantages([[row[i] for i in order] for row in rows], scale_rewards=scale)
    assert torch.allclose(permuted.advantages_P_G, found.advantages_P_G[:, list(order)], atol=1e-9)
    assert torch.equal(found.counted_P_G.any(1), found.counted_P_G.sum(1) >= 2)
    if scale == "group":
        doubled = advantages([[r * 2 for r in row] for row in rows], scale_rewards=scale)
        assert torch.allclose(doubled.advantages_P_G, found.advantages_P_G, atol=1e-9)
