"""Losses over preference pairs: pure functions of summed log-probs, one value a pair.

`h` below is the difference of log-ratios, log(pi/ref)(chosen) - log(pi/ref)(rejected); c and r are the log-probs of the
chosen and the rejected completion, a bar is the mean over the tokens of a completion. Axis: `P` pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid, relu


@dataclass(frozen=True)
class Pairs:
    """Log-probs summed over the tokens of a completion (nats) under policy and reference, and the numbers of tokens."""

    chosen_P: torch.Tensor
    rejected_P: torch.Tensor
    reference_chosen_P: torch.Tensor  # zeros where the loss has no reference
    reference_rejected_P: torch.Tensor
    chosen_tokens_P: torch.Tensor
    rejected_tokens_P: torch.Tensor

    @property
    def chosen_ratio_P(self) -> torch.Tensor:
        """log(pi / ref) of the chosen completions."""
        return self.chosen_P - self.reference_chosen_P

    @property
    def rejected_ratio_P(self) -> torch.Tensor:
        """log(pi / ref) of the rejected completions."""
        return self.rejected_P - self.reference_rejected_P

    @property
    def means_P(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs per token of the chosen and the rejected completions."""
        return self.chosen_P / self.chosen_tokens_P, self.rejected_P / self.rejected_tokens_P


@dataclass(frozen=True)
class Options:
    """What the losses take besides the pairs; each uses some of them."""

    beta: float
    label_smoothing: float = 0.0  # share of pairs whose label is taken to be wrong
    simpo_gamma: float = 0.0  # target margin of SimPO, in units of reward
    chosen_nll: float = 0.0  # weight of the supervised loss on the chosen completion (alpha of CPO, 1 in ORPO)


def sigmoid(pairs: Pairs, options: Options) -> torch.Tensor:
    """DPO: -log s(beta h), with label smoothing the cDPO mixture of both labels (Rafailov et al. 2023, eq. 7)."""
    scaled = options.beta * (pairs.chosen_ratio_P - pairs.rejected_ratio_P)
    return -(1 - options.label_smoothing) * logsigmoid(scaled) - options.label_smoothing * logsigmoid(-scaled)


def robust(pairs: Pairs, options: Options) -> torch.Tensor:
    """Unbiased under flipped labels: (-(1-e) log s(beta h) + e log s(-beta h)) / (1-2e) (Chowdhury et al. 2024)."""
    scaled, flipped = options.beta * (pairs.chosen_ratio_P - pairs.rejected_ratio_P), options.label_smoothing
    return (-(1 - flipped) * logsigmoid(scaled) + flipped * logsigmoid(-scaled)) / (1 - 2 * flipped)


def hinge(pairs: Pairs, options: Options) -> torch.Tensor:
    """max(0, 1 - beta h) (Zhao et al. 2023, SLiC)."""
    return relu(1 - options.beta * (pairs.chosen_ratio_P - pairs.rejected_ratio_P))


def ipo(pairs: Pairs, options: Options) -> torch.Tensor:
    """(h - 1/(2 beta))^2 with log-ratios per token (Azar et al. 2023, eq. 17; the mean as its authors use it)."""
    chosen = pairs.chosen_ratio_P / pairs.chosen_tokens_P
    rejected = pairs.rejected_ratio_P / pairs.rejected_tokens_P
    return (chosen - rejected - 1 / (2 * options.beta)) ** 2


def simpo(pairs: Pairs, options: Options) -> torch.Tensor:
    """-log s(beta (c̄ - r̄) - gamma), without a reference (Meng et al. 2024, eq. 6)."""
    chosen, rejected = pairs.means_P
    return -logsigmoid(options.beta * (chosen - rejected) - options.simpo_gamma)


def cpo(pairs: Pairs, options: Options) -> torch.Tensor:
    """-log s(beta (c - r)), without a reference; the supervised part is `chosen_nll` (Xu et al. 2024, eq. 4)."""
    scaled = options.beta * (pairs.chosen_P - pairs.rejected_P)
    return -(1 - options.label_smoothing) * logsigmoid(scaled) - options.label_smoothing * logsigmoid(-scaled)


def orpo(pairs: Pairs, options: Options) -> torch.Tensor:
    """-beta log s(logit(e^c̄) - logit(e^r̄)); the supervised part is `chosen_nll` (Hong et al. 2024, eq. 6 and 7).

    That part is over the reply alone: in the paper it is the likelihood of the reply given the prompt, nothing of a
    prompt is supervised anywhere here, and a long prompt would outweigh its reply. TRL's trainer takes it over prompt
    and reply, so its loss is another number; its odds-ratio part is the same.
    """
    chosen, rejected = pairs.means_P
    log_odds = (chosen - rejected) - (_log1mexp(chosen) - _log1mexp(rejected))
    return -options.beta * logsigmoid(log_odds)


def _log1mexp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - e^x) for x < 0 without cancellation (Maechler 2012); x is kept just below 0."""
    x = x.clamp(max=-1e-7)
    # Each branch is given an argument that it can take, since both are differentiated.
    near = torch.log(-torch.expm1(x.clamp(min=-0.6931)))
    far = torch.log1p(-torch.exp(x.clamp(max=-0.6931)))
    return torch.where(x > -0.6931, near, far)


@dataclass(frozen=True)
class Loss:
    """A loss of the table: its function, whether it needs the reference policy, and what its options are by default."""

    of: Callable[[Pairs, Options], torch.Tensor]
    reference: bool
    beta: float
    chosen_nll: float = 0.0


LOSSES: dict[str, Loss] = {
    "sigmoid": Loss(sigmoid, True, 0.1),
    "robust": Loss(robust, True, 0.1),
    "hinge": Loss(hinge, True, 0.1),
    "ipo": Loss(ipo, True, 0.1),
    "simpo": Loss(simpo, False, 2.0),
    "cpo": Loss(cpo, False, 0.1, chosen_nll=1.0),
    "orpo": Loss(orpo, False, 0.1, chosen_nll=1.0),
}
