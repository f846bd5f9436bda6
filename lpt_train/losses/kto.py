"""KTO: a loss over single completions that are marked good or bad (Ethayarajh et al. 2024, eq. 7 and 8).

Axis: `S` completions.
"""

from __future__ import annotations

import torch


def kto(
    ratio_S: torch.Tensor,
    desirable_S: torch.Tensor,
    reference_point: torch.Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> torch.Tensor:
    """`w_D (1 - s(beta (ratio - z)))` of good completions and `w_U (1 - s(beta (z - ratio)))` of bad ones.

    `ratio_S` is log(pi/ref) of each completion (nats, summed over its tokens), `desirable_S` whether it is good, and
    `reference_point` z an estimate of KL(pi || ref), at least 0 and not differentiated: see `kl_estimate`.
    """
    signed = torch.where(desirable_S, ratio_S - reference_point, reference_point - ratio_S)
    weight = torch.where(desirable_S, desirable_weight, undesirable_weight)
    return weight * (1 - torch.sigmoid(beta * signed))


def kl_estimate(mismatched_ratio_S: torch.Tensor) -> torch.Tensor:
    """max(0, mean of log(pi/ref)) over prompts with the completion of another prompt: a scalar without gradient.

    Completions of their own prompts would make the estimate rise with what is being trained.
    """
    return mismatched_ratio_S.detach().mean().clamp(min=0)
