"""Options of training on preference pairs: names are TRL's where TRL has the option. Free to import (no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lpt_train.config import EXECUTIONS, Lora, Optim, RunOptions, at_least, one_of
from manifests.errors import UsageError

# Which losses a command takes; the first is its default.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "dpo": ("sigmoid", "robust", "hinge", "ipo"),
    "simpo": ("simpo",),
    "cpo": ("cpo",),
    "orpo": ("orpo",),
}


@dataclass(frozen=True)
class PreferenceConfig:
    """Training on an admitted `preference` split: DPO and its variants, SimPO, CPO, ORPO."""

    model: str = "tiny"  # path of a folder or .gguf file, hub name, or "tiny"
    loss_type: str = "sigmoid"  # sigmoid | robust | hinge | ipo (dpo); simpo; cpo; orpo
    beta: float | None = None  # strength of the preference, 1 / temperature of the reward; none: 0.1, simpo 2.0
    label_smoothing: float = 0.0  # share of labels taken to be wrong, below 0.5: sigmoid, robust, cpo
    simpo_gamma: float = 1.0  # target margin of simpo, in units of reward
    cpo_alpha: float = 1.0  # weight of the supervised loss on the chosen completion: cpo
    max_length: int = 1024  # tokens of prompt and completion
    truncation: str = "drop"  # drop: pairs with a longer side are dropped and counted; keep_start: cut at the end
    per_device_train_batch_size: int = 8  # pairs a micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches an optimizer step
    per_device_eval_batch_size: int = 8  # pairs
    logits_chunk: int = 1024  # token positions whose logits exist at the same time
    execution: str = "auto"  # auto | graph | compiled | eager | rows: how a micro-batch runs; auto: the fastest
    optim: Optim = field(default_factory=lambda: Optim(learning_rate=1e-5))
    lora: Lora = field(default_factory=Lora)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        one_of("loss_type", self.loss_type, tuple(name for names in ALGORITHMS.values() for name in names))
        one_of("truncation", self.truncation, ("drop", "keep_start"))
        one_of("execution", self.execution, EXECUTIONS)
        for name in (
            "per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size", "logits_chunk",
        ):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        at_least("max_length", self.max_length, 2)
        for name in ("label_smoothing", "simpo_gamma", "cpo_alpha"):
            at_least(name, getattr(self, name), 0)
        if self.beta is not None and not self.beta > 0:
            raise UsageError("beta is a positive number", seen=self.beta, next="give beta > 0, such as 0.1")
        if self.label_smoothing >= 0.5:
            raise UsageError(
                "with half of the labels wrong they say nothing", seen=f"label_smoothing={self.label_smoothing}",
                next="give label_smoothing below 0.5",
            )  # fmt: skip
        if self.loss_type == "robust" and self.label_smoothing == 0:
            raise UsageError(
                "the robust loss needs the share of flipped labels", seen="label_smoothing=0",
                next="--set label_smoothing=0.1, or --loss sigmoid",
            )  # fmt: skip
