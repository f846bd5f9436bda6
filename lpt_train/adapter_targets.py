"""Which modules an adapter goes into: presets by the part of the layer they belong to, or names.

    all-linear   every linear layer of the decoder; the vocabulary head is none of them
    attention    those inside a module of the names in ATTENTION
    mlp          those inside a module of the names in MLP, but for what routes tokens between experts

Presets and names can be mixed (`attention,down_proj`, `attention+mlp`). Every name must find something: a name that is
spelled wrong beside right ones is an error here, not an adapter that is smaller than was asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from lpt_train.heads import causal_model, decoder
from manifests.errors import UsageError

ATTENTION = ("self_attn", "attn", "attention", "self_attention", "linear_attn", "attn_module")
MLP = ("mlp", "ffn", "feed_forward", "feedforward", "experts", "shared_expert", "shared_experts", "block_sparse_moe")
ROUTERS = ("gate", "router", "shared_expert_gate")
PRESETS = ("all-linear", "attention", "mlp")


def linear_modules(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Every linear layer of the decoder by its name in the causal model, with its width in and out."""
    causal = causal_model(model)
    body, head = decoder(model), causal.get_output_embeddings()
    found = {
        name: _widths(module) for name, module in causal.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    }  # fmt: skip
    prefix = next(name for name, module in causal.named_modules() if module is body) + "."
    return {name: widths for name, widths in found.items() if name.startswith(prefix)}


def resolve_targets(model: torch.nn.Module, names: str, exclude: str = "") -> list[str]:
    """The shortest names of modules that find the targets and nothing else, as `LoraConfig` takes them.

    Raises `UsageError` for a name or preset that finds nothing (with what the model has), and for a vocabulary head
    that shares its weights with the embedding.
    """
    causal = causal_model(model)
    linear = linear_modules(model)
    every = [name for name, module in causal.named_modules() if name]
    chosen: set[str] = set()
    for asked in _split(names):
        found = set(linear) & _preset(asked, linear) if asked in PRESETS else {n for n in every if _ends(n, asked)}
        if not found:
            raise _finds_nothing("lora_target_modules", asked, linear)
        chosen |= found
    for asked in _split(exclude):
        found = {name for name in chosen if _ends(name, asked) or f".{asked}." in f".{name}."}
        if not found:
            raise _finds_nothing("lora_exclude_modules", asked, linear)
        chosen -= found
    if not chosen:
        raise UsageError(
            "every module that was named is excluded again", seen=f"{names} without {exclude}",
            next="leave out lora_exclude_modules",
        )  # fmt: skip
    refuse_tied(causal, chosen, "lora_target_modules")
    return _shortest(chosen, every)


def modules_to_save(model: torch.nn.Module, names: str) -> list[str] | None:
    """The modules that train whole beside the adapter; None when there are none."""
    causal = causal_model(model)
    every = [name for name, _ in causal.named_modules() if name]
    asked = _split(names)
    for name in asked:
        found = {module for module in every if _ends(module, name)}
        if not found:
            raise _finds_nothing("lora_modules_to_save", name, linear_modules(model))
        refuse_tied(causal, found, "lora_modules_to_save")
    return asked or None


def refuse_tied(causal: Any, chosen: set[str], option: str) -> None:
    """Raise `UsageError` where one of two modules that share a weight would be adapted without the other.

    Merged, the change of the head would be one of the embedding as well; saved, it would be lost on loading.
    """
    head, embedding = causal.get_output_embeddings(), causal.get_input_embeddings()
    if head is None or embedding is None or head.weight is not embedding.weight:
        return
    shared = [name for name, module in causal.named_modules() if module is head or module is embedding]
    if hit := sorted(chosen & set(shared)):
        raise UsageError(
            "the vocabulary head and the embedding of this model are one matrix, which an adapter of one would split",
            seen=f"{option} names {hit[0]}", next="leave it out, or train every weight: --set use_peft=false",
        )  # fmt: skip


def linear_listing(linear: dict[str, tuple[int, int]]) -> str:
    """The linear layers of a model in a line: `q_proj 576→576 ×30`."""
    counted = Counter((name.rpartition(".")[2], *widths) for name, widths in linear.items())
    parts = [f"{leaf} {wide}→{out} ×{count}" for (leaf, wide, out), count in counted.items()]
    return ", ".join(parts[:24]) + (f" and {len(parts) - 24} more" if len(parts) > 24 else "")


def _preset(name: str, linear: dict[str, tuple[int, int]]) -> set[str]:
    if name == "all-linear":
        return set(linear)
    inside = ATTENTION if name == "attention" else MLP
    parts = {module: module.split(".") for module in linear}
    return {
        module for module, path in parts.items()
        if set(path[:-1]) & set(inside) and (name == "attention" or path[-1] not in ROUTERS)
    }  # fmt: skip


def _shortest(chosen: set[str], every: list[str]) -> list[str]:
    """Names by their last part where that finds nothing else, else by as many parts as it takes."""
    needed: set[str] = set()
    for name in sorted(chosen):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            suffix = ".".join(parts[-length:])
            if suffix in needed or all(other in chosen for other in every if _ends(other, suffix)):
                needed.add(suffix)
                break
    return sorted(needed)


def _ends(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def _split(names: str) -> list[str]:
    return [part.strip() for part in re.split(r"[,+]", names) if part.strip()]


def _widths(module: Any) -> tuple[int, int]:
    if isinstance(module, Conv1D):  # its weight is [in, out]
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    return int(module.in_features), int(module.out_features)


def _finds_nothing(option: str, name: str, linear: dict[str, tuple[int, int]]) -> UsageError:
    return UsageError(
        f"{option} names no module of this model", seen=name,
        next=f"one of {', '.join(PRESETS)}, or names of its linear layers: {linear_listing(linear)}",
    )  # fmt: skip
