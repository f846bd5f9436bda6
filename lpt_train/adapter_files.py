"""An adapter on disk: one that any reader of peft's format puts on the base as it was before training.

A start that was taken out of the base (PiSSA, OLoRA) leaves W' = W − s B₀A₀, and the trained model is W' + s BA. Saved
as B and A it would need W' again, which a randomised decomposition never gives twice. It is saved as the plain adapter
[B, −B₀][A; A₀] of twice the rank over W, which is the same model, and comes back from there bit for bit.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from lpt_train.adapters import START, changes_base
from manifests.errors import RefusedError

WEIGHTS = "adapter_model.safetensors"


def write_adapter(model: PeftModel, folder: Path) -> None:
    """Write weights and configuration of the adapter into `folder`."""
    if not changes_base(model):
        # Without `save_embedding_layers` peft asks the hub whether the vocabulary was changed.
        model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # an empty model card; lpt.json says where this comes from
        return
    state = dict(get_peft_model_state_dict(model, save_embedding_layers=False))
    for key, (a, b) in _starts(model).items():
        state[f"{key}.lora_A.weight"] = torch.cat([state[f"{key}.lora_A.weight"], a])
        state[f"{key}.lora_B.weight"] = torch.cat([state[f"{key}.lora_B.weight"], -b], 1)
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, folder / WEIGHTS)
    options = copy.deepcopy(model.active_peft_config)
    options.init_lora_weights, options.inference_mode = True, True
    options.lora_alpha *= math.sqrt(2) if options.use_rslora else 2  # the scale stays: alpha / r, or alpha / sqrt(r)
    options.r *= 2
    options.save_pretrained(str(folder))


def read_adapter(model: PeftModel, folder: Path) -> None:
    """Put the weights of `folder` back into the adapter that wrote them.

    Raises `RefusedError` for an adapter with other tensors, and when the start that was taken out of the base is not
    the one that is there now: the base is another model then.
    """
    saved: dict[str, Any] = load_file(folder / WEIGHTS)
    for key, (a, b) in (_starts(model) if changes_base(model) else {}).items():
        wide_a, wide_b = saved.get(f"{key}.lora_A.weight"), saved.get(f"{key}.lora_B.weight")
        rank = len(a)
        if wide_a is None or wide_b is None or len(wide_a) != 2 * rank:
            raise RefusedError("the adapter of the checkpoint has other tensors", seen=f"{folder}: {key}")
        if not (torch.equal(wide_a[rank:], a.cpu()) and torch.equal(wide_b[:, rank:], -b.cpu())):
            raise RefusedError(
                "what the start of the adapter took out of the base is not what it was when the run began",
                seen=f"{key} in {folder}", next="resume on the machine and with the versions that the run began with",
            )  # fmt: skip
        saved[f"{key}.lora_A.weight"], saved[f"{key}.lora_B.weight"] = wide_a[:rank], wide_b[:, :rank]
    if set(get_peft_model_state_dict(model, save_embedding_layers=False)) != set(saved):
        raise RefusedError("the adapter of the checkpoint has other tensors", seen=str(folder))
    set_peft_model_state_dict(model, saved)


def _starts(model: PeftModel) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {
        name: (getattr(module, START[0]), getattr(module, START[1]))
        for name, module in model.named_modules() if isinstance(module, LoraLayer)
    }  # fmt: skip
