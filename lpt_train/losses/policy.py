"""The clipped policy objective of the GRPO family, as pure functions in float32. Axes: `B` rows, `T` tokens.

    ratio = p(token | theta) / p(token | sampling policy)
    token loss = -min(ratio * A, clip(ratio, 1 - eps_low, 1 + eps_high) * A)  [+ beta * KL estimate]

The ratio is against the policy that sampled; the reference model belongs to the KL alone. `loss_type` only says
which weight a counted token has in the step, and every weight is taken over the whole optimizer step (`StepCounts`),
so that the sum of the losses of micro-batches is the loss of the step, however it was cut into them:

    dapo     1 / tokens of the step                        every token weighs the same (arXiv 2503.14476)
    bnpo     as dapo: its local batch is here the step
    grpo     1 / (rows of the step * tokens of the row)    every row weighs the same, tokens of long rows less
    dr_grpo  1 / (rows of the step * max_completion_length)  a constant (arXiv 2503.20783)

Left out: sequence-level ratios (GSPO, GMPO), CISPO, two-sided clipping.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepCounts:
    """What one optimizer step counts, over its micro-batches and ranks: tokens with mask 1, rows with any such
    token."""

    tokens: float
    rows: float
    max_completion_length: int = 0  # tokens; used by dr_grpo


@dataclass(frozen=True)
class PolicyLoss:
    """A scalar to call backward on, and sums over counted tokens (divide by the step's tokens for means)."""

    loss: torch.Tensor
    clipped_low: torch.Tensor  # tokens with A < 0 whose ratio fell under 1 - eps_low: no gradient
    clipped_high: torch.Tensor  # tokens with A > 0 whose ratio rose over 1 + eps_high: no gradient
    ratio_kl: torch.Tensor  # sum of (ratio - 1) - log ratio: KL(sampling policy || policy), estimated
    reference_kl: torch.Tensor  # sum of ratio * k3; 0 without a reference


def token_weights(mask_B_T: torch.Tensor, counts: StepCounts, loss_type: str) -> torch.Tensor:
    """What each token's loss is multiplied by; see the module's docstring. Over a step with dapo or grpo they sum to
    1."""
    mask_B_T = mask_B_T.float()
    if loss_type in ("dapo", "bnpo"):
        return mask_B_T / counts.tokens
    if loss_type == "grpo":
        return mask_B_T / mask_B_T.sum(1, keepdim=True).clamp(min=1.0) / counts.rows
    if loss_type == "dr_grpo":
        return mask_B_T / (counts.rows * counts.max_completion_length)
    raise ValueError(f"no loss type {loss_type!r}")


def k3(logp_B_T: torch.Tensor, ref_logp_B_T: torch.Tensor) -> torch.Tensor:
    """(r - 1) - log r with r = p_ref / p: never negative; its mean over tokens sampled from p is KL(p || p_ref).

    Its gradient is not the KL's (it is that of the KL the other way round), so it is never used in a loss alone:
    multiplied by the ratio p / p_sampling, with that ratio's gradient, both its mean and the mean of its gradient
    are exact.
    """
    log_r_B_T = ref_logp_B_T - logp_B_T
    return torch.exp(log_r_B_T) - 1.0 - log_r_B_T


def policy_loss(
    logp_B_T: torch.Tensor,
    old_logp_B_T: torch.Tensor | None,
    advantages_B: torch.Tensor,
    mask_B_T: torch.Tensor,
    counts: StepCounts,
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    loss_type: str = "dapo",
    ref_logp_B_T: torch.Tensor | None = None,
    beta: float = 0.0,
) -> PolicyLoss:
    """The share of one micro-batch in the loss of its optimizer step.

    `old_logp_B_T` are the log-probs recorded when the tokens were sampled; None says that the sampling policy is
    this very one (a single on-policy update): the ratio is then 1, with its gradient. Values where the mask is 0 are
    ignored, NaN included. Gradients flow into `logp_B_T` alone.
    """
    counted_B_T = mask_B_T.bool()
    logp_B_T = logp_B_T.float().masked_fill(~counted_B_T, 0.0)
    old_B_T = (
        logp_B_T.detach() if old_logp_B_T is None else old_logp_B_T.detach().float().masked_fill(~counted_B_T, 0.0)
    )
    advantages_B_1 = advantages_B.float()[:, None]

    log_ratio_B_T = logp_B_T - old_B_T
    ratio_B_T = torch.exp(log_ratio_B_T)
    low, high = 1.0 - epsilon, 1.0 + (epsilon if epsilon_high is None else epsilon_high)
    surrogate_B_T = torch.minimum(ratio_B_T * advantages_B_1, ratio_B_T.clamp(low, high) * advantages_B_1)
    loss_B_T = -surrogate_B_T

    kl_B_T = torch.zeros_like(logp_B_T)
    if ref_logp_B_T is not None:
        kl_B_T = ratio_B_T * k3(logp_B_T, ref_logp_B_T.detach().float().masked_fill(~counted_B_T, 0.0))
        loss_B_T = loss_B_T + beta * kl_B_T

    with torch.no_grad():
        clipped_low = counted_B_T & (ratio_B_T < low) & (advantages_B_1 < 0)
        clipped_high = counted_B_T & (ratio_B_T > high) & (advantages_B_1 > 0)
        ratio_kl = ((ratio_B_T - 1.0 - log_ratio_B_T) * counted_B_T).sum()
    return PolicyLoss(
        loss=(loss_B_T * token_weights(mask_B_T, counts, loss_type)).sum(),
        clipped_low=clipped_low.sum(),
        clipped_high=clipped_high.sum(),
        ratio_kl=ratio_kl,
        reference_kl=(kl_B_T.detach() * counted_B_T).sum(),
    )
