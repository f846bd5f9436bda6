"""Our options as TRL's, by name. What TRL's trainers do not have is refused where it is not at its default, never left
out in silence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lpt_train.config import Optim, SFTConfig, option_names, to_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import ALGORITHMS, PreferenceConfig
from lpt_train.schedule import decay_start, schedule_of
from manifests.errors import UsageError

Config = SFTConfig | PreferenceConfig | KTOConfig

# TRL has these under the same name and means the same by them.
SAME = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "seed", "per_device_train_batch_size", "gradient_accumulation_steps", "max_length", "beta",
    "label_smoothing", "desirable_weight", "undesirable_weight",
)  # fmt: skip
# Done around TRL's trainer, in the same way for both engines: what is read, how often is looked and saved, where to
# compute; and the adapter, which TRL takes as a peft config.
AROUND = (
    "model", "truncation", "packing", "loss_type", "max_steps", "num_train_epochs", "logging_steps", "save_steps",
    "save_total_limit", "eval_steps", "per_device_eval_batch_size", "device", "dtype", "mix_schedule", "report_to",
    "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_exclude_modules", "use_rslora",
    "use_dora", "init_lora_weights", "optim", "memory", "gradient_checkpointing", "activation_offloading",
    "warmup_ratio", "num_decay_steps", "decay_ratio", "decay_type", "min_lr_rate",
)  # fmt: skip
OPTIMIZERS = ("adamw_torch", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "sgd")
LARGEST_SEED = 2**32 - 1  # what numpy's global generator takes, which transformers seeds


def flat(config: Config) -> dict[str, Any]:
    """Every option by its bare name."""
    values = {}
    for name, path in option_names(type(config)).items():
        value: Any = to_mapping(config)
        for part in path.split("."):
            value = value[part]
        values[name] = value
    return values


def check_options(config: Config, *, cuda: bool) -> None:
    """Raise `UsageError` for an option that TRL's trainers do not have, or understand in another way."""
    values, default = flat(config), flat(type(config)())
    for name, value in values.items():
        if name not in (*SAME, *AROUND) and value != default[name]:
            raise UsageError(
                f"TRL's trainers have no {name}", seen=f"{name}={value}",
                next=f"--engine lean, or leave {name} at {default[name]}",
            )  # fmt: skip
    if values.get("loss_type", "sigmoid") not in ALGORITHMS["dpo"]:
        raise UsageError(
            f"--engine trl has no {values['loss_type']}", seen=f"loss_type={values['loss_type']}",
            next=f"--engine lean; TRL trains sft, kto, and dpo with {', '.join(ALGORITHMS['dpo'])}",
        )  # fmt: skip
    if values.get("label_smoothing") and values["loss_type"] != "robust":
        raise UsageError(
            f"TRL's {values['loss_type']} loss leaves label_smoothing out", seen=values["label_smoothing"],
            next="--loss robust, or --engine lean",
        )  # fmt: skip
    if values["activation_offloading"] is True and not cuda:
        raise UsageError(
            "TRL takes activations off a GPU alone", seen="activation_offloading=true on the CPU",
            next="--engine lean, or activation_offloading=auto",
        )  # fmt: skip
    if config.lora.use_peft and config.lora.changes_base:
        raise UsageError(
            "TRL's reference is the base with the adapter off, which this start rewrites",
            seen=f"init_lora_weights={values['init_lora_weights']}",
            next="--engine lean, or init_lora_weights=true or gaussian",
        )  # fmt: skip
    if values["optim"] not in OPTIMIZERS:
        raise UsageError(
            "TRL has no optimizer of that name", seen=values["optim"],
            next=f"--engine lean, or one of {', '.join(OPTIMIZERS)}",
        )  # fmt: skip
    if values["seed"] > LARGEST_SEED:
        raise UsageError("the seed is too large for TRL", seen=values["seed"], next=f"give seed <= {LARGEST_SEED}")


def arguments(config: Config, *, steps: int, out: Path, cuda: bool, bf16: bool) -> dict[str, Any]:
    """What TRL's config is made of: our options, and what keeps its trainer to rows, order and records of ours."""
    told = {name: value for name, value in flat(config).items() if name in SAME and value is not None}
    optim = config.optim.optim
    schedule_of(config.optim, steps)  # refuses a warm-up and a decay that are longer than the run
    told |= _schedule(config.optim, steps) | {
        "output_dir": str(out), "max_steps": steps, "use_cpu": not cuda, "bf16": bf16,
        "optim": "adamw_torch_fused" if cuda and optim == "adamw_torch" else optim,
        # `auto` is for what the loops predict of their own steps.
        "gradient_checkpointing": config.run.gradient_checkpointing is True,
        "activation_offloading": config.run.activation_offloading is True, "train_sampling_strategy": "sequential",
        "remove_unused_columns": False, "logging_steps": 1, "logging_nan_inf_filter": False, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": cuda,
    }  # fmt: skip
    if isinstance(config, SFTConfig):
        return told | {"dataset_kwargs": {"skip_prepare_dataset": True}}
    told["disable_dropout"] = False  # lora_dropout means what it says
    return told


def _schedule(optim: Optim, steps: int) -> dict[str, Any]:
    """The learning rate as transformers is told it."""
    kind, stable = optim.lr_scheduler_type, decay_start(optim, steps)
    warmup = optim.warmup_steps or math.ceil(optim.warmup_ratio * steps)
    more: dict[str, Any] = {}
    if kind == "constant" and warmup:
        kind = "constant_with_warmup"  # transformers' `constant` has none
    elif kind == "cosine_with_min_lr":
        more = {"min_lr_rate": optim.min_lr_rate}
    elif stable is not None:
        fall = {"num_decay_steps": steps - stable, "decay_type": optim.decay_type}
        more = {**fall, "min_lr_ratio": optim.min_lr_rate}
    return {"lr_scheduler_type": kind, "warmup_steps": warmup, "lr_scheduler_kwargs": more}
