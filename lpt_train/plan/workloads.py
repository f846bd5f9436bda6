"""From the options of a training command to what memory depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lpt_train.plan.ladder import LADDER
from lpt_train.plan.memory import Workload
from lpt_train.plan.shape import PRESETS, PROJECTIONS, split_targets
from manifests.errors import UsageError

RUNGS = tuple(dict.fromkeys(name for _, name, _ in LADDER))
# Rows of a micro-batch for each that per_device_train_batch_size counts, by algorithm.
_ROWS = {"sft": 1, "dpo": 2, "simpo": 2, "cpo": 2, "orpo": 2, "kto": 1, "reward": 2, "grpo": 1, "ppo": 1}
_SAMPLING = ("grpo", "ppo")


def workload_of(algorithm: str, config: Any, *, length: int = 0, on_cuda: bool = True) -> Workload:
    """The workload of an algorithm's step with these options, every row `length` tokens long (0: as long as it may be).

    PPO is planned with GRPO's options: a policy and a critic that train, a reference and a reward model that do not.
    """
    for name in split_targets(config.lora.lora_target_modules):
        if name not in PROJECTIONS and name not in PRESETS:
            raise UsageError(
                "no projection of a layer has this name", seen=f"lora_target_modules={name}",
                next=f"name presets ({', '.join(PRESETS)}) or projections ({', '.join(PROJECTIONS)})",
            )  # fmt: skip
    row = length or longest_row(algorithm, config)
    half = config.run.dtype in ("auto", "bfloat16") if on_cuda else config.run.dtype == "bfloat16"
    execution = getattr(config, "execution", "eager")
    graph = on_cuda and half and execution in ("auto", "graph")
    work = of_options(
        config, tokens=config.per_device_train_batch_size * _ROWS[algorithm] * row, width=2 if half else 4,
        compiled=graph or (on_cuda and execution == "compiled"), kept_gradients=graph, on_cuda=on_cuda,
        scored=0 if algorithm in _SAMPLING else row,
    )  # fmt: skip
    if algorithm not in _SAMPLING:
        return work
    return replace(
        of_sampling(config, work, row), frozen_copies=frozen_models(algorithm, config, work.scope),
        second_trained=algorithm == "ppo",
    )  # fmt: skip


def frozen_models(algorithm: str, config: Any, scope: str) -> int:
    """Whole models that stay as they are beside the one that trains; an adapter's reference is its base.

    References of preference losses are no models in memory: their log-probs are computed before the first step.
    """
    if algorithm not in _SAMPLING:
        return 0
    off_is_start = scope != "full" and not config.lora.changes_base
    reference = not off_is_start and (algorithm == "ppo" or config.beta > 0)
    return int(reference) + int(algorithm == "ppo")  # and PPO's reward model


def longest_row(algorithm: str, config: Any) -> int:
    """Tokens of the longest row that the options allow."""
    if algorithm in _SAMPLING:
        return int(config.max_prompt_length + config.max_completion_length)
    return int(config.max_length)


def of_options(
    config: Any, *, tokens: int, width: int, compiled: bool, kept_gradients: bool, on_cuda: bool, scored: int
) -> Workload:
    """What every algorithm's options say; `kept_gradients` for reasons of its execution, accumulation is looked up.
    `scored` is what float32 on CUDA scores a token against where rows lie end to end, and ignored elsewhere."""
    lora = config.lora
    scope = "full" if not lora.use_peft else "qlora" if lora.load_in_4bit else "lora"
    return Workload(
        tokens=tokens, scope=scope, width=width, rank=lora.lora_r, targets=lora.lora_target_modules,
        nested=lora.use_bnb_nested_quant, wide_base=lora.use_peft and lora.changes_base and scope != "qlora",
        dora=lora.use_dora, dropout=lora.use_peft and lora.lora_dropout > 0, optim=config.optim.optim,
        chunk=getattr(config, "logits_chunk", 1), compiled=compiled,  # a reward model has no logits
        kept_gradients=kept_gradients or config.gradient_accumulation_steps > 1,
        copies_attended=not on_cuda, scored=scored if on_cuda and width == 4 else 0,
    )  # fmt: skip


def of_sampling(config: Any, work: Workload, row: int) -> Workload:
    """The same with what an algorithm has that samples: completions at the same time, entropies in its head."""
    return replace(
        work, counted=config.per_device_train_batch_size * config.max_completion_length, plain_head=True,
        rollout_rows=min(config.rollout_batch_size, config.generation_size), rollout_tokens=row,
    )  # fmt: skip


def asked(config: Any, work: Workload, before: Mapping[str, Any]) -> tuple[Workload, set[str]]:
    """The workload as the options on memory have it, and its fields that the ladder leaves alone.

    `before` are the rungs of the run that goes on, for what the options leave open.
    """
    options = config.run
    fixed = set(RUNGS) if options.memory == "off" or before else set()
    known: dict[str, Any] = {name: value for name, value in before.items() if name in RUNGS}
    work = replace(work, **known)
    if config.optim.optim != "adamw_torch":
        work, fixed = replace(work, offload_optimizer=False), fixed | {"offload_optimizer"}
    if options.gradient_checkpointing != "auto":
        every = options.gradient_checkpointing_every if options.gradient_checkpointing else 0
        work, fixed = replace(work, checkpoint_every=every), fixed | {"checkpoint_every"}
    if options.activation_offloading != "auto":
        work = replace(work, offload_activations=options.activation_offloading)
        fixed = fixed | {"offload_activations"}
    return work, fixed


def config_type(algorithm: str) -> type[Any]:
    """The type of the options of an algorithm; PPO is planned with those of GRPO."""
    from lpt_train.algorithms import ALGORITHMS

    return ALGORITHMS["grpo" if algorithm == "ppo" else algorithm].config
