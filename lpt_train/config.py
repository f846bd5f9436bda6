"""Training options: small frozen blocks, composed. Free to import (no torch), unknown keys refused.

Names are TRL's where TRL has the option. A block is a group of options, not a namespace one has to remember:
`from_mapping` accepts `{"optim": {"learning_rate": 1e-4}}`, `{"optim.learning_rate": 1e-4}` and
`{"learning_rate": 1e-4}`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from lpt_train.config_checks import at_least, one_of
from lpt_train.config_guard import GuardOptions
from lpt_train.config_lora import Lora
from lpt_train.habits import instead
from manifests.errors import UsageError

Config = TypeVar("Config")

SCHEDULES = ("constant", "linear", "cosine", "cosine_with_min_lr", "warmup_stable_decay")
DECAYS = ("cosine", "linear", "1-sqrt")
REPORTS = ("tensorboard", "wandb", "trackio")
DTYPES = ("auto", "float32", "bfloat16")  # float16 needs loss scaling, which the loops do not do
DEVICES = ("auto", "cpu", "cuda")
SHARDINGS = ("none", "fsdp2")
MIX_SCHEDULES = ("auto", "follow", "ignore")
EXECUTIONS = ("auto", "graph", "compiled", "eager", "rows")
TRUNCATIONS = ("drop", "keep_start")
OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_offload",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "sgd",
)
_LARGEST_SEED = 2**63 - 1  # what torch takes
_COMMENT = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Optim:
    """The optimizer and its schedule."""

    optim: str = "adamw_torch"  # adamw_torch | adamw_torch_offload | adamw_8bit | paged_adamw_8bit | … | sgd
    learning_rate: float = 1e-4  # peak, reached after the warm-up
    lr_scheduler_type: str = "linear"  # constant | linear | cosine | cosine_with_min_lr | warmup_stable_decay
    warmup_steps: int = 0  # optimizer steps
    warmup_ratio: float = 0.0  # share of the run's steps; used when warmup_steps is 0
    num_decay_steps: int = 0  # of warmup_stable_decay: optimizer steps at the end of the run
    decay_ratio: float = 0.1  # of warmup_stable_decay: share of the run's steps; used when num_decay_steps is 0
    decay_type: str = "cosine"  # of warmup_stable_decay: cosine | linear | 1-sqrt
    min_lr_rate: float = 0.0  # share of the peak at the end of cosine_with_min_lr and warmup_stable_decay; others: 0
    weight_decay: float = 0.0  # on matrices only, never on biases and norms
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0  # global norm; 0 turns clipping off

    def __post_init__(self) -> None:
        one_of("optim", self.optim, OPTIMIZERS)
        one_of("lr_scheduler_type", self.lr_scheduler_type, SCHEDULES)
        at_least("learning_rate", self.learning_rate, 0)
        one_of("decay_type", self.decay_type, DECAYS)
        for name in ("warmup_steps", "num_decay_steps"):
            at_least(name, getattr(self, name), 0)
        for name in ("warmup_ratio", "decay_ratio", "min_lr_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is a share", seen=getattr(self, name), next=f"give {name} in [0, 1]")
        if self.min_lr_rate and self.lr_scheduler_type not in SCHEDULES[3:]:
            raise UsageError(
                f"the {self.lr_scheduler_type} schedule has no rate to end at", seen=f"min_lr_rate={self.min_lr_rate}",
                next="set lr_scheduler_type=cosine_with_min_lr or warmup_stable_decay, or leave min_lr_rate away",
            )  # fmt: skip
        at_least("max_grad_norm", self.max_grad_norm, 0)
        at_least("weight_decay", self.weight_decay, 0)
        at_least("adam_epsilon", self.adam_epsilon, 0)
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(
                    f"{name} is the share of the past that a mean keeps", seen=getattr(self, name),
                    next=f"give {name} in [0, 1), such as 0.9",
                )  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """What every algorithm's run has: length, seed, cadence, place, and who watches."""

    max_steps: int = -1  # optimizer steps; -1 derives them from num_train_epochs
    num_train_epochs: float = 1.0  # used when max_steps is -1
    seed: int = 42
    logging_steps: int = 1  # a line in metrics.jsonl every so many steps
    save_steps: int = 0  # a checkpoint every so many steps; 0: only at the end
    save_total_limit: int = 2  # checkpoints kept, newest first
    eval_steps: int = 0  # evaluation every so many steps; 0: at the end, when there is an evaluation split
    early_stopping_patience: int = 0  # evaluations without a better one after which the run ends; 0: never
    early_stopping_threshold: float = 0.0  # in units of the metric; what is better by no more than this is not better
    metric_for_best_model: str = ""  # lower is better if it ends with loss; empty: eval_loss, grpo: eval_accuracy
    report_to: str = "none"  # none, or names separated by commas: tensorboard, wandb, trackio
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # of the forward pass; auto: float32 on CPU, bfloat16 on CUDA
    sharding: str = "none"  # under torchrun: none: every process has all weights; fsdp2: they are spread over them
    ddp_timeout: int = 1800  # seconds that a process waits for the others before it gives up
    memory: str = "auto"  # auto: the options set to auto, and the offloaded optimizer, as a step needs them to fit; off
    max_memory_gb: float = 0.0  # 10^9 bytes that a step may take; 0: what is free on the GPU
    gradient_checkpointing: bool | str = "auto"  # true: layers keep their input alone and are computed again; false
    gradient_checkpointing_every: int = 1  # with gradient_checkpointing=true: every k-th layer
    activation_offloading: bool | str = "auto"  # true: what layers keep waits in host memory; false; auto: at need
    guard: GuardOptions = field(default_factory=GuardOptions)

    def __post_init__(self) -> None:
        at_least("early_stopping_patience", self.early_stopping_patience, 0)
        at_least("early_stopping_threshold", self.early_stopping_threshold, 0)
        for name in self.reports:
            one_of("report_to", name, REPORTS)
        one_of("device", self.device, DEVICES)
        one_of("sharding", self.sharding, SHARDINGS)
        at_least("ddp_timeout", self.ddp_timeout, 1)
        one_of("dtype", self.dtype, DTYPES)
        one_of("memory", self.memory, ("auto", "off"))
        at_least("max_memory_gb", self.max_memory_gb, 0)
        at_least("gradient_checkpointing_every", self.gradient_checkpointing_every, 1)
        for name in ("gradient_checkpointing", "activation_offloading"):
            if isinstance(value := getattr(self, name), str) and value != "auto":
                raise UsageError(f"{name} has no choice of that name", seen=value, next="one of: auto, true, false")
        at_least("logging_steps", self.logging_steps, 1)
        at_least("save_steps", self.save_steps, 0)
        at_least("save_total_limit", self.save_total_limit, 1)
        at_least("eval_steps", self.eval_steps, 0)
        at_least("seed", self.seed, 0)
        if self.seed > _LARGEST_SEED:
            raise UsageError("the seed is too large", seen=self.seed, next=f"give seed <= {_LARGEST_SEED}")
        at_least("num_train_epochs", self.num_train_epochs, 0)
        if self.max_steps < 1 and (self.max_steps != -1 or not 0 < self.num_train_epochs < math.inf):
            raise UsageError(
                "a run needs a length", seen={"max_steps": self.max_steps, "num_train_epochs": self.num_train_epochs},
                next="give max_steps >= 1, or max_steps=-1 with num_train_epochs > 0",
            )  # fmt: skip

    @property
    def reports(self) -> tuple[str, ...]:
        """The names of `report_to`."""
        names = tuple(dict.fromkeys(name.strip() for name in self.report_to.split(",")))
        return () if names == ("none",) else names


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning on an admitted `sft` split, or continued pre-training on a `text` one."""

    model: str = "tiny"  # path of a folder or .gguf file, hub name, or "tiny"
    max_length: int = 1024  # tokens a row
    truncation: str = "drop"  # drop: rows that are longer are dropped and counted; keep_start: cut at the end
    packing: bool = False  # best-fit-decreasing into rows of max_length tokens, isolated
    per_device_train_batch_size: int = 8  # rows (packed rows when packing) a micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches an optimizer step
    per_device_eval_batch_size: int = 8  # rows
    logits_chunk: int = 1024  # token positions whose logits exist at the same time
    execution: str = "auto"  # auto | graph | compiled | eager | rows: how a micro-batch runs; auto: the fastest
    mix_schedule: str = "auto"  # auto: the steps of the mixture where the split has one; follow; ignore
    optim: Optim = field(default_factory=Optim)
    lora: Lora = field(default_factory=Lora)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        one_of("truncation", self.truncation, TRUNCATIONS)
        one_of("execution", self.execution, EXECUTIONS)
        one_of("mix_schedule", self.mix_schedule, MIX_SCHEDULES)
        for name in (
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "per_device_eval_batch_size",
            "logits_chunk",
        ):
            at_least(name, getattr(self, name), 1)
        at_least("max_length", self.max_length, 2)


def option_names(config_type: type) -> dict[str, str]:
    """Every accepted option of a config type as `{bare name: dotted path}`."""
    names: dict[str, str] = {}
    hints = typing.get_type_hints(config_type)
    for item in fields(config_type):
        if is_dataclass(hints[item.name]):
            names |= {leaf: f"{item.name}.{path}" for leaf, path in option_names(hints[item.name]).items()}
        else:
            names[item.name] = item.name
    return names


def from_mapping(config_type: type[Config], options: Mapping[str, Any], base: Config | None = None) -> Config:
    """A config of `config_type` from options as YAML, or as `--set key=value` text, gives them; over `base` if given.

    Raises `UsageError` for an unknown key (with the closest names) and for a value that is not of the field's type.
    """
    names = option_names(config_type)
    flat: dict[str, Any] = {}
    for key, value in _flatten(config_type, options):
        path = names.get(key, key)
        if path not in names.values():
            if there := instead(key, value, names):
                raise UsageError(f"{key} is no option here", seen=f"{key}={value}", next=there)
            close = difflib.get_close_matches(key.rpartition(".")[2], list(names), n=3)
            raise UsageError(
                "unknown option", seen=key, next=f"did you mean {', '.join(close)}?" if close else
                f"the options are {', '.join(sorted(names))}",
            )  # fmt: skip
        flat[path] = value
    return _build(config_type, flat, "", base)


def to_mapping(config: Any) -> dict[str, Any]:
    """The config as nested plain values, in the order of its fields."""
    return {
        item.name: to_mapping(value) if is_dataclass(value := getattr(config, item.name)) else value
        for item in fields(config)
    }


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What `to_mapping` gave with its blocks opened: `{"run.seed": …}`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def described(config_type: type, default: Any = None) -> list[tuple[str, str, str]]:
    """Every option as (name, default, its unit and meaning): the comment that stands beside it in the source."""
    rows: list[tuple[str, str, str]] = []
    default = config_type() if default is None else default  # a block of a config may start elsewhere than its type
    comments = dict(_COMMENT.findall(inspect.getsource(config_type)))
    for item in fields(config_type):
        value = getattr(default, item.name)
        if is_dataclass(value):
            rows += described(type(value), value)
        else:
            rows.append((item.name, "none" if value is None else str(value), comments.get(item.name, "")))
    return rows


def _flatten(config_type: type, options: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat += _flatten(config_type, value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _build(config_type: type[Config], flat: Mapping[str, Any], prefix: str, base: Config | None) -> Config:
    hints = typing.get_type_hints(config_type)
    # The instance of defaults carries what a subtype of a block changed: GRPO's Optim need not start where SFT's does.
    start = base if base is not None else config_type()
    values: dict[str, Any] = {}
    for item in fields(config_type):  # type: ignore[arg-type]
        path = f"{prefix}{item.name}"
        current = getattr(start, item.name)
        if is_dataclass(current):
            values[item.name] = _build(type(current), flat, f"{path}.", current)
        elif path in flat:
            values[item.name] = _convert(path, flat[path], hints[item.name])
        else:
            values[item.name] = current
    return config_type(**values)


def _convert(path: str, value: Any, hint: Any) -> Any:
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    for kind in choices:
        converted = _as(kind, value)
        if converted is not _WRONG:
            return converted
    wanted = " or ".join(getattr(kind, "__name__", str(kind)) for kind in choices)
    name = path.rpartition(".")[2]  # as it is typed
    raise UsageError(f"option {name} has the wrong type", seen=value, next=f"give a value of type {wanted}")


_WRONG = object()
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _as(kind: Any, value: Any) -> Any:
    if kind is type(None):
        return None if value is None or value in ("null", "none", "None") else _WRONG
    if kind is bool:
        if isinstance(value, str):
            return _WORDS.get(value.lower(), _WRONG)
        return value if isinstance(value, bool) else _WRONG
    if isinstance(value, bool):
        return _WRONG
    if kind in (int, float):
        if kind is int and isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 40:
            return int(value)  # a float has not all digits of a seed
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return _WRONG
        if kind is float:
            return number
        return int(number) if number.is_integer() else _WRONG
    return value if kind is str and isinstance(value, str) else _WRONG
