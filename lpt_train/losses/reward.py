"""Losses of reward models: pure functions of rewards in float32, one value a pair or a prompt.

Axes: `P` pairs, `G` prompts, `K` places of a ranking. Rewards have no unit and no origin: only differences count.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def bradley_terry(
    chosen_P: torch.Tensor, rejected_P: torch.Tensor, margin_P: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """-log s(chosen - rejected - margin) [P] (Bradley and Terry 1952; with a margin Touvron et al. 2023, eq. 2)."""
    return -logsigmoid(chosen_P - rejected_P - margin_P)


def centering(chosen_P: torch.Tensor, rejected_P: torch.Tensor) -> torch.Tensor:
    """(chosen + rejected)^2 [P], which holds the mean reward near 0 (Eisenstein et al. 2023, eq. 2)."""
    return (chosen_P + rejected_P) ** 2


def plackett_luce(rewards_G_K: torch.Tensor, mask_G_K: torch.Tensor) -> torch.Tensor:
    """-log p [G] of rankings, best first: sum over the places k of log sum_{j >= k} exp r_j - r_k (Plackett 1975).

    `mask_G_K` is 1 on the places of a ranking and 0 behind them. Two places are `bradley_terry` without a margin.
    """
    kept_G_K = mask_G_K.bool()
    low = torch.finfo(rewards_G_K.dtype).min  # not -inf: the gradient of a sum of nothing would be NaN
    filled_G_K = torch.where(kept_G_K, rewards_G_K, torch.full_like(rewards_G_K, low))
    rest_G_K = filled_G_K.flip(1).logcumsumexp(1).flip(1)
    return torch.where(kept_G_K, rest_G_K - rewards_G_K, torch.zeros_like(rewards_G_K)).sum(1)
