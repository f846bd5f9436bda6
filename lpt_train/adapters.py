"""Which parameters train: LoRA by peft, or all of them.

With LoRA the base is kept in the precision of the forward pass and is frozen, the adapter in float32. Without it every
parameter is kept in float32 (bfloat16 weights would lose updates smaller than 1/256 of themselves).
"""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from lpt_train.config import Lora
from lpt_train.models import Placement, load_model
from manifests.errors import UsageError


def load_for_training(model: str, lora: Lora, place: Placement) -> torch.nn.Module:
    """The model with the parameters that train set to require gradients, in training mode, on its device.

    The adapter's first values come from torch's global generator: seed it first.
    """
    loaded = load_model(model, dtype=place.dtype if lora.use_peft else torch.float32, device=place.device)
    trained = attach(loaded, lora) if lora.use_peft else loaded.requires_grad_(True)
    return trained.train()


def attach(model: torch.nn.Module, lora: Lora) -> PeftModel:
    """Freeze `model` and put LoRA into its linear layers (never into the vocabulary head, unless it is named)."""
    names = lora.lora_target_modules
    targets: str | list[str] = names if names == "all-linear" else [part.strip() for part in names.split(",")]
    options = LoraConfig(
        task_type="CAUSAL_LM", r=lora.lora_r, lora_alpha=lora.lora_alpha, lora_dropout=lora.lora_dropout,
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


def parameter_report(model: torch.nn.Module) -> dict[str, int]:
    """How many parameters train, of how many."""
    return {
        "trainable_parameters": sum(p.numel() for p in trainable(model)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
