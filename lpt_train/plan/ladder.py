"""What gives way when memory is short, in the order of what it costs, until the prediction fits.

    rung                         costs
    a chunk of 256 logits        nearly nothing: smaller products with the vocabulary
    every 4th, 2nd, each layer   a forward pass of those layers more: up to a third of the arithmetic of a step
    moments on the host          16 bytes a parameter over the bus in each step
    activations on the host      the inputs of the layers over the bus, twice; no recordings

Every rung leaves the update as it is up to rounding; what would change it (8-bit moments, an adapter, fewer tokens) is
for the user to choose. What the user has fixed is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from lpt_train.plan.memory import Memory, Workload, largest, predict
from lpt_train.plan.shape import ModelShape

# (what gives way, the field of the workload, its value)
LADDER: tuple[tuple[str, str, int], ...] = (
    ("logits_chunk 256", "chunk", 256),
    ("every 4th layer computed again", "checkpoint_every", 4),
    ("every 2nd layer computed again", "checkpoint_every", 2),
    ("every layer computed again", "checkpoint_every", 1),
    ("moments of the optimizer on the host", "offload_optimizer", 1),
    ("activations on the host", "offload_activations", 1),
)
_WORTH = 0.98  # a rung that leaves more than this of the memory is passed over


@dataclass(frozen=True)
class Choice:
    """The workload that was chosen, the rungs that led there, and what it is predicted to take."""

    work: Workload
    rungs: tuple[str, ...]
    memory: Memory
    fits: bool


def choose(shape: ModelShape, work: Workload, budget: int | None, fixed: Collection[str] = ()) -> Choice:
    """The first rung that fits `budget` bytes, or the last one; fields of `work` in `fixed` stay as they are."""
    memory = predict(shape, work)
    taken: list[str] = []
    for name, changed, value in LADDER:
        if budget is None or memory.reserved <= budget:
            break
        now = getattr(work, changed)
        if changed in fixed or (changed == "chunk" and now <= value):
            continue
        tried = _with(work, changed, value if changed in ("chunk", "checkpoint_every") else True)
        lighter = predict(shape, tried)
        if lighter.reserved > _WORTH * memory.reserved:
            continue
        work, memory = tried, lighter
        taken = [rung for rung in taken if changed != "checkpoint_every" or not rung.endswith("computed again")] + [
            name
        ]
    return Choice(work, tuple(taken), memory, budget is None or memory.reserved <= budget)


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is predicted to fit, with the accumulation that keeps the update the same."""

    per_device_train_batch_size: int
    gradient_accumulation_steps: int


def fitting_batch(
    shape: ModelShape, work: Workload, budget: int, *, size: int, accumulation: int, needed: int | None = None
) -> Batch | None:
    """The largest smaller micro-batch of the same update that fits `budget` bytes; None when one row does not.

    `needed` is what `work` turned out to need at least: predictions are scaled by what it exceeds them.
    """
    factor = max(1.0, (needed or 0) / predict(shape, work).reserved)
    row = math.ceil(work.tokens / size)
    fits = largest(shape, work, int(budget / factor), tokens_a_row=row, most=size)
    whole = size * accumulation
    for smaller in range(min(fits, size - 1), 0, -1):
        if whole % smaller == 0:
            return Batch(smaller, whole // smaller)
    return None


def advice(shape: ModelShape, work: Workload) -> list[str]:
    """Settings that make the step lighter, the cheapest first: rungs not taken, then what changes the update."""
    found: list[tuple[str, Workload]] = []
    for setting, changed, value in (
        ("gradient_checkpointing=true", "checkpoint_every", 1),
        ("optim=adamw_torch_offload", "optim", "adamw_torch_offload"),
        ("activation_offloading=true", "offload_activations", True),
        ("optim=adamw_8bit", "optim", "adamw_8bit"),
    ):
        if getattr(work, changed) != value:
            found.append((setting, _with(work, changed, value)))
    if work.scope == "full":
        found.append(("use_peft=true", replace(work, scope="lora")))
    now = predict(shape, work).reserved
    return [setting for setting, lighter in found if predict(shape, lighter).reserved < _WORTH * now]


def _with(work: Workload, name: str, value: Any) -> Workload:
    changed: dict[str, Any] = {name: value}
    return replace(work, **changed)
