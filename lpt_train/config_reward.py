"""Options of the reward model: names are TRL's where TRL has the option. Free to import (no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lpt_train.config import EXECUTIONS, TRUNCATIONS, Lora, Optim, RunOptions, at_least, one_of
from manifests.errors import UsageError

RANKINGS = ("pairs", "prompts", "plackett_luce")
MARGINS = ("auto", "column", "none")


@dataclass(frozen=True)
class RewardConfig:
    """A reward model on an admitted `preference` split: a number for a conversation, larger for the better side."""

    model: str = "tiny"  # path of a folder or .gguf file, hub name, or "tiny": a language or a reward model
    ranking: str = "pairs"  # pairs | prompts: a prompt weighs 1, each of its pairs 1/C(K,2) | plackett_luce: its order
    margin: str = "auto"  # auto: the column `margin` where the split has one; column: it has to be there; none
    center_rewards_coefficient: float | None = None  # weight of (chosen + rejected)^2; 0.01 holds the mean near 0
    flip_labels: float = 0.0  # share of pairs whose sides change places: a control that passes no gate
    max_length: int = 1024  # tokens of prompt and completion
    truncation: str = "drop"  # drop: pairs with a longer side are dropped and counted; keep_start: cut at the end
    per_device_train_batch_size: int = 8  # pairs a micro-batch, or prompts where ranking is not pairs
    gradient_accumulation_steps: int = 1  # micro-batches an optimizer step
    per_device_eval_batch_size: int = 8  # pairs
    calibration_bins: int = 10  # of the reliability diagram, from even chances to certainty
    execution: str = "auto"  # auto | graph | compiled | eager | rows: how a micro-batch runs; auto: the fastest
    optim: Optim = field(default_factory=Optim)
    lora: Lora = field(default_factory=Lora)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        one_of("ranking", self.ranking, RANKINGS)
        one_of("margin", self.margin, MARGINS)
        one_of("truncation", self.truncation, TRUNCATIONS)
        one_of("execution", self.execution, EXECUTIONS)
        for name in (
            "per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size",
        ):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        at_least("max_length", self.max_length, 2)
        at_least("calibration_bins", self.calibration_bins, 2)
        if self.center_rewards_coefficient is not None:
            at_least("center_rewards_coefficient", self.center_rewards_coefficient, 0)
        if not 0 <= self.flip_labels <= 1:
            raise UsageError(
                "flip_labels is a share of the pairs", seen=self.flip_labels, next="give a value in [0, 1], such as 0.5"
            )
        if self.ranking == "plackett_luce" and (self.margin == "column" or self.flip_labels):
            raise UsageError(
                "margins and flipped labels belong to pairs, and plackett_luce looks at whole orders",
                seen=f"margin={self.margin}, flip_labels={self.flip_labels}", next="--set ranking=prompts",
            )  # fmt: skip
