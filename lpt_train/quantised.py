"""A base in four bits, by bitsandbytes: QLoRA (Dettmers et al. 2023, section 3).

Every linear layer of the decoder is kept as 4-bit codes (nf4: quantiles of a normal distribution; fp4) with one scale,
the largest absolute value, for each block of 64 weights; nested, the scales are 8-bit codes themselves. Embedding,
norms, biases and the vocabulary head stay as they are. Weights are quantised from float32 values, one layer at a time,
where the run computes. Products are taken in the compute dtype; nothing of the base trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lpt_train.adapter_targets import linear_modules
from lpt_train.config_lora import Lora
from lpt_train.heads import causal_model
from manifests.errors import RefusedError, UsageError

BLOCK = 64  # weights that share a scale
COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def quantisation_record(lora: Mapping[str, Any], dtype: str) -> dict[str, Any] | None:
    """What a run and its artifacts say of the precision of the base; None where it is not quantised.

    `lora` is the block of options as a mapping, `dtype` that of the run, which `auto` stands for.
    """
    if not (lora.get("use_peft") and lora.get("load_in_4bit")):
        return None
    compute = lora["bnb_4bit_compute_dtype"]
    return {
        "method": "bitsandbytes", "bits": 4, "quant_type": lora["bnb_4bit_quant_type"],
        "nested": lora["use_bnb_nested_quant"], "block": BLOCK,
        "compute_dtype": dtype if compute == "auto" else compute,
    }  # fmt: skip


def quantise(model: torch.nn.Module, lora: Lora, *, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """Put 4-bit layers in the place of the linear ones, on `device`; the rest is kept in `dtype` and moved along.

    Raises `UsageError` without bitsandbytes and `RefusedError` for a base that is quantised already or keeps most of
    its weights elsewhere than in linear layers (experts that share a tensor, convolutions): it would hardly shrink.
    """
    bnb = _bitsandbytes("load_in_4bit=true")
    from lpt_train.layer_4bit import Linear4bit

    causal = causal_model(model)
    if getattr(causal.config, "quantization_config", None) is not None:
        raise RefusedError(
            "the base is quantised already", seen=f"{causal.name_or_path} has a quantization_config",
            next="give the original weights, or leave out load_in_4bit",
        )  # fmt: skip
    linear = [name for name in linear_modules(model) if isinstance(causal.get_submodule(name), torch.nn.Linear)]
    _check_share(model, linear)
    options = {"compress_statistics": lora.use_bnb_nested_quant, "quant_type": lora.bnb_4bit_quant_type}
    compute = dtype if lora.bnb_4bit_compute_dtype == "auto" else COMPUTE[lora.bnb_4bit_compute_dtype]
    for name in linear:
        old: Any = causal.get_submodule(name)
        new = Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=compute, device="meta", **options)
        codes = bnb.nn.Params4bit(
            old.weight.detach().float(), requires_grad=False, blocksize=BLOCK, module=new, **options
        ).to(device)
        codes.quant_state.dtype = compute  # of the weights that products are taken with
        new.weight, new.bias = codes, old.bias
        parent, _, leaf = name.rpartition(".")
        setattr(causal.get_submodule(parent), leaf, new)
    for parameter in causal.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    torch.nn.Module.to(causal, device)
    causal.is_loaded_in_4bit = True  # what peft chooses its layers by
    return model


@torch.no_grad()
def rounded_to_4bit(model: torch.nn.Module, quantisation: Mapping[str, Any]) -> torch.nn.Module:
    """The model with the weights that its quantised form computes with: each linear layer to codes and back, float32.

    An adapter that was trained over codes corrects these weights and not the original ones.
    """
    functional = _bitsandbytes("the adapter was trained over one").functional
    causal = causal_model(model)
    for name in linear_modules(model):
        module = causal.get_submodule(name)
        if isinstance(module, torch.nn.Linear):
            codes, state = functional.quantize_4bit(
                module.weight.float(), blocksize=quantisation["block"], compress_statistics=quantisation["nested"],
                quant_type=quantisation["quant_type"],
            )  # fmt: skip
            module.weight.copy_(functional.dequantize_4bit(codes, state))
    return model


def true_size(parameter: torch.nn.Parameter) -> int:
    """How many weights a parameter stands for: two of four bits lie in one byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())


def held_bytes(parameter: torch.nn.Parameter) -> int:
    """Memory of a parameter, scales of codes among it."""
    state = getattr(parameter, "quant_state", None)
    own = parameter.numel() * parameter.element_size()
    if state is None:
        return own
    inner = state.state2.absmax if state.nested else torch.empty(0)
    return own + sum(part.numel() * part.element_size() for part in (state.absmax, inner))


def _check_share(model: torch.nn.Module, linear: list[str]) -> None:
    causal = causal_model(model)
    ends = (causal.get_input_embeddings(), causal.get_output_embeddings())
    tables = {id(part.weight) for part in ends if part is not None}  # a reward model has no vocabulary head
    every = sum(p.numel() for p in causal.parameters() if id(p) not in tables)
    taken = sum(causal.get_submodule(name).weight.numel() for name in linear)
    if taken < every / 2:
        raise RefusedError(
            "most weights of this model are in no linear layer, and would stay as they are",
            seen=f"{taken:,} of {every:,} beside the embedding", next="leave out load_in_4bit",
        )  # fmt: skip


def _bitsandbytes(seen: str) -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise UsageError(
            "a base in four bits needs bitsandbytes, which is not installed", seen=seen, next="pip install 'lpt[qlora]'"
        ) from error  # fmt: skip
    return bitsandbytes
