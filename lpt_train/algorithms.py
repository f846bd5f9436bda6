"""The algorithms by name: their options, the records that they train on, and where their loop is. Free to import (no
torch), so that a specification can be checked before anything is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lpt_train.config import SFTConfig, from_mapping, one_of, option_names
from lpt_train.config_grpo import GRPOConfig
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import ALGORITHMS as LOSSES
from lpt_train.config_preference import PreferenceConfig
from lpt_train.config_reward import RewardConfig
from manifests.errors import UsageError


@dataclass(frozen=True)
class Algorithm:
    """One algorithm. `contract` is what an unadmitted file is read as; `metric` what an evaluation split shows of it,
    and whether `more` of it is better."""

    config: type
    module: str
    contract: str
    metric: str
    more: bool = False

    @property
    def train(self) -> Callable[..., Any]:
        """Its loop."""
        return importlib.import_module(self.module).train


_PREFERENCE = Algorithm(PreferenceConfig, "lpt_train.preference", "preference", "eval_rewards/accuracies", more=True)
ALGORITHMS: dict[str, Algorithm] = {
    "sft": Algorithm(SFTConfig, "lpt_train.sft", "sft", "eval_loss"),
    "dpo": _PREFERENCE,
    "simpo": _PREFERENCE,
    "cpo": _PREFERENCE,
    "orpo": _PREFERENCE,
    "kto": Algorithm(KTOConfig, "lpt_train.kto", "preference", "eval_loss"),
    "reward": Algorithm(RewardConfig, "lpt_train.reward", "preference", "eval_accuracy", more=True),
    "grpo": Algorithm(GRPOConfig, "lpt_train.grpo", "rlvr", "eval_accuracy", more=True),
}


def config_of(algorithm: str, options: Mapping[str, Any], base: Any = None) -> Any:
    """The options of an algorithm as its config, over those of `base`; raises `UsageError` for an unknown or wrong
    one."""
    one_of("algorithm", algorithm, tuple(ALGORITHMS))
    check_owner(algorithm, options)
    if algorithm in LOSSES:
        if base is None:
            options = {"loss_type": LOSSES[algorithm][0], **options}
        if "loss_type" in options:
            one_of("loss_type", options["loss_type"], LOSSES[algorithm])
    config: Any = from_mapping(ALGORITHMS[algorithm].config, options, base)
    if algorithm in LOSSES:
        one_of("loss_type", config.loss_type, LOSSES[algorithm])
    return config


def check_owner(algorithm: str, names: Iterable[str]) -> None:
    """Raise `UsageError` for the setting of another algorithm."""
    settings = {each: option_names(found.config) for each, found in ALGORITHMS.items()}
    for name in names:
        owners = [each for each in ALGORITHMS if name in settings[each]]
        if owners and algorithm not in owners:
            raise UsageError(
                f"{algorithm} has no setting {name}: it is one of {', '.join(owners)}", seen=name,
                next=f"leave it out; lpt train settings {algorithm} lists what there is",
            )  # fmt: skip
