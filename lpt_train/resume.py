"""Whether a run may go on: what it must share with the one that it continues, and what may have changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from manifests.errors import RefusedError

# What a resumed run must share with the one it goes on with, besides its options …
_IDENTITY = ("algorithm", "manifest", "split", "content_root", "tokenizer", "tokenized_id")
# … of which these change what is watched and kept, not what is computed …
_FREE_TO_CHANGE = ("logging_steps", "save_steps", "save_total_limit", "eval_steps", "sharding", "ddp_timeout")
# … and these the length, at which every schedule but the constant one aims from its first step on.
_LENGTH = ("run.max_steps", "run.num_train_epochs")
_SCHEDULE = "optim.lr_scheduler_type"
# With another number of processes these two may change, as long as a step has as many rows as it had.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def check_resume(before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise `RefusedError` unless the recorded run is of this algorithm, split, tokenizer, model and these options.

    The length may change where the schedule is constant: then the steps done are those of the longer run as well. The
    number of processes may change where a step keeps its rows: then its sums are the same up to rounding.
    """
    then, now_ = (
        {key: body.get(key) for key in _IDENTITY} | {"start_model": body["model"]["digest"]} | _flat(body["config"])
        for body in (before, asked)
    )
    if (before_many := _processes(before)) != (now_many := _processes(asked)):
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
    if _length(then) != _length(now_) and now_.get(_SCHEDULE) != "constant":
        raise RefusedError(
            f"the {now_.get(_SCHEDULE)} schedule of the run aims at the length it was started with",
            seen=_both(sorted(differ & set(_LENGTH)), then, now_),
            next="resume with the length the run started with; or start a new run with --model set to this one, or one "
            "with lr_scheduler_type=constant, which can be made longer",
        )


def _processes(body: Mapping[str, Any]) -> int:
    return int(body.get("ranks", {}).get("world_size", 1))


def _length(config: Mapping[str, Any]) -> tuple[str, Any]:
    steps, epochs = (config.get(name) for name in _LENGTH)
    return ("steps", steps) if steps and steps > 0 else ("epochs", epochs)


def _both(names: list[str], then: Mapping[str, Any], now_: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {then.get(name)} then, {now_.get(name)} now" for name in names)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
