"""The schedule of a mixture as a trainer reads it: which rows, in which steps, with which shares.

    {"type": "lpt.mix-schedule/1", "plan_hash": …, "data": {"file", "sha256", "rows", "content_root", "order_sha256"},
     "rows_per_step": 32, "steps": 313, "learning_rate": {…}, "curriculum": {…} | null,
     "phases": [{"from", "until", "first_row", "end_row", "first_step", "end_step", "asked": {domain: share},
                 "observed": {domain: share}, "rows": {domain: n}, "learning_rate": [start, end]}]}

The rows of the data file are in the order of training: step s reads rows [s * rows_per_step, (s + 1) * rows_per_step).
`end_*` are exclusive; a step whose rows lie in two phases is counted in both. Without `rows_per_step` the steps are
null and a trainer follows the row ranges. Learning rates are multiples of the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lpt_data.allocation import rate
from lpt_data.mix_spec import LearningRate, MixSpec
from manifests.digests import order_sha256

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
