"""What a deduplication has to say for itself: how pairs were found, whom they went for, and where to look twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpt_data.dataset import Dataset
from lpt_data.dedup.rows import Rows

WEAKEST = 5  # removals shown with their texts
EXCERPT = 160  # characters of a text shown
ALARM_ROWS = 100  # rows that a kept row may stand for without an alarm, whatever their share
ALARMS = 5  # alarms shown

REASONS = (
    "",
    "exact_duplicate",
    "normalized_duplicate",
    "near_duplicate",
    "empty_text",
    "duplicate_of_reference",
    "duplicated_row",
    "semantic_duplicate",
)
EXACT, NORMALIZED, NEAR, EMPTY, REFERENCE, DUPLICATED, SEMANTIC = range(1, 8)


@dataclass(frozen=True)
class Removals:
    """What happens to each row, by position."""

    reason: np.ndarray  # int8 [n], an index into REASONS
    witness: np.ndarray  # int64 [n], the position of the kept row, -1 where there is none
    score: np.ndarray  # float64 [n]
    match: np.ndarray  # int8 [n], EXACT, NORMALIZED, NEAR or SEMANTIC: how a row resembles its witness; 0 without one


def biggest_keeper(rows: Rows, found: Removals) -> dict[str, Any] | None:
    """The kept row for which the most rows went, and their share of all rows; the smallest row of equals."""
    witnesses = found.witness[(found.witness >= 0) & (found.reason > 0)]
    if not len(witnesses):
        return None
    absorbed = np.bincount(witnesses)
    most = np.flatnonzero(absorbed == absorbed.max())
    keeper = int(most[np.argmin(rows.rows[most])])
    count = int(absorbed[keeper])
    return {
        "row": int(rows.rows[keeper]),
        "record_id": rows.ids[keeper].tobytes().hex(),
        "absorbed": count,
        "share": round(count / (len(rows.rows) - rows.references), 6),
        **({"of_reference": True} if keeper < rows.references else {}),
    }


def alarms(rows: Rows, found: Removals, dataset: Dataset, share: float) -> list[dict[str, Any]]:
    """Kept rows that stand for more than ``share`` of the rows of one file, and more than ALARM_ROWS: the most first.

    That many rows are seldom copies: look for a template, a placeholder, or a text cut off.
    """
    gone = np.flatnonzero((found.witness >= 0) & (found.reason > 0))
    starts = np.array([*dataset.first_rows, dataset.rows_in], np.int64)
    file = np.searchsorted(starts, rows.rows[gone], side="right") - 1
    pairs, absorbed = np.unique(found.witness[gone] * len(dataset.files) + file, return_counts=True)
    keeper, file = np.divmod(pairs, len(dataset.files))
    loud = np.flatnonzero((absorbed > ALARM_ROWS) & (absorbed > share * np.diff(starts)[file]))
    loud = loud[np.lexsort((rows.rows[keeper[loud]], -absorbed[loud]))][:ALARMS]
    return [
        {
            "file": dataset.files[file[i]].path,
            "row": int(rows.rows[keeper[i]]),
            "record_id": rows.ids[keeper[i]].tobytes().hex(),
            "of_reference": bool(keeper[i] < rows.references),
            "absorbed": int(absorbed[i]),
            "share": round(float(absorbed[i] / (starts[file[i] + 1] - starts[file[i]])), 6),
            "text": rows.text(int(keeper[i])).decode("utf-8", "replace")[:EXCERPT],
        }
        for i in loud.tolist()
    ]


def weakest(rows: Rows, found: Removals, match: int = NEAR) -> list[dict[str, Any]]:
    """The duplicates of one kind that went on the lowest score, first the one most worth a doubt."""
    near = np.flatnonzero((found.match == match) & (found.reason > 0) & (found.witness >= 0))
    order = near[np.lexsort((rows.rows[near], found.score[near]))][:WEAKEST]
    return [
        {
            "row": int(rows.rows[position]),
            "witness_row": int(rows.rows[found.witness[position]]),
            "score": float(found.score[position]),
            **dict(zip(("text", "witness_text"), _texts(rows, position, found.witness[position]), strict=True)),
            **({"of_reference": True} if found.witness[position] < rows.references else {}),
        }
        for position in order.tolist()
    ]


def _texts(rows: Rows, a: int, b: int) -> tuple[str, str]:
    first, second = (rows.text(int(i)).decode("utf-8", "replace") for i in (a, b))
    return differing(first, second)


def differing(a: str, b: str) -> tuple[str, str]:
    """Excerpts of two texts, each from shortly before the first character that differs."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, same - EXCERPT // 4)
    lead = "…" if start else ""
    first, second = (lead + t[start : start + EXCERPT] + ("…" if len(t) > start + EXCERPT else "") for t in (a, b))
    return first, second
