"""Options of GRPO: names are TRL's where TRL has the option. Free to import (no torch), unknown keys refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from lpt_train.config import Lora, Optim, RunOptions, at_least, one_of
from manifests.errors import UsageError

LOSS_TYPES = ("dapo", "grpo", "dr_grpo", "bnpo")
SCALES = ("group", "batch", "none")
ROLLOUTS = ("generate",)


@dataclass(frozen=True)
class GRPOConfig:
    """Group-relative policy optimisation on an admitted `rlvr` split.

    One optimizer step trains on `per_device_train_batch_size * gradient_accumulation_steps` completions; one
    generation samples `per_device_train_batch_size * steps_per_generation` of them, `num_generations` for each prompt.
    """

    model: str = "tiny"  # path of a folder or .gguf file, hub name, or "tiny"
    reward: str = ""  # NAME[=weight],… or module:function; empty: the verifier that each record names
    num_generations: int = 8  # completions a prompt (the group), at least 2
    per_device_train_batch_size: int = 8  # completions a micro-batch
    gradient_accumulation_steps: int = 8  # micro-batches an optimizer step
    steps_per_generation: int = 0  # micro-batches a generation; 0: as many as an optimizer step (on-policy)
    num_iterations: int = 1  # passes over one generation
    max_prompt_length: int = 1024  # tokens; longer prompts are dropped and counted, never cut
    max_completion_length: int = 256  # tokens
    temperature: float = 1.0  # of sampling, and of the log-probs that are trained
    beta: float = 0.0  # weight of the KL to the start model; 0: no reference model
    epsilon: float = 0.2  # the ratio to the sampling policy is clipped below at 1 - epsilon
    epsilon_high: float | None = None  # and above at 1 + epsilon_high; none: epsilon
    loss_type: str = "dapo"  # dapo | grpo | dr_grpo | bnpo: how token losses are averaged, see losses/policy.py
    scale_rewards: str = "group"  # group | batch | none: standard deviation that divides the advantages
    mask_truncated_completions: bool = False  # completions cut at max_completion_length train nothing
    rollout: str = "generate"  # the sampler
    rollout_batch_size: int = 256  # completions sampled at the same time
    logits_chunk: int = 1024  # token positions whose logits exist at the same time
    reward_workers: int = 2  # processes
    reward_timeout: float = 5.0  # seconds for one completion
    reward_memory_mb: int = 4096  # address space of one reward process
    optim: Optim = field(
        default_factory=lambda: Optim(learning_rate=1e-5, lr_scheduler_type="constant", adam_beta2=0.99)
    )
    lora: Lora = field(default_factory=Lora)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        one_of("loss_type", self.loss_type, LOSS_TYPES)
        one_of("scale_rewards", self.scale_rewards, SCALES)
        one_of("rollout", self.rollout, ROLLOUTS)
        at_least("num_generations", self.num_generations, 2)  # one completion has no group to be compared with
        for name in (
            "per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "max_prompt_length",
            "max_completion_length", "rollout_batch_size", "logits_chunk", "reward_workers", "reward_memory_mb",
        ):  # fmt: skip
            at_least(name, getattr(self, name), 1)
        for name in ("steps_per_generation", "beta", "epsilon"):
            at_least(name, getattr(self, name), 0)
        for name in ("temperature", "reward_timeout"):
            at_least(name, getattr(self, name), 1e-6)
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.generation_size % self.num_generations:
            raise UsageError(
                "the completions of one generation are no whole number of groups",
                seen=f"{self.generation_size} completions, num_generations {self.num_generations}",
                next="choose per_device_train_batch_size * steps_per_generation as a multiple of num_generations",
            )
        if self.generation_size % self.step_size:
            raise UsageError(
                "the completions of one generation are no whole number of optimizer steps",
                seen=f"{self.generation_size} completions a generation, {self.step_size} a step",
                next="choose steps_per_generation as a multiple of gradient_accumulation_steps",
            )

    @property
    def step_size(self) -> int:
        """Completions of one optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def generation_size(self) -> int:
        """Completions of one generation."""
        return self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)

    @property
    def prompts_per_generation(self) -> int:
        """Prompts of one generation."""
        return self.generation_size // self.num_generations

    @property
    def steps_of_generation(self) -> int:
        """Optimizer steps that one generation is used for."""
        return self.num_iterations * (self.generation_size // self.step_size)
