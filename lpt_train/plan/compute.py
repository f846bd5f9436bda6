"""Arithmetic of training: FLOPs, GPU hours, cost, and how many tokens a model of a size asks for.

What counts is as in the measured MFU of a run (`lpt_train.flops`): C = 6 N D and attention (Kaplan et al. 2020, arXiv
2001.08361, 2.1), 4 N D under LoRA, whose base needs its inputs' gradients all the way down but none of its own. So the
MFU that a run has measured can be given to a plan. What is computed again to save memory is no part of it: a run that
does so has a lower MFU, and its hours follow from that alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lpt_train.flops import attention_backward, attention_forward, matrix_backward, matrix_forward
from lpt_train.plan.gpus import GPU
from lpt_train.plan.shape import ModelShape

CHINCHILLA = 20  # tokens a parameter: Hoffmann et al. 2022 (arXiv 2203.15556), the round figure of tables 3 and A9

# Parameters and MFU of packed SFT under LoRA, bfloat16, 16 rows of 1,024 tokens, recorded, on one H200:
# benchmarks/results/train-sft-135m-h200.json and train-sft-05b-h200.json.
MEASURED_MFU = ((134_515_008, 0.152), (494_032_768, 0.272))
MFU_RANGE = (0.093, 0.313)  # of all recorded steps measured there: DPO at 135M, and micro-batches of SFT at 0.5B


@dataclass(frozen=True)
class Flops:
    """Operations a token: of the model (what MFU counts), and with what is done more than once."""

    forward: float
    model: float
    hardware: float


def flops_per_token(
    shape: ModelShape, *, context: int, scope: str = "full", adapter: int = 0, checkpoint_every: int = 0,
    references: int = 0, head_share: float = 1.0,
) -> Flops:  # fmt: skip
    """Operations of one training token that sees `context` tokens of its row; `adapter` values train beside the base.

    `references` are forward passes of other models over the same tokens (a reference, a reward model); `head_share` is
    that of the tokens that the vocabulary head is applied to.
    """
    seen = min(context, shape.window) if shape.window else context
    values = shape.linear_parameters + head_share * shape.vocabulary * shape.hidden
    alone = matrix_forward(values) + seen * attention_forward(shape.layers, shape.query)
    forward = alone + matrix_forward(adapter)
    backward = (
        matrix_backward(values, trained=scope == "full")
        + seen * attention_backward(shape.layers, shape.query)
        + matrix_backward(adapter, trained=True)
    )
    others = references * alone
    again = forward * (1 / checkpoint_every if checkpoint_every else 0)
    return Flops(forward, forward + backward + others, forward + backward + others + again)


def usual_mfu(parameters: int) -> float:
    """The MFU measured at this size: between two, by the logarithm of their sizes; beyond them, that of the nearest."""
    (small, low), (large, high) = MEASURED_MFU
    share = math.log(parameters / small) / math.log(large / small)
    return low + (high - low) * min(1.0, max(0.0, share))


def plan_compute(
    shape: ModelShape,
    tokens: float,
    *,
    gpu: GPU,
    gpus: int = 1,
    mfu: float | None = None,
    price: float | None = None,
    context: int = 1024,
    scope: str = "full",
    adapter: int = 0,
    checkpoint_every: int = 0,
    references: int = 0,
    head_share: float = 1.0,
) -> dict[str, Any]:
    """What training on `tokens` takes on `gpus` GPUs at a share `mfu` of their peak; `price` is per GPU hour.

    Without `mfu` it is `usual_mfu`, and `mfu_measured` says between what it was measured; else that is None.
    `computed_again` is what the device does beyond the counted operations, as a share of them; `mfu` has it in it.
    """
    flops = flops_per_token(
        shape, context=context, scope=scope, adapter=adapter, checkpoint_every=checkpoint_every, references=references,
        head_share=head_share,
    )  # fmt: skip
    again, given = flops.hardware / flops.model, mfu is not None
    mfu = usual_mfu(shape.parameters) if mfu is None else mfu
    rate = gpu.teraflops * 1e12 * mfu / flops.model * gpus
    hours = tokens / rate * gpus / 3600
    wanted = CHINCHILLA * shape.parameters
    return {
        "parameters": shape.parameters, "tokens": tokens, "context": context, "scope": scope,
        "flops_per_token": flops.model, "flops_per_token_and_parameter": flops.model / shape.parameters,
        "flops": flops.model * tokens, "computed_again": again - 1, "gpu": gpu.name, "gpus": gpus,
        "peak_flops_per_second": gpu.teraflops * 1e12, "mfu": mfu, "mfu_measured": None if given else MFU_RANGE,
        "tokens_per_second": rate, "gpu_hours": hours, "hours": hours / gpus,
        "cost": None if price is None else hours * price,
        "chinchilla_tokens": wanted, "tokens_per_parameter": tokens / shape.parameters,
        "over_training": tokens / wanted,
    }  # fmt: skip
