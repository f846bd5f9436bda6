"""Rewards beside rows: what a reward model, lent by the caller, gives to each conversation, as a column.

A chat or a labelled completion gets one column, a pair two: `NAME_chosen` and `NAME_rejected`. A row without a reward
has null there, and its reason is counted; it is neither dropped nor 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.config import RewardColumnConfig
from lpt_data.dataset import Dataset
from lpt_data.ordered import Order
from lpt_data.progress import Progress
from lpt_data.stage import StageResult, Work
from manifests import decisions
from manifests.errors import BadInputError

# (conversations) -> for each its reward, or None with the reason.
Score = Callable[[Sequence[Sequence[Mapping[str, Any]]]], Sequence[tuple[float | None, str]]]
AT_ONCE = 512  # rows between two calls of the model
SIDES = {"sft": ("messages",), "kto": ("completion",), "preference": ("chosen", "rejected")}


def reward_work(dataset: Dataset, score: Score, config: RewardColumnConfig, out: Path) -> Work:
    """Return the work of scoring rows; raises BadInputError for rows that are no conversations."""
    if dataset.kind not in SIDES:
        raise BadInputError(
            f"rows of the kind {dataset.kind} hold no reply to score", seen=dataset.layout,
            next="score chats, pairs or completions of a prompt",
        )  # fmt: skip
    return Work(
        "reward", dataset, config, lambda data, told, tell: _decide(data, told, score, tell), (out,), output=str(out)
    )


def columns_of(dataset: Dataset, config: RewardColumnConfig) -> list[str]:
    """Return the names of the columns that are added."""
    sides = SIDES[dataset.kind]
    return [config.column] if len(sides) == 1 else [f"{config.column}_{side}" for side in sides]


def _decide(dataset: Dataset, config: RewardColumnConfig, score: Score, progress: Progress) -> StageResult:
    sides, names = SIDES[dataset.kind], columns_of(dataset, config)
    rows: list[int] = []
    ids: list[bytes] = []
    found: list[float | None] = []
    reasons: Counter[str] = Counter()
    for part in _parts(dataset):
        asked = [_conversation(record, side) for _, record, _ in part for side in sides]
        for reward, reason in score(asked):
            found.append(reward)
            reasons.update([reason] if reward is None else [])
        rows += [row for row, *_ in part]
        ids += [name for *_, name in part]
        progress(rows[-1] + 1, None, "scoring")
    added = pa.table({name: pa.array(found[i :: len(sides)], pa.float64()) for i, name in enumerate(names)})
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows] = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
    known = [reward for reward in found if reward is not None]
    told = {
        "columns": names, "model": config.model, "template_sha256": config.template_sha256,
        "training_template": config.training_template, "scored": len(known), "unscored": dict(sorted(reasons.items())),
        "mean": float(np.mean(known)) if known else None, "sd": float(np.std(known)) if known else None,
        "least": min(known, default=None), "most": max(known, default=None),
    }  # fmt: skip
    return StageResult(decisions.empty(), record_ids, told, order=Order(np.array(rows, np.int64), added))


def _parts(dataset: Dataset) -> Iterator[list[tuple[int, Mapping[str, Any], bytes]]]:
    held: list[tuple[int, Mapping[str, Any], bytes]] = []
    for row, record, _, name in dataset.identified():
        held.append((row, record, name))
        if len(held) == AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _conversation(record: Mapping[str, Any], side: str) -> list[Mapping[str, Any]]:
    return list(record["messages"]) if side == "messages" else [*(record.get("prompt") or ()), *record[side]]
