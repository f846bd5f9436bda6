"""Weights as files have them: all that a model has, and none that it lacks.

Transformers and peft draw what a file does not hold by chance, leave what the model has no place for, and say so in a
log. What is trained or measured then is another model than the one that was given, so both are refused here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from transformers.utils import logging as transformers_logging

from manifests.errors import BadInputError

_SHOWN = 4  # names of tensors in an error


def read_whole(
    kind: Any, source: str, dtype: torch.dtype | str, options: dict[str, Any], *, head: str | None = None
) -> Any:
    """The model that transformers' class `kind` reads from a folder or hub name; remote code and pickles stay off.

    Raises `BadInputError` for tensors that are missing, have another shape, or belong to the decoder and find no place
    there; tensors beside the decoder, the heads of other tasks, are left. A missing tensor named `head` is told apart.
    """
    with _without_log():
        loaded, read = kind.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
            ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    missing = sorted(read["missing_keys"])
    if head is not None and any(name.endswith(head) for name in missing):
        raise no_head(source)
    shapes = sorted(name for name, *_ in read["mismatched_keys"])
    of_decoder = f"{loaded.base_model_prefix}."
    surplus = sorted(
        name for name in read["unexpected_keys"] if name.startswith(of_decoder) and not _is_buffer(name, loaded)
    )
    _refuse(source, {"missing": missing, "of another shape": shapes, "without a place in the model": surplus})
    return loaded


def _is_buffer(name: str, model: torch.nn.Module) -> bool:
    """Whether a tensor of a file is none that trains: a buffer of the model, or one that models had in older versions,
    the masks of an attention (`attn.bias` is no bias where the model's attention has none) and its rotary frequencies.
    """
    module, _, last = name.rpartition(".")
    if last in ("masked_bias", "inv_freq") or name in dict(model.named_buffers()):
        return True
    of = module.rpartition(".")[2]
    return last == "bias" and of in ("attn", "attention")


def read_adapter_over(under: Any, folder: str) -> PeftModel:
    """The adapter of a folder over the model `under`, changed in place, in evaluation mode.

    Raises `BadInputError` where its file has not the tensors that its configuration asks for over this model.
    """
    from lpt_train.adapter_files import WEIGHTS

    adapted = PeftModel.from_pretrained(under, folder)
    with safe_open(Path(folder) / WEIGHTS, "pt") as file:
        there = set(file.keys())
    wanted = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    extra = {name for name in there - wanted if "lora_" in name}  # vocabulary tables may be saved along
    _refuse(folder, {"missing": sorted(wanted - there), "without a place over this base": sorted(extra)})
    return adapted.eval()


def no_head(model: str) -> BadInputError:
    """The error for a reward model whose head is not in its file."""
    return BadInputError("the folder has no reward head", seen=model, next="copy it again from where it was made")


def _refuse(model: str, faults: dict[str, Sequence[str]]) -> None:
    told = [f"{len(names)} {what}: {_listed(names)}" for what, names in faults.items() if names]
    if told:
        raise BadInputError(
            f"the weights in {model} are not those that its configuration describes", seen="; ".join(told),
            next="copy the folder again from where it was made; config and weights have to be of one model",
        )  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Keep transformers from printing names out of the file, with colours, on a stream that may be no terminal."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
