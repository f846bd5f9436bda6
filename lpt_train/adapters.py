"""Which parameters train: LoRA by peft, or all of them.

With LoRA the base is kept in the precision of the forward pass and is frozen, the adapter in float32. Without it every
parameter is kept in float32 (bfloat16 weights would lose updates smaller than 1/256 of themselves).
"""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from lpt_train.config import Lora, Optim
from lpt_train.models import Placement, load_model
from manifests.errors import UsageError


def load_for_training(model: str, lora: Lora, place: Placement) -> torch.nn.Module:
    """The model with the parameters that train set to require gradients, in training mode, on its device.

    The adapter's first values come from torch's global generator: seed it first.
    """
    loaded = load_model(model, dtype=place.dtype if lora.use_peft else torch.float32, device=place.device)
    trained = attach(loaded, lora) if lora.use_peft else loaded.requires_grad_(True)
    return trained.train()


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
