"""Which parameters train: LoRA, rsLoRA or DoRA by peft, or all of them.

With an adapter the base is frozen, in the precision of the forward pass or in four bits, and the adapter is kept in
float32. Without one every parameter is kept in float32 (bfloat16 weights would lose updates smaller than 1/256 of
themselves). The first step of an adapter computes what the base computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.other import ModulesToSaveWrapper

from lpt_train.adapter_targets import modules_to_save, resolve_targets
from lpt_train.config_lora import Lora
from lpt_train.models import Placement, load_model
from lpt_train.plan.memory import optimizer_bytes
from lpt_train.quantised import held_bytes, quantise, true_size
from manifests.errors import LptError, UsageError

# The factors that a start took out of the base, beside the layer: see `adapter_files`.
START = ("start_A", "start_B")
LANGUAGE = "CAUSAL_LM"  # what peft calls a language model


def load_for_training(
    model: str, lora: Lora, place: Placement, load: Callable[..., torch.nn.Module] = load_model, task: str = LANGUAGE
) -> torch.nn.Module:
    """The model with the parameters that train set to require gradients, in training mode, on its device.

    The adapter's first values come from torch's global generator: seed it first. `load` reads the model, and `task` is
    what peft calls its kind. Raises `LptError` when the weights alone are more than the GPU has room for.
    """
    try:
        return _loaded(model, lora, place, load, task)
    except torch.OutOfMemoryError as error:
        lighter = "--set use_peft=true" if not lora.use_peft else "--set load_in_4bit=true"
        raise LptError(
            "the GPU has not enough memory for the weights of the model", seen=str(error).splitlines()[0],
            next=f"lpt plan memory --model {model} says what they take; "
            + ("use a smaller model" if lora.load_in_4bit else lighter),
        ) from error  # fmt: skip


def _loaded(
    model: str, lora: Lora, place: Placement, load: Callable[..., torch.nn.Module], task: str
) -> torch.nn.Module:
    if not lora.use_peft:
        return load(model, dtype=torch.float32, device=place.device).requires_grad_(True).train()
    if lora.load_in_4bit:
        loaded = quantise(load(model, dtype="auto"), lora, dtype=place.dtype, device=place.device)
    else:  # what a start leaves of the base must not be rounded
        dtype = torch.float32 if lora.changes_base else place.dtype
        loaded = load(model, dtype=dtype, device=place.device)
    return attach(loaded, lora, task).train()


def lora_config(model: torch.nn.Module, lora: Lora, task: str = LANGUAGE) -> LoraConfig:
    """The adapter as peft describes it; raises `UsageError` for names that find nothing in `model`."""
    start = True if lora.init_lora_weights == "true" else lora.init_lora_weights
    targets = resolve_targets(model, lora.lora_target_modules, lora.lora_exclude_modules)
    return LoraConfig(
        task_type=task, r=lora.lora_r, lora_alpha=lora.lora_alpha, lora_dropout=lora.lora_dropout,
        target_modules=targets, modules_to_save=modules_to_save(model, lora.lora_modules_to_save), bias="none",
        use_rslora=lora.use_rslora, use_dora=lora.use_dora, init_lora_weights=start,  # type: ignore[arg-type]
    )  # fmt: skip


def attach(model: torch.nn.Module, lora: Lora, task: str = LANGUAGE) -> PeftModel:
    """Freeze `model` and put an adapter into the modules that `lora` names; the head of a reward model trains whole.

    Raises `UsageError` for names that find nothing or that an adapter does not fit.
    """
    options = lora_config(model, lora, task)
    try:
        adapted = get_peft_model(model, options)
    except ValueError as error:
        raise UsageError(
            "the adapter fits no module of this model",
            seen=f"lora_target_modules={options.target_modules}: {error}"[:400],
            next="use lora_target_modules=all-linear, or names such as q_proj,v_proj",
        ) from error  # fmt: skip
    module: Any
    for module in adapted.modules():
        if lora.changes_base and hasattr(module, "lora_A"):
            for name, factor in zip(START, (module.lora_A, module.lora_B), strict=True):
                module.register_buffer(name, factor["default"].weight.detach().clone(), persistent=False)
        if isinstance(module, ModulesToSaveWrapper):
            module.modules_to_save.float()  # it trains: see above
    return adapted


def changes_base(model: torch.nn.Module) -> bool:
    """Whether `model` with its adapter off is another model than the one that the run starts from."""
    return any(name.endswith(START[0]) for name, _ in model.named_buffers())


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that train, in the order of their names in the model."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_report(model: torch.nn.Module, optim: str = "adamw_torch") -> dict[str, Any]:
    """What trains: how many parameters of how many, their bytes, and those of the moments that `optim` keeps of them.

    `trained_modules` has an entry for each kind of module and shapes: `{module, count, shapes, parameters}`.
    """
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    by_module: dict[str, dict[str, list[int]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            module, part = _module_and_part(name)
            by_module.setdefault(module, {})[part] = list(parameter.shape)
    for module, shapes in by_module.items():
        kind = ".".join(module.split(".")[-2:])
        entry = kinds.setdefault((kind, str(shapes)), {"module": kind, "count": 0, "shapes": shapes, "parameters": 0})
        entry["count"] += 1
        entry["parameters"] += sum(math.prod(shape) for shape in shapes.values())
    trained = trainable(model)
    count, every = sum(p.numel() for p in trained), sum(true_size(p) for p in model.parameters())
    moments = sum(optimizer_bytes(optim, [(p.numel(), False) for p in trained]))  # on the device and on the host
    return {
        "trainable_parameters": count, "parameters": every, "trainable_share": count / every,
        "trainable_bytes": sum(held_bytes(p) for p in trained),
        "frozen_bytes": sum(held_bytes(p) for p in model.parameters() if not p.requires_grad),
        "optimizer_bytes": moments, "trained_modules": list(kinds.values()),
    }  # fmt: skip


def report_line(report: dict[str, Any]) -> str:
    """The report on what trains in one line."""
    kinds = {entry["module"].rpartition(".")[2]: 0 for entry in report["trained_modules"]}
    for entry in report["trained_modules"]:
        kinds[entry["module"].rpartition(".")[2]] += entry["count"]
    shown = [f"{name} ×{count}" for name, count in list(kinds.items())[:8]] + ["…"] * (len(kinds) > 8)
    return (
        f"{report['trainable_parameters']:,} of {report['parameters']:,} parameters train "
        f"({report['trainable_share']:.2%}; {report['trainable_bytes'] / 2**20:,.1f} MiB, optimizer "
        f"{report['optimizer_bytes'] / 2**20:,.1f} MiB): {', '.join(shown)}"
    )


def _module_and_part(name: str) -> tuple[str, str]:
    """`…q_proj.lora_A.default.weight` → (`…q_proj`, `lora_A`); `…norm.weight` → (`…norm`, `weight`)."""
    for mark in (".lora_", ".modules_to_save."):
        module, found, rest = name.partition(mark)
        if found:
            return module, f"lora_{rest.partition('.')[0]}" if mark == ".lora_" else rest.rpartition(".")[2]
    module, _, part = name.rpartition(".")
    return module, part
