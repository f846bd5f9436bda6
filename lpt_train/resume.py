"""Whether a run may go on: what it must share with the one that it continues, and what may have changed.

Its record holds what it was started with, so that nothing has to be typed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpt_train.admitted import AdmittedSplit
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.checkpoint import Restored, read_state
from lpt_train.checkpoint_folders import checkpoints
from lpt_train.config import flattened, from_mapping, option_names, to_mapping
from lpt_train.ranks import launched
from lpt_train.schedule import rates_sha256
from manifests.errors import RefusedError, UsageError

# What a resumed run must share with the one it goes on with, besides its options …
_IDENTITY = ("algorithm", "manifest", "split", "content_root", "tokenizer", "tokenized_id")
# … of which these change what is watched and kept, not what is computed …
_FREE_TO_CHANGE = (
    "logging_steps", "save_steps", "save_total_limit", "eval_steps", "report_to", "early_stopping_patience",
    "early_stopping_threshold", "memory", "max_memory_gb", "gradient_checkpointing", "gradient_checkpointing_every",
    "activation_offloading", "sharding", "ddp_timeout",
)  # fmt: skip
# … and these the length, at which every schedule but these aims from its first step on.
_LENGTH = ("run.max_steps", "run.num_train_epochs")
# What may let a run go on that stopped early.
_PATIENCE = ("run.early_stopping_patience", "run.early_stopping_threshold")
_SCHEDULE = "optim.lr_scheduler_type"
_CAN_GROW = ("constant", "warmup_stable_decay")
# With another number of processes these two may change, as long as a step has as many rows as it had.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class Recorded:
    """What a run was started with: its options, and its splits as the command line names them."""

    config: Any
    admitted: str | None
    unadmitted: Path | None
    eval_split: str | None
    body: Mapping[str, Any]

    def nothing_left(self, split: AdmittedSplit, evaluated: AdmittedSplit | None) -> bool:
        """Whether the run is as long as it is asked to be, on these splits."""
        lengths = _LENGTH + (_PATIENCE if self.body.get("stopped_early") else ())
        then, now_ = flattened(self.body["config"]), flattened(to_mapping(self.config))
        here = (split.content_root, evaluated.content_root if evaluated is not None else None)
        there = (self.body.get("content_root"), (self.body.get("eval") or {}).get("content_root"))
        same = all(then.get(name) == now_.get(name) for name in lengths)
        return self.body.get("status") == "done" and same and here == there


def as_recorded(body: Mapping[str, Any], algorithm: str, typed: Mapping[str, Any]) -> Recorded:
    """The start of a recorded run, with the options that are `typed` on top.

    Raises `RefusedError` for a run of another algorithm and for options that contradict it, `UsageError` for a run of
    TRL's trainers.
    """
    if body.get("algorithm") != algorithm:
        raise RefusedError(
            "the run is one of another algorithm", seen=f"{body.get('algorithm')} then, {algorithm} now",
            next=f"lpt train {body.get('algorithm')} --resume RUN",
        )  # fmt: skip
    if _engine(body) == "trl":
        raise not_with_trl("a run of --engine trl")
    kind = ALGORITHMS[algorithm].config
    known = option_names(kind).values()  # what the record has beside them, `check_resume` names
    base: Any = from_mapping(kind, {name: value for name, value in flattened(body["config"]).items() if name in known})
    config = config_of(algorithm, typed, base)
    asked = {**body, "config": to_mapping(config), "ranks": {"world_size": launched()}}
    check_resume(body, asked, to_mapping(kind()))  # before a model is read
    split, measured = body.get("split"), body.get("eval") or {}
    is_admitted = body.get("verified") == "admitted"
    return Recorded(
        config, split if is_admitted else None,
        None if is_admitted or split is None else Path(split), measured.get("ref"), body,
    )  # fmt: skip


def not_with_trl(seen: str) -> UsageError:
    """What a user hears who wants a run of TRL's trainers to go on."""
    return UsageError(
        "a run of --engine trl is not resumed: TRL goes on from pickles, which are not written here", seen=seen,
        next="start a new run with --model set to this one, or train with --engine lean",
    )  # fmt: skip


def _engine(body: Mapping[str, Any]) -> str:
    return str((body.get("engine") or {"name": "lean"})["name"])


def check_resume(
    before: Mapping[str, Any], asked: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> None:
    """Raise `RefusedError` unless the recorded run is of this algorithm, split, tokenizer, model and these options.

    `defaults` stand for the options that were not there yet when the run was started.

    The length may change where the schedule is constant for a while: then the steps done may be those of the longer run
    as well, which `check_rates` tells when the checkpoint is read. The number of processes may change where a step
    keeps its rows: then its sums are the same up to rounding.
    """
    _check_template(before, asked)
    then, now_ = (
        flattened(defaults or {}) | {key: body.get(key) for key in _IDENTITY}
        | {"eval split": " ".join(measured_on(body, evaluated=bool(asked.get("eval"))).values()) or None}
        | {"start_model": body["model"]["digest"], "engine": _engine(body)}
        | flattened(body["config"])
        for body in (before, asked)
    )  # fmt: skip
    if (before_many := processes(before)) != (now_many := processes(asked)):
        for config, many in ((then, before_many), (now_, now_many)):
            config["rows_a_step"] = many * math.prod(config.pop(name) for name in _BATCH)
    differ = {name for name in then.keys() | now_.keys() if then.get(name) != now_.get(name)}
    free = {name for name in differ if name.rpartition(".")[2] in _FREE_TO_CHANGE}
    if changed := sorted(differ - free - set(_LENGTH)):
        raise RefusedError(
            f"the run was started with another {changed[0].rpartition('.')[2]}",
            seen=_both(changed, then, now_),
            next="resume with what the run started with, or start a new run in another folder",
        )
    if _length(then) != _length(now_) and now_.get(_SCHEDULE) not in _CAN_GROW:
        raise RefusedError(
            f"the {now_.get(_SCHEDULE)} schedule of the run aims at the length it was started with",
            seen=_both(sorted(differ & set(_LENGTH)), then, now_),
            next="resume with the length the run started with; or start a new run with --model set to this one, or one "
            "with lr_scheduler_type=constant or warmup_stable_decay, which can be made longer",
        )


def _check_template(before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise `RefusedError` where the tokenizer is the same and another template renders the conversations."""
    then, now_ = (dict(body.get("tokenizer") or {}) for body in (before, asked))
    if then.get("fingerprint") != now_.get("fingerprint") or then.get("template_sha256") == now_.get("template_sha256"):
        return
    package, here = ((body.get("env") or {}).get("packages", {}).get("trl") for body in (before, asked))
    name = then.get("training_template")
    with_it = f"TRL's training template {name}" + (f" (trl {package})" if package else "")
    raise RefusedError(
        f"the run was begun with {with_it}" if name else "the run was begun without TRL's training template",
        seen="; ".join(
            f"{told.get('training_template') or 'the chat template of the model'} "
            f"({str(told.get('template_sha256'))[:16]}…) {when}" for told, when in ((then, "then"), (now_, "now"))
        ),
        next=f"{_template_again(name, package, here)}start a new run in another folder",
    )  # fmt: skip


def _template_again(name: str | None, package: str | None, here: str | None) -> str:
    """What brings back the template that a run was begun with; "" where nothing does."""
    if name is None:
        return "resume where trl is not installed (pip uninstall trl), or "
    if package is None:
        return "install the version of trl that the run began with, or "
    return "" if package == here else f"pip install 'trl=={package}', or "


def check_rates(back: Restored, multiplier: Callable[[int], float], directory: Path) -> None:
    """Raise `RefusedError` unless the steps done up to a checkpoint had the rates of the run as it is asked for now."""
    fits = [
        path for path in checkpoints(directory)
        if (state := read_state(path))["extra"].get("rates") in (None, rates_sha256(multiplier, state["step"]))
    ]  # fmt: skip
    if back.path in fits:
        return
    raise RefusedError(
        "the last checkpoint lies in the decay of the run as it was asked for before", seen=back.path.name,
        next=(f"remove the checkpoints after {fits[-1].name}, and resume again; or " if fits else "")
        + "start a new run with --model set to this one",
    )  # fmt: skip


def processes(body: Mapping[str, Any]) -> int:
    """How many processes a recorded run had."""
    return int(body.get("ranks", {}).get("world_size", 1))


def measured_on(body: Mapping[str, Any], *, evaluated: bool) -> Mapping[str, str]:
    """The split (`ref`, `content_root`) that a recorded run is evaluated on, empty without one.

    A record older than this entry does not say it: then it is unknown, which is no split that is `evaluated` now.
    """
    return body.get("eval", dict.fromkeys(("ref", "content_root"), "unknown") if evaluated else None) or {}


def _length(config: Mapping[str, Any]) -> tuple[str, Any]:
    steps, epochs = (config.get(name) for name in _LENGTH)
    return ("steps", steps) if steps and steps > 0 else ("epochs", epochs)


def _both(names: list[str], then: Mapping[str, Any], now_: Mapping[str, Any]) -> str:
    return "; ".join(f"{name.rpartition('.')[2]}: {then.get(name)} then, {now_.get(name)} now" for name in names)
