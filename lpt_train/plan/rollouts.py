"""What a step of reinforcement learning costs: sampling of groups, tools, rewards, training; and which part waits.

A decoding step reads every weight once and the keys and values of every completion that still runs, multiplies each of
their tokens with the weights, and takes no less than its launches: the longest of the three is its time (the roofline
of Williams et al. 2009). Lengths are taken to fall off geometrically up to the limit, with the mean that is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lpt_train.plan.compute import MFU_RANGE, flops_per_token, usual_mfu
from lpt_train.plan.gpus import GPU
from lpt_train.plan.shape import ModelShape

_WIDTH = 2  # bytes of a weight and of a key or value: bfloat16


@dataclass(frozen=True)
class Rollouts:
    """Completions of one generation: `prompts` times `group`, with what is done for each; times in seconds."""

    prompts: int = 32
    group: int = 8
    prompt_tokens: int = 256
    tokens: float = 256.0  # of a completion, on average
    max_tokens: int = 1024
    tool_calls: float = 0.0  # of a completion, on average
    tool_seconds: float = 0.0  # of one call
    tool_workers: int = 8
    reward_seconds: float = 0.01  # of one completion
    reward_workers: int = 2
    step_seconds: float = 0.025  # the least that a decoding step takes: launches of its kernels

    @property
    def completions(self) -> int:
        """How many."""
        return self.prompts * self.group


def survival(mean: float, longest: int) -> float:
    """The share of completions that go on after each token, so that their mean length, cut at `longest`, is `mean`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        length = longest if middle == 1 else (1 - middle**longest) / (1 - middle)
        low, high = (middle, high) if length < mean else (low, middle)
    return (low + high) / 2


def decode_step(shape: ModelShape, gpu: GPU, rows: float, context: float, least: float) -> tuple[float, str]:
    """(seconds, what bounds them) of one decoding step of `rows` completions with `context` tokens behind each."""
    seen = min(context, shape.window) if shape.window else context
    weights = _WIDTH * shape.active_parameters / (gpu.terabytes_per_second * 1e12)
    cache = rows * seen * shape.kv_bytes_per_token(_WIDTH) / (gpu.terabytes_per_second * 1e12)
    arithmetic = rows * flops_per_token(shape, context=int(seen)).forward / (gpu.teraflops * 1e12)
    reading = "weights" if weights > cache else "key-value cache"
    return max((weights + cache, reading), (arithmetic, "arithmetic"), (least, "launches"))


def plan_rollouts(
    shape: ModelShape,
    rollouts: Rollouts,
    *,
    gpu: GPU,
    mfu: float | None = None,
    scope: str = "full",
    adapter: int = 0,
    references: int = 0,
    price: float | None = None,
) -> dict[str, Any]:
    """Seconds of each part of a generation and its training on one GPU, one after the other, and what bounds each.

    Without `mfu` it is `usual_mfu`, as in `plan_compute`.
    """
    given, mfu = mfu is not None, usual_mfu(shape.parameters) if mfu is None else mfu
    peak, many = gpu.teraflops * 1e12 * mfu, rollouts.completions
    go_on = survival(rollouts.tokens, rollouts.max_tokens)
    decode = fixed = 0.0
    bounds: dict[str, float] = {}
    for position in range(rollouts.max_tokens):
        context, running = rollouts.prompt_tokens + position, many * go_on**position
        if running < 0.5:
            break
        seconds, bound = decode_step(shape, gpu, running, context, rollouts.step_seconds)
        decode += seconds
        bounds[bound] = bounds.get(bound, 0.0) + seconds
        fixed += decode_step(shape, gpu, many, context, rollouts.step_seconds)[0]
    row, longest = rollouts.prompt_tokens + rollouts.tokens, rollouts.prompt_tokens + rollouts.max_tokens
    flops = flops_per_token(shape, context=math.ceil(row), scope=scope, adapter=adapter)
    parts = {
        "prompts": (rollouts.prompts * rollouts.prompt_tokens * flops.forward / peak, "arithmetic"),
        "decoding": (decode, max(bounds, key=lambda name: bounds[name])),
        "tools": (many * rollouts.tool_calls * rollouts.tool_seconds / rollouts.tool_workers, "workers"),
        "rewards": (many * rollouts.reward_seconds / rollouts.reward_workers, "workers"),
        "references": (references * many * row * flops.forward / peak, "arithmetic"),
        "training": (many * row * flops.model / peak, "arithmetic"),
    }  # fmt: skip
    total = sum(seconds for seconds, _ in parts.values())
    idle = parts["tools"][0] + parts["rewards"][0]
    return {
        "parameters": shape.parameters, "completions": many, "gpu": gpu.name, "mfu": mfu,
        "mfu_measured": None if given else MFU_RANGE,
        "parts": {
            name: {"seconds": seconds, "share": seconds / total, "bound_by": bound}
            for name, (seconds, bound) in parts.items()
        },
        "seconds": total, "gpu_waits": idle / total, "decoding_without_compaction": fixed,
        "decoded_tokens_per_second": many * rollouts.tokens / decode,
        "key_value_cache_bytes": many * longest * shape.kv_bytes_per_token(_WIDTH),
        "cost_of_1000_completions": None if price is None else total / 3600 * price / many * 1000,
    }  # fmt: skip
