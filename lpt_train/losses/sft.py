"""The supervised loss: negative log-likelihood per supervised token of an optimizer step.

Axes: `B` rows, `T` tokens.
"""

from __future__ import annotations

import torch


def sft_loss(logp_B_T: torch.Tensor, loss_mask_B_T: torch.Tensor, denominator: float | torch.Tensor) -> torch.Tensor:
    """`-sum(mask * logp) / denominator`, a float32 scalar, in nats per token.

    `denominator` is the number of supervised tokens of the whole optimizer step, over its micro-batches and ranks: so
    the sum of the losses of the micro-batches is the loss of the step, however it was cut into them.
    """
    return -(logp_B_T.float() * loss_mask_B_T).sum() / denominator
