"""What rewards follow besides the preference: the length of a completion, and the place of its row in a batch.

Axes: `P` pairs, `S` sides, both of every pair. Lengths are in tokens that count: the completion with its stop token.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def length_bias(rewards_P_2: np.ndarray, lengths_P_2: np.ndarray) -> dict[str, Any]:
    """Correlations of rewards with lengths, and what length alone predicts; column 0 is the chosen side.

    `longer_is_chosen` is the share of pairs that preferring the longer side gets right (equal lengths one half),
    `longer_is_preferred` the share, of pairs of different lengths, in which the model gives it more.
    """
    rewards_P_2, lengths_P_2 = rewards_P_2.astype(np.float64), lengths_P_2.astype(np.float64)
    margins_P, longer_P = rewards_P_2[:, 0] - rewards_P_2[:, 1], lengths_P_2[:, 0] - lengths_P_2[:, 1]
    unequal_P = longer_P != 0
    return {
        "pearson": pearson(rewards_P_2.ravel(), lengths_P_2.ravel()),
        "spearman": pearson(ranks(rewards_P_2.ravel()), ranks(lengths_P_2.ravel())),
        "pearson_of_differences": pearson(margins_P, longer_P),
        "longer_is_chosen": _share(np.where(unequal_P, longer_P > 0, 0.5)),
        "longer_is_preferred": _share((margins_P * longer_P > 0)[unequal_P]),
        "accuracy_where_chosen_is_longer": _share((margins_P > 0)[longer_P > 0]),
        "accuracy_where_chosen_is_shorter": _share((margins_P > 0)[longer_P < 0]),
        "pairs_chosen_longer": int((longer_P > 0).sum()), "pairs_chosen_shorter": int((longer_P < 0).sum()),
    }  # fmt: skip


def position_bias(rewards_P_2: np.ndarray, exchanged_P_2: np.ndarray) -> dict[str, float | None]:
    """What changes when the rejected side goes through the model before the chosen one; columns mean the same in both.

    A reward is of one row alone, so nothing may change but the last digits.
    """
    margins_P, other_P = (one[:, 0] - one[:, 1] for one in (rewards_P_2, exchanged_P_2))
    return {
        "largest_difference": float(np.abs(rewards_P_2 - exchanged_P_2).max()) if len(rewards_P_2) else 0.0,
        "decisions_changed": _share((margins_P > 0) != (other_P > 0)),
    }


def pearson(one_S: np.ndarray, other_S: np.ndarray) -> float | None:
    """The correlation of two series; None where one of them does not vary."""
    a, b = one_S - one_S.mean(), other_S - other_S.mean()
    spread = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float((a * b).sum()) / spread if spread > 0 and len(a) > 1 else None


def ranks(values_S: np.ndarray) -> np.ndarray:
    """The places of values in their order, equal ones sharing the mean of theirs."""
    _, inverse, counts = np.unique(values_S, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _share(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
