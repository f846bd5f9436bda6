"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from lpt_train.config import Optim


def multiplier(step: int, *, total_steps: int, warmup_steps: int = 0, kind: str = "linear") -> float:
    """What the peak learning rate is multiplied by in optimizer step `step` (counted from 0).

    Linear warm-up from 0 over `warmup_steps`, then constant, or linear or cosine down to 0 at `total_steps`; the same
    numbers as the schedules of those names in transformers.
    """
    if step < warmup_steps:
        return step / warmup_steps
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if kind == "linear":
        return 1.0 - progress
    raise ValueError(f"no schedule {kind!r}")


def schedule_of(optim: Optim, total_steps: int) -> Callable[[int], float]:
    """`multiplier` as a function of the step alone, for a run of `total_steps` with these options."""

    def at(step: int) -> float:
        return multiplier(
            step, total_steps=total_steps, warmup_steps=optim.warmup_steps, kind=optim.lr_scheduler_type
        )  # fmt: skip

    return at
