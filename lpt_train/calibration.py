"""Whether the probabilities that rewards imply are true: s(margin) is the chance that the chosen side is preferred.

Which side is called chosen says which way a pair went, so every label is 1; a reliability diagram of s(margin) alone
would look at the mistakes and not at the claims. A pair counts here as the claim that it is: the confidence s(|margin|)
in the side with the larger reward, from one half to 1, which is right or wrong (a tie is half right). Axis: `P` pairs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manifests.intervals import wilson

SEPARABLE = "every pair is in its order, so that the likeliest temperature is 0"
ONE_HALF = "all pairs are of prompts of one half, so that there are no other pairs to fit it on"
UNINFORMED = "the mean margin is not above 0, so that the likeliest temperature is infinite"


@dataclass(frozen=True)
class Bin:
    """Pairs whose confidence lies in [low, high): how many, what was claimed and what was right, with Wilson's 95 %."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


def probability(margins_P: np.ndarray) -> np.ndarray:
    """s(margin) [P] in float64, without overflow."""
    return np.exp(-np.logaddexp(0.0, -margins_P.astype(np.float64)))


def reliability(margins_P: np.ndarray, bins: int, *, equal_mass: bool = False) -> list[Bin]:
    """The bins of the diagram that hold a pair, of equal width or of nearly equal numbers of pairs.

    Pairs of the same confidence are never divided, so that the order of the pairs changes nothing.
    """
    margins_P = np.sort(margins_P.astype(np.float64))  # sums in one order, whatever the order of the pairs
    confidence_P = probability(np.abs(margins_P))
    right_P = np.where(margins_P == 0, 0.5, margins_P > 0)
    edges = np.linspace(0.5, 1.0, bins + 1)
    if equal_mass and len(margins_P):
        inner = np.quantile(confidence_P, np.linspace(0, 1, bins + 1)[1:-1], method="higher")
        edges = np.array([0.5, *inner, 1.0])
    place_P = np.clip(np.searchsorted(edges, confidence_P, side="right") - 1, 0, bins - 1)
    found = []
    for number in range(bins):
        inside_P = place_P == number
        n = int(inside_P.sum())
        if n:
            accuracy = float(right_P[inside_P].mean())
            low, high = wilson(accuracy * n, n)
            claimed = float(confidence_P[inside_P].mean())
            found.append(Bin(float(edges[number]), float(edges[number + 1]), n, claimed, accuracy, low, high))
    return found


def calibration_error(bins: list[Bin]) -> float:
    """The mean distance of claim and truth over the pairs, bin by bin (ECE, Naeini et al. 2015)."""
    pairs = sum(one.n for one in bins)
    return sum(one.n * abs(one.confidence - one.accuracy) for one in bins) / pairs if pairs else math.nan


def brier(margins_P: np.ndarray) -> float:
    """The mean of (1 - s(margin))^2; 0.25 is what even chances score (Brier 1950)."""
    return _mean((1.0 - probability(margins_P)) ** 2)


def log_loss(margins_P: np.ndarray) -> float:
    """The mean of -log s(margin) in nats; log 2 is what even chances score."""
    return _mean(np.logaddexp(0.0, -margins_P.astype(np.float64)))


def best_temperature(margins_P: np.ndarray) -> tuple[float | None, str]:
    """The T that minimises the log loss of margin / T (Guo et al. 2017); None with the reason where there is none."""
    margins_P = margins_P.astype(np.float64)
    if not len(margins_P) or margins_P.mean() <= 0:
        return None, UNINFORMED
    if (margins_P >= 0).all():
        return None, SEPARABLE

    def slope(inverse: float) -> float:  # of the loss in 1/T: negative below the minimum, positive above it
        return -_mean(margins_P * probability(-inverse * margins_P))

    low, high = 0.0, 1.0 / float(np.abs(margins_P).mean())
    while slope(high) < 0:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 2 / (low + high), ""


def cross_fitted(margins_P: np.ndarray, fold_P: np.ndarray) -> tuple[np.ndarray, list[float | None], str]:
    """Margins divided by the temperature that the other half of the pairs fits: [P], both temperatures, why not.

    `fold_P` is 0 or 1. Margins stay as they are, and the reason says why, where one half has no best temperature.
    """
    if len(set(fold_P.tolist())) < 2:
        return margins_P.astype(np.float64), [None, None], ONE_HALF
    scaled_P = margins_P.astype(np.float64)
    temperatures: list[float | None] = []
    for fold in (0, 1):
        temperature, why = best_temperature(margins_P[fold_P != fold])
        if temperature is None:
            return margins_P.astype(np.float64), [None, None], why
        scaled_P[fold_P == fold] /= temperature
        temperatures.append(temperature)
    return scaled_P, temperatures, ""


def calibration(margins_P: np.ndarray, fold_P: np.ndarray, bins: int) -> dict[str, Any]:
    """Everything above of one set of held-out pairs, before and after a temperature that was fitted on other pairs.

    The bars of the bins are over pairs as if these were independent, which the pairs of one prompt are not.
    """
    scaled_P, folds, why = cross_fitted(margins_P, fold_P)
    temperature, why_not = best_temperature(margins_P)
    return {
        "n": len(margins_P), "bars_are_over": "pairs", **_numbers(margins_P, bins),
        "bins": [asdict(one) for one in reliability(margins_P, bins)],
        "equal_mass_bins": [asdict(one) for one in reliability(margins_P, bins, equal_mass=True)],
        "temperature": {
            "value": temperature, "why_not": why_not, "halves": folds,
            "held_out": None if why else _numbers(scaled_P, bins), "held_out_why_not": why,
        },
    }  # fmt: skip


def _numbers(margins_P: np.ndarray, bins: int) -> dict[str, float]:
    return {
        "ece_equal_width": calibration_error(reliability(margins_P, bins)),
        "ece_equal_mass": calibration_error(reliability(margins_P, bins, equal_mass=True)),
        "brier": brier(margins_P), "log_loss": log_loss(margins_P),
    }  # fmt: skip


def _mean(values: np.ndarray) -> float:
    """The mean, the same in whatever order."""
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan
