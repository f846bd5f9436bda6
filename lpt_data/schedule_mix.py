"""The schedule of a mixture as a trainer reads it: which rows, in which steps, with which shares.

    {"type": "lpt.mix-schedule/1", "plan_hash": …, "data": {"file", "sha256", "rows", "content_root", "order_sha256"},
     "rows_per_step": 32, "steps": 313, "learning_rate": {…}, "curriculum": {…} | null,
     "phases": [{"from", "until", "first_row", "end_row", "first_step", "end_step", "asked": {domain: share},
                 "observed": {domain: share}, "rows": {domain: n}, "learning_rate": [start, end]}]}

The rows of the data file are in the order of training: step s reads rows [s * rows_per_step, (s + 1) * rows_per_step).
A split that is admitted out of the data file takes the schedule that lies beside it into its manifest (`of_split`).
`end_*` are exclusive; a step whose rows lie in two phases is counted in both. Without `rows_per_step` the steps are
null and a trainer follows the row ranges. Learning rates are multiples of the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lpt_data.mix_spec import LearningRate, MixSpec
from manifests.digests import order_sha256
from manifests.errors import BadInputError
from manifests.rates import rate

TYPE = "lpt.mix-schedule/1"


def step_range(first_row: int, end_row: int, rows_per_step: int | None) -> tuple[int | None, int | None]:
    """Return (first step, step after the last) that read a range of rows; (None, None) where a step is not defined."""
    if rows_per_step is None:
        return None, None
    return first_row // rows_per_step, -(-end_row // rows_per_step)


def rates_of(before: float, until: float, rates: LearningRate) -> list[float]:
    """Return the learning rate at both ends of a phase, in multiples of the peak."""
    return [round(rate(rates.type, at, rates.warmup, rates.decay), 6) for at in (before, until)]


def schedule(
    spec: MixSpec,
    plan_hash: str,
    phases: Sequence[Mapping[str, Any]],
    file: Mapping[str, Any],
    ids: np.ndarray,
    root: str,
) -> dict[str, Any]:
    """Return the body of mix-schedule.json; `ids` are those of the rows written, uint8 [rows, 32], in order."""
    curriculum = spec.curriculum
    rates = spec.learning_rate
    return {
        "type": TYPE,
        "plan_hash": plan_hash,
        "data": {**file, "content_root": root, "order_sha256": order_sha256(ids)},
        "rows_per_step": spec.rows_per_step,
        "steps": step_range(0, len(ids), spec.rows_per_step)[1],
        "learning_rate": {"type": rates.type, "warmup": rates.warmup, "decay": rates.decay},
        "curriculum": None
        if curriculum is None
        else {
            "column": curriculum.column,
            "order": "descending" if curriculum.descending else "ascending",
            "domains": list(curriculum.domains),
            "within": "all" if curriculum.together else "domain",
        },
        "phases": list(phases),
    }


def schedule_path(out: Path) -> Path:
    """Return where the schedule of an output lies: beside it, `NAME.mix-schedule.json`."""
    return out.parent / f"{out.name}.mix-schedule.json"


def of_split(files: Sequence[Mapping[str, Any]], ids: np.ndarray) -> dict[str, Any] | None:
    """Return the schedule of the rows of a split: what lies beside its one file, with the file's own name left out.

    `ids` are those of the rows admitted, uint8 [rows, 32], in order. Raises BadInputError where the schedule is of
    other rows than these, since its steps would read what they were not meant to.
    """
    places = [schedule_path(Path(file["path"])) for file in files]
    there = [path for path in places if path.is_file()]
    if not there:
        return None
    path = there[0]
    try:
        body = orjson.loads(path.read_bytes())
        told = body["data"] if body["type"] == TYPE else {}
        same = told["sha256"] == files[0]["sha256"] and told["order_sha256"] == order_sha256(ids)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError("the schedule beside a file is none", seen=f"{path}: {error}", next="remove it") from error
    if len(files) > 1 or not same:
        why = "it is one of several files" if len(files) > 1 else "the file, or the rows read of it, are others"
        raise BadInputError(
            "the schedule beside a file is of other rows than the split",
            seen=f"{path}: {why}",
            next="admit the file as `lpt data mix` wrote it, or remove the schedule to train on it in any order",
        )
    return {**body, "data": {name: value for name, value in told.items() if name != "file"}}
