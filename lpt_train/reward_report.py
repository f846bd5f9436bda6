"""What a finished reward model is worth on held-out pairs: accuracy, calibration, bias.

The numbers are in `reward.json`, a page with the reliability diagram in `reward.html`, both in the folder of the run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lpt_train.admitted import AdmittedSplit
from lpt_train.calibration import calibration
from lpt_train.config_reward import RewardConfig
from lpt_train.estimates import clustered_share
from lpt_train.micro_batch import MicroBatch
from lpt_train.rankings import Rankings
from lpt_train.reward_batch import rewards_of
from lpt_train.reward_bias import length_bias, position_bias
from lpt_train.reward_pages import write_reliability_page
from manifests.canon import canonical_json
from manifests.files import write_atomic

NO_SPLIT = "there is no evaluation split (--eval)"
STOPPED = {"status": "skipped", "reason": "the run was stopped before its last step"}


def reward_report(
    run_micro_batch: MicroBatch,
    held_out: Rankings | None,
    split: AdmittedSplit | None,
    config: RewardConfig,
    out: Path,
) -> dict[str, Any]:
    """Measure on every pair of the split, write `reward.json` and `reward.html` under `out`, and return the numbers.

    Without a split the report says that it was skipped; nothing is written.
    """
    if held_out is None or split is None:
        return {"status": "skipped", "reason": NO_SPLIT}
    size = 2 * config.per_device_eval_batch_size
    rows = held_out.rows
    rewards_S = rewards_of(run_micro_batch, rows, size).numpy()
    exchanged_S = rewards_of(run_micro_batch, rows[::-1], size).numpy()[::-1]
    places_P_2, records_P = _pairs(held_out)
    lengths_S = np.array([row.supervised for row in rows])
    prompt_of = [canonical_json(row.get("prompt")) for row in split.rows()]
    prompts_P = [prompt_of[record] for record in records_P]
    body = {
        "status": "measured", "split": split.ref,
        **measures(rewards_S[places_P_2], lengths_S[places_P_2], prompts_P, config.calibration_bins),
        "position": position_bias(rewards_S[places_P_2], exchanged_S[places_P_2]),
        "rewards": {
            "mean": float(rewards_S.mean()), "sd": float(rewards_S.std()), "min": float(rewards_S.min()),
            "max": float(rewards_S.max()),
        },
    }  # fmt: skip
    write_atomic(out / "reward.json", json.dumps(body, indent=1).encode() + b"\n")
    write_reliability_page(out / "reward.html", body, config.model)
    return {name: value for name, value in body.items() if name != "calibration"} | {
        "calibration": {k: v for k, v in body["calibration"].items() if not k.endswith("bins")},
        "files": ["reward.json", "reward.html"],
    }


def measures(rewards_P_2: np.ndarray, lengths_P_2: np.ndarray, prompts_P: Sequence[bytes], bins: int) -> dict[str, Any]:
    """Accuracy, calibration and length bias of pairs; column 0 is the chosen side.

    Pairs of one prompt are no independent observations: the interval of the accuracy is clustered by prompt, and a
    temperature is judged on pairs of other prompts than those that it was fitted on.
    """
    margins_P = rewards_P_2[:, 0].astype(np.float64) - rewards_P_2[:, 1]
    sizes = Counter(prompts_P)
    right = Counter(prompt for prompt, margin in zip(prompts_P, margins_P, strict=True) if margin > 0)
    accuracy = clustered_share([right[prompt] for prompt in sizes], list(sizes.values()))
    fold_P = np.array([_fold(prompt) for prompt in prompts_P])
    return {
        "pairs": accuracy.n, "prompts": len(sizes), "accuracy": accuracy.value, "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high, "ties": int((margins_P == 0).sum()), "mean_margin": float(margins_P.mean()),
        "calibration": calibration(margins_P, fold_P, bins), "length": length_bias(rewards_P_2, lengths_P_2),
    }  # fmt: skip


def _pairs(held_out: Rankings) -> tuple[np.ndarray, list[int]]:
    """Places of the (better, worse) rows of all pairs, int [pairs, 2], and the numbers of their records."""
    places: list[tuple[int, int]] = []
    records: list[int] = []
    start = 0
    for ranking in held_out.rankings:
        places += [(start + better, start + worse) for better, worse in ranking.pairs]
        records += ranking.records
        start += len(ranking.rows)
    return np.array(places).reshape(-1, 2), records


def _fold(prompt: bytes) -> int:
    """Which half the pairs of a prompt belong to: by its canonical form, whatever stands beside it."""
    return hashlib.sha256(b"lpt-fold/2\0" + prompt).digest()[0] & 1
