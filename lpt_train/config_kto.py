"""Options of KTO: names are TRL's where TRL has the option. Free to import (no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lpt_train.config import EXECUTIONS, Lora, Optim, RunOptions, at_least, one_of


@dataclass(frozen=True)
class KTOConfig:
    """KTO on an admitted `preference` split (each side a completion of its own) or a `kto` one."""

    model: str = "tiny"  # path of a folder or .gguf file, hub name, or "tiny"
    beta: float = 0.1  # strength: 1 / temperature of the reward
    desirable_weight: float = 1.0  # of good completions; keep weight * count of both classes within a factor of 4/3
    undesirable_weight: float = 1.0  # of bad completions
    max_length: int = 1024  # tokens of prompt and completion
    truncation: str = "drop"  # drop: rows that are longer are dropped and counted; keep_start: cut at the end
    per_device_train_batch_size: int = 8  # completions a micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches an optimizer step
    per_device_eval_batch_size: int = 8  # completions
    logits_chunk: int = 1024  # token positions whose logits exist at the same time
    execution: str = "auto"  # auto | graph | compiled | eager | rows: how a micro-batch runs; auto: the fastest
    optim: Optim = field(default_factory=lambda: Optim(learning_rate=1e-5))
    lora: Lora = field(default_factory=Lora)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        one_of("truncation", self.truncation, ("drop", "keep_start"))
        one_of("execution", self.execution, EXECUTIONS)
        for name in (
            "per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size", "logits_chunk",
        ):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        at_least("max_length", self.max_length, 2)
        at_least("beta", self.beta, 1e-9)
        for name in ("desirable_weight", "undesirable_weight"):
            at_least(name, getattr(self, name), 0)
