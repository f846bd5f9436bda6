"""Which parameters train: LoRA by peft, or all of them.

With LoRA the base is kept in the precision of the forward pass and is frozen, the adapter in float32. Without it every
parameter is kept in float32 (bfloat16 weights would lose updates smaller than 1/256 of themselves).
"""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from lpt_train.config import Lora, Optim
from lpt_train.models import Placement, load_model, load_reward_model
from lpt_train.reward_head import TASK
from manifests.errors import UsageError


def load_for_training(model: str, lora: Lora, place: Placement) -> torch.nn.Module:
    """The model with the parameters that train set to require gradients, in training mode, on its device.

    The adapter's first values come from torch's global generator: seed it first.
    """
    loaded = load_model(model, dtype=_kept_in(lora, place), device=place.device)
    return _to_train(loaded, lora, "CAUSAL_LM")


def load_reward_for_training(model: str, lora: Lora, place: Placement, seed: int) -> torch.nn.Module:
    """`load_for_training` of a reward model, or of a language model under a head drawn by `seed`; the head trains."""
    loaded = load_reward_model(model, dtype=_kept_in(lora, place), device=place.device, seed=seed)
    return _to_train(loaded, lora, TASK)


def _kept_in(lora: Lora, place: Placement) -> torch.dtype:
    return place.dtype if lora.use_peft else torch.float32


def _to_train(loaded: torch.nn.Module, lora: Lora, task: str) -> torch.nn.Module:
    return (attach(loaded, lora, task) if lora.use_peft else loaded.requires_grad_(True)).train()


def attach(model: torch.nn.Module, lora: Lora, task: str = "CAUSAL_LM") -> PeftModel:
    """Freeze `model` and put LoRA into its linear layers (never into its head, unless it is named).

    For peft's task SEQ_CLS, a reward model, the head trains whole and is saved with the adapter.
    """
    names = lora.lora_target_modules
    targets: str | list[str] = names if names == "all-linear" else [part.strip() for part in names.split(",")]
    options = LoraConfig(
        task_type=task, r=lora.lora_r, lora_alpha=lora.lora_alpha, lora_dropout=lora.lora_dropout,
        target_modules=targets, use_rslora=lora.use_rslora, use_dora=lora.use_dora, bias="none",
    )  # fmt: skip
    try:
        return get_peft_model(model, options)
    except ValueError as error:
        raise UsageError(
            "the adapter fits no module of this model", seen=f"lora_target_modules={names}: {error}"[:400],
            next="use lora_target_modules=all-linear, or names such as q_proj,v_proj",
        ) from error  # fmt: skip


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that train, in the order of their names in the model."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def adamw(model: torch.nn.Module, optim: Optim) -> torch.optim.AdamW:
    """AdamW over the parameters that train; weight decay on matrices, not on vectors (biases, norms)."""
    parameters = trainable(model)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=optim.learning_rate, eps=optim.adam_epsilon,
        betas=(optim.adam_beta1, optim.adam_beta2), fused=parameters[0].is_cuda,
    )  # fmt: skip


def parameter_report(model: torch.nn.Module) -> dict[str, int]:
    """How many parameters train, of how many."""
    return {
        "trainable_parameters": sum(p.numel() for p in trainable(model)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
