"""Rewards of a group to advantages, in float64. Axes: `P` prompts, `G` completions a prompt.

A group whose scorable rewards are all equal says nothing about which completion is better. Whether they are equal is a
discrete fact and is tested as one (largest == smallest), never as a standard deviation under some epsilon: a float
residue divided by a float residue would be an advantage of order one. Such groups, groups with fewer than two
scorable completions and unscorable completions are not counted: they leave the numerator and the denominator of the
loss.

Left out: leave-one-out (with `scale_rewards="none"` it is the same advantage times G / (G - 1), a learning rate).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GroupAdvantages:
    """`advantages_P_G` float64, 0 where not counted; `counted_P_G` bool; how many groups were left out, and why."""

    advantages_P_G: torch.Tensor
    counted_P_G: torch.Tensor
    zero_variance_groups: int
    short_groups: int  # fewer than two scorable completions


def group_advantages(rewards_P_G: torch.Tensor, *, scale_rewards: str = "group") -> GroupAdvantages:
    """Reward minus the mean of its group, divided by a standard deviation of rewards.

    `rewards_P_G` holds NaN where a completion could not be scored. `scale_rewards` is `group` (deviation of the
    group, as in DeepSeekMath, arXiv 2402.03300, eq. 1's text), `batch` (deviation over all scorable rewards) or
    `none` (Dr. GRPO, arXiv 2503.20783). Deviations are the sample's (n - 1), as TRL's; no epsilon is added, for
    counted groups need none.
    """
    rewards_P_G = rewards_P_G.double()
    scorable_P_G = ~rewards_P_G.isnan()
    n_P = scorable_P_G.sum(1)
    highest_P = rewards_P_G.masked_fill(~scorable_P_G, -torch.inf).amax(1)
    lowest_P = rewards_P_G.masked_fill(~scorable_P_G, torch.inf).amin(1)
    short_P = n_P < 2
    constant_P = ~short_P & (highest_P == lowest_P)
    counted_P_G = scorable_P_G & ~(short_P | constant_P)[:, None]

    filled_P_G = rewards_P_G.masked_fill(~scorable_P_G, 0.0)
    mean_P = filled_P_G.sum(1) / n_P.clamp(min=1)
    centred_P_G = (filled_P_G - mean_P[:, None]).masked_fill(~counted_P_G, 0.0)
    if scale_rewards == "group":
        std_P = (centred_P_G.square().sum(1) / (n_P - 1).clamp(min=1)).sqrt()
        scale_P = torch.where(short_P | constant_P, torch.ones_like(std_P), std_P)
        advantages_P_G = centred_P_G / scale_P[:, None]
    elif scale_rewards == "batch" and bool(counted_P_G.any()):
        advantages_P_G = centred_P_G / rewards_P_G[scorable_P_G].std()
    else:
        advantages_P_G = centred_P_G
    return GroupAdvantages(advantages_P_G, counted_P_G, int(constant_P.sum()), int(short_P.sum()))
