"""Options that a run does not read: who types one means something by it, so it is refused. Free to import."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from lpt_train.config import flattened, to_mapping
from manifests.errors import UsageError

_LORA = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_exclude_modules", "lora_modules_to_save",
    "use_rslora", "use_dora", "init_lora_weights",
)  # fmt: skip
_BITS = ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_compute_dtype")
_SPIKES = ("spike_factor", "spike_window", "spike_limit", "spike_lr_factor", "spike_cooldown")
_MEASURED = ("eval_steps", "per_device_eval_batch_size", "calibration_bins")

# The names, when they are read (of the options by their bare names), and what reads them.
Rule = tuple[tuple[str, ...], Callable[[Mapping[str, Any]], bool], str]
LOSSES: tuple[Rule, ...] = (
    (
        ("label_smoothing",),
        lambda o: o["loss_type"] in ("sigmoid", "robust", "cpo"),
        "the losses sigmoid, robust and cpo take it",
    ),
    (("simpo_gamma",), lambda o: o["loss_type"] == "simpo", "the loss simpo takes it"),
    (("cpo_alpha",), lambda o: o["loss_type"] == "cpo", "the loss cpo takes it"),
)
OTHERS: tuple[Rule, ...] = (
    (
        ("num_decay_steps", "decay_ratio", "decay_type"),
        lambda o: o["lr_scheduler_type"] == "warmup_stable_decay",
        "lr_scheduler_type=warmup_stable_decay takes it",
    ),
    (("adam_beta1", "adam_beta2", "adam_epsilon"), lambda o: o["optim"] != "sgd", "sgd has no such value"),
    (_LORA, lambda o: o["use_peft"], "it is of an adapter, which use_peft=false leaves out"),
    (_BITS, lambda o: o["load_in_4bit"], "load_in_4bit=true takes it"),
    (_SPIKES, lambda o: o["spike_guard"], "spike_guard=true takes it"),
    (
        ("early_stopping_threshold", "metric_for_best_model"),
        lambda o: o["early_stopping_patience"] > 0,
        "early_stopping_patience takes it",
    ),
    (
        ("gradient_checkpointing_every",),
        lambda o: o["gradient_checkpointing"] is True,
        "gradient_checkpointing=true takes it",
    ),
    (_MEASURED, lambda o: o["evaluated"], "it is of the evaluation split, and there is no --eval"),
)


def check_read(config: Any, typed: Collection[str], in_file: Collection[str] = (), *, evaluated: bool) -> None:
    """Raise `UsageError` for an option that was typed, is not at its default, and that this run does not read.

    Of those that come from a file only what the loss does not take is refused: a file may serve several runs.
    """
    options, defaults = _bare(config), _bare(type(config)())
    options["evaluated"] = evaluated
    for names, reads, why in (*LOSSES, *OTHERS):
        given = {*typed, *in_file} if (names, reads, why) in LOSSES else typed
        for name in names:
            if name in given and name in options and options[name] != defaults[name] and not reads(options):
                raise UsageError(
                    f"{name} does nothing in this run: {why}", seen=f"{name}={options[name]}", next=f"leave out {name}"
                )


def _bare(config: Any) -> dict[str, Any]:
    return {name.rpartition(".")[2]: value for name, value in flattened(to_mapping(config)).items()}
