"""Arithmetic of training: FLOPs, GPU hours, cost, and how many tokens a model of a size asks for.

A parameter of a matrix costs two operations a token in the forward pass, and four in the backward pass: two for the
gradient of the input, two for its own (Kaplan et al. 2020, arXiv 2001.08361, 2.1: C = 6 N D). Under LoRA the base has
no gradient of its own, so that two of the six fall away: 4 N D, and 6 for the few values of the adapter; the inputs'
gradients are needed all the way down, which is why it is no less. Causal attention over c tokens multiplies queries
with keys and scores with values, on average over half of them: 2 c a a layer and token forward, twice that backward
(Chowdhery et al. 2022, arXiv 2204.02311, appendix B, halved).

MFU counts these and nothing done twice; a layer that is computed again costs its forward pass once more in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lpt_train.plan.gpus import GPU
from lpt_train.plan.shape import ModelShape

CHINCHILLA = 20  # tokens a parameter: Hoffmann et al. 2022 (arXiv 2203.15556), the round figure of tables 3 and A9


@dataclass(frozen=True)
class Flops:
    """Operations a token: of the model (what MFU counts), and with what is done more than once."""

    forward: float
    model: float
    hardware: float


def flops_per_token(
    shape: ModelShape, *, context: int, scope: str = "full", adapter: int = 0, checkpoint_every: int = 0,
    references: int = 0,
) -> Flops:  # fmt: skip
    """Operations of one training token that sees `context` tokens of its row; `adapter` values train beside the base.

    `references` are forward passes of other models over the same tokens (a reference, a reward model).
    """
    seen = min(context, shape.window) if shape.window else context
    attention = 2.0 * shape.layers * shape.query * seen
    products = 2.0 * shape.active_parameters
    forward = products + attention + 2.0 * adapter
    backward = (2.0 if scope == "full" else 1.0) * products + 2.0 * attention + 4.0 * adapter
    others = references * (products + attention)
    again = forward * (1 / checkpoint_every if checkpoint_every else 0)
    return Flops(forward, forward + backward + others, forward + backward + others + again)


def plan_compute(
    shape: ModelShape,
    tokens: float,
    *,
    gpu: GPU,
    gpus: int = 1,
    mfu: float = 0.3,
    price: float | None = None,
    context: int = 1024,
    scope: str = "full",
    adapter: int = 0,
    checkpoint_every: int = 0,
    references: int = 0,
) -> dict[str, Any]:
    """What training on `tokens` takes on `gpus` GPUs at a share `mfu` of their peak; `price` is per GPU hour."""
    flops = flops_per_token(
        shape, context=context, scope=scope, adapter=adapter, checkpoint_every=checkpoint_every, references=references
    )  # fmt: skip
    again = flops.hardware / flops.model
    rate = gpu.teraflops * 1e12 * mfu / flops.hardware * gpus
    hours = tokens / rate * gpus / 3600
    wanted = CHINCHILLA * shape.parameters
    return {
        "parameters": shape.parameters, "tokens": tokens, "scope": scope,
        "flops_per_token": flops.model, "flops_per_token_and_parameter": flops.model / shape.parameters,
        "flops": flops.model * tokens, "computed_again": again - 1, "gpu": gpu.name, "gpus": gpus,
        "peak_flops_per_second": gpu.teraflops * 1e12, "mfu": mfu, "tokens_per_second": rate, "gpu_hours": hours,
        "hours": hours / gpus, "cost": None if price is None else hours * price,
        "chinchilla_tokens": wanted, "tokens_per_parameter": tokens / shape.parameters,
        "over_training": tokens / wanted,
    }  # fmt: skip
