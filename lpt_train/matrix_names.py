"""The names of the values that cells of a matrix have, known before the first one trains: what gates and a metric may
name. Free to import (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lpt_train.config_preference import ALGORITHMS as LOSSES
from manifests.errors import UsageError
from manifests.spec_values import did_you_mean

_RUN = ("trainable_parameters", "peak_memory_bytes", "seconds", "tokens_per_second", "steps")
_STEP = (
    "loss", "grad_norm", "learning_rate", "tokens", "epoch", "step_seconds", "eta_seconds", "memory_gib", "mfu",
    "skipped",
)  # fmt: skip
_REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/margins")
_PAIRS = (*_REWARDS, "rewards/accuracies", "logps/chosen", "logps/rejected", "kl_k1")
_RANKED = ("accuracy", "margin", "mean_reward", "min_reward", "max_reward")
_SAMPLED = (
    "reward", "reward_std", "frac_zero_variance", "frac_short_groups", "unscorable", "completion_length",
    "truncated_share", "clip_low", "clip_high", "ratio_kl", "kl", "entropy", "mismatch", "generation_seconds",
    "training_seconds", "mfu_generation", "mfu_training", "skipped_steps",
)  # fmt: skip
# What a step tells, and what an evaluation tells under `eval_`.
_OF: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sft": (("supervised_tokens",), ("loss",)),
    "kto": ((*_REWARDS, "kl"), ("loss", *_REWARDS, "kl")),
    "reward": (_RANKED, ("loss", *_RANKED)),
    "grpo": (_SAMPLED, ("accuracy", "low", "high", "n")),
    **dict.fromkeys(LOSSES, (_PAIRS, ("loss", *_PAIRS))),
}
_PROBE = (
    "accuracy", "format_rate", "loss", "perplexity", "bits_per_byte", "tokens", "accuracy_per_token", "margin",
    "margin_per_token", "chosen_nll", "rejected_nll", "latency_seconds",
)  # fmt: skip
_OPEN = re.compile(r"domain/.+|probe\.(pass|maj)@[0-9]+")  # named by the data, or by the samples asked for


def values_of(algorithm: str, *, evaluated: bool = True, probed: bool = True, largest: bool = True) -> set[str]:
    """The names of the values of a cell, but for those that the data names."""
    step, held_out = _OF[algorithm]
    return {
        *_RUN, *_STEP, *step, *(f"eval_{name}" for name in held_out if evaluated),
        *(f"probe.{name}" for name in _PROBE if probed), *(["largest_batch"] if largest else []),
    }  # fmt: skip


def check_names(
    names: Iterable[str], where: str, algorithm: str, *, evaluated: bool, probed: bool, largest: bool
) -> None:
    """Raise `UsageError` for a name that no cell will have a value of, saying what it needs or what was meant."""
    here = values_of(algorithm, evaluated=evaluated, probed=probed, largest=largest)
    for name in names:
        if name in here or (_OPEN.fullmatch(name) and (probed or not name.startswith("probe."))):
            continue
        needs = (
            "give largest_batch" if name == "largest_batch"
            else "give probe" if name.startswith("probe.") and not probed
            else "give eval, the split it is measured on" if name in values_of(algorithm) and not evaluated
            else did_you_mean(name, here)
        )  # fmt: skip
        raise UsageError(f"{where} names a value that no cell will have", seen=name, next=needs)
