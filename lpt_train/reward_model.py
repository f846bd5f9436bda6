"""Loading reward models: from a language model under a new head, from a folder of their own, from an adapter."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification

from lpt_train.adapter_files import WEIGHTS
from lpt_train.adapter_folder import adapter_base, quantisation_of
from lpt_train.adapters import load_for_training
from lpt_train.config_lora import Lora
from lpt_train.models import (
    Placement,
    check_base,
    in_three_parts,
    load_model,
    refuse_mistyped,
    refuse_pickles,
    source_of,
)
from lpt_train.quantised import rounded_to_4bit
from lpt_train.reward_head import TASK, has_reward_head, with_reward_head
from lpt_train.whole_weights import no_head, read_adapter_over, read_whole
from manifests.errors import BadInputError


def load_reward_for_training(model: str, lora: Lora, place: Placement, seed: int) -> torch.nn.Module:
    """A reward model, or a language model under a head drawn by `seed`, ready to train: the head always does.

    The adapter's first values come from torch's global generator: seed it first.
    """
    return load_for_training(model, lora, place, partial(load_reward_model, seed=seed), TASK)


def load_reward_model(
    model: str, *, dtype: torch.dtype | str = torch.float32, device: torch.device | str = "cpu", seed: int | None = None
) -> torch.nn.Module:
    """The reward model of a folder or hub name, its decoder in `dtype` and its head in float32, in evaluation mode.

    With a `seed` a language model is taken as well, under a head drawn by it. `dtype` is as `load_model` takes it.
    Raises `BadInputError` as that does, and for a folder whose head is missing or gives more than one number.
    """
    refuse_mistyped(model)
    if not has_reward_head(model):
        if seed is None:
            raise BadInputError(
                "this is no reward model", seen=model, next="give the folder of a run of lpt train reward"
            )
        return with_reward_head(load_model(model, dtype=dtype, device=device), seed).eval()
    base = adapter_base(model)
    loaded = _whole(model) if base is None else _merged(base, model)
    if loaded.config.num_labels != 1:
        raise BadInputError(
            "a reward model gives one number", seen=f"{model} gives {loaded.config.num_labels}",
            next="use a sequence classification model of one label",
        )  # fmt: skip
    if not isinstance(dtype, str):
        head, loaded.score = loaded.score, None
        loaded = loaded.to(dtype)
        loaded.score = head.float()
    loaded.name_or_path = model  # what an adapter of it will name as its base
    torch.nn.Module.to(loaded, device)
    for name, parameter in loaded.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadInputError(
                f"the weights of {model} are not finite", seen=name, next="use another copy of the model"
            )
    return loaded.eval()


def _whole(model: str) -> Any:
    """The weights of a folder or hub name that stands alone, in float32."""
    source, options = source_of(model)
    refuse_pickles(model, Path(source))
    with in_three_parts(model, "model"):
        return read_whole(AutoModelForSequenceClassification, source, torch.float32, options, head="score.weight")


def _merged(base: str, model: str) -> Any:
    """The adapter of a folder in the weights below it, in float32; its head takes the place of the one there."""
    refuse_pickles(model, Path(model))
    with in_three_parts(model, "adapter"):
        with safe_open(Path(model) / WEIGHTS, "pt") as file:
            names = list(file.keys())
        if not any(name.endswith("score.weight") for name in names):  # peft would leave the one that is there
            raise no_head(model)
    check_base(model, base)
    under = load_reward_model(base, seed=0)
    if (quantisation := quantisation_of(model)) is not None:
        under = rounded_to_4bit(under, quantisation)
    with in_three_parts(model, "adapter"):
        return read_adapter_over(under, model).merge_and_unload(safe_merge=True)
