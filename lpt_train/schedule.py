"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

from lpt_train.config import Optim
from manifests.errors import UsageError

WSD = "warmup_stable_decay"


def multiplier(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    kind: str = "linear",
    min_lr_rate: float = 0.0,
    decay_steps: int = 0,
    decay_type: str = "cosine",
) -> float:
    """What the peak learning rate is multiplied by in optimizer step `step` (counted from 0).

    Linear warm-up over `warmup_steps`, then constant, or linear or cosine down to 0 (`cosine_with_min_lr`: to
    `min_lr_rate`) at `total_steps`; `warmup_stable_decay` is constant until `decay_steps` before the end and falls to
    `min_lr_rate`, from which its warm-up begins too. The same numbers as the schedules of those names in transformers.
    """
    if step < warmup_steps:
        low = min_lr_rate if kind == WSD else 0.0
        return low + (1.0 - low) * step / warmup_steps
    if kind == "constant":
        return 1.0
    start = total_steps - decay_steps if kind == WSD else warmup_steps
    progress = min(1.0, max(0, step - start) / max(1, total_steps - start))
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return _fall("cosine", progress)
    if kind in ("cosine_with_min_lr", WSD):
        shape = decay_type if kind == WSD else "cosine"
        return min_lr_rate + (1.0 - min_lr_rate) * _fall(shape, progress)
    raise ValueError(f"no schedule {kind!r}")


def schedule_of(optim: Optim, total_steps: int) -> Callable[[int], float]:
    """`multiplier` as a function of the step alone, for a run of `total_steps` with these options.

    Raises `UsageError` when warm-up and decay are longer than the run.
    """
    warmup = optim.warmup_steps or math.ceil(optim.warmup_ratio * total_steps)
    start = decay_start(optim, total_steps)
    if start is not None and warmup > start:
        raise UsageError(
            "the warm-up and the decay are longer than the run",
            seen=f"{warmup} + {total_steps - start} of {total_steps} steps",
            next="lower warmup_steps or num_decay_steps, or make the run longer with max_steps",
        )

    def at(step: int) -> float:
        return multiplier(
            step, total_steps=total_steps, warmup_steps=warmup, kind=optim.lr_scheduler_type,
            min_lr_rate=optim.min_lr_rate, decay_steps=0 if start is None else total_steps - start,
            decay_type=optim.decay_type,
        )  # fmt: skip

    return at


def decay_start(optim: Optim, total_steps: int) -> int | None:
    """The step at which the stable phase of `warmup_stable_decay` ends; None for the other schedules."""
    if optim.lr_scheduler_type != WSD:
        return None
    return total_steps - (optim.num_decay_steps or math.ceil(optim.decay_ratio * total_steps))


def rates_sha256(multiplier: Callable[[int], float], steps: int) -> str:
    """The digest of what the first `steps` steps multiplied the peak rate by: equal where a longer run begins alike."""
    return hashlib.sha256(" ".join(repr(multiplier(step)) for step in range(steps)).encode()).hexdigest()


def _fall(shape: str, progress: float) -> float:
    if shape == "linear":
        return 1.0 - progress
    if shape == "1-sqrt":
        return 1.0 - math.sqrt(progress)
    return 0.5 * (1.0 + math.cos(math.pi * progress))
