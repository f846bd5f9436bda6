"""Our options as TRL's, by name. What TRL's trainers do not have is refused where it is not at its default, never left
out in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpt_train.config import SFTConfig, option_names, to_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import ALGORITHMS, PreferenceConfig
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
    "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora",
)  # fmt: skip
SCHEDULES = ("constant", "linear", "cosine")
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


def check_options(config: Config) -> None:
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
    if values["lr_scheduler_type"] not in SCHEDULES:
        raise UsageError(
            "the schedule of that name is not TRL's", seen=values["lr_scheduler_type"],
            next=f"--engine lean, or one of {', '.join(SCHEDULES)}",
        )  # fmt: skip
    if values["seed"] > LARGEST_SEED:
        raise UsageError("the seed is too large for TRL", seen=values["seed"], next=f"give seed <= {LARGEST_SEED}")


def arguments(config: Config, *, steps: int, out: Path, cuda: bool, bf16: bool) -> dict[str, Any]:
    """What TRL's config is made of: our options, and what keeps its trainer to rows, order and records of ours."""
    told = {name: value for name, value in flat(config).items() if name in SAME and value is not None}
    if told["lr_scheduler_type"] == "constant" and told["warmup_steps"]:
        told["lr_scheduler_type"] = "constant_with_warmup"  # TRL's `constant` has no warm-up
    told |= {
        "output_dir": str(out), "max_steps": steps, "optim": "adamw_torch_fused" if cuda else "adamw_torch",
        "use_cpu": not cuda, "bf16": bf16, "gradient_checkpointing": False, "train_sampling_strategy": "sequential",
        "remove_unused_columns": False, "logging_steps": 1, "logging_nan_inf_filter": False, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": cuda,
    }  # fmt: skip
    if isinstance(config, SFTConfig):
        return told | {"dataset_kwargs": {"skip_prepare_dataset": True}}
    told["disable_dropout"] = False  # lora_dropout means what it says
    return told
