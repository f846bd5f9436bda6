"""Shares of a mixture and how they are filled: pure arithmetic, one temperature, caps by water-filling.

    shares       q_i = p_i^(1/T) / sum_j p_j^(1/T),  p = w / sum w,  one T over all domains
    water level  a_i = min(level * q_i, c_i) with one level for all, such that sum a_i = total

T = 1 takes the weights as they are, T > 1 draws small domains up, T -> infinity makes all alike. One exponent over all
domains keeps their order; an exponent per domain does not: for p < 1, T_i < 1 makes a domain *smaller*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manifests.errors import BadInputError

_EPS = 1e-9


def shares(
    weights: Sequence[float] | np.ndarray, inverse_temperatures: Sequence[float] | np.ndarray | float = 1.0
) -> np.ndarray:
    """Return the share of each domain, float64 [n], summing to 1; a weight of 0 stays 0 at any temperature.

    `inverse_temperatures` is 1/T for all domains, or one for each. Raises BadInputError for weights that are negative,
    not finite, or sum to 0.
    """
    given = np.asarray(weights, np.float64)
    if not len(given) or not np.isfinite(given).all() or (given < 0).any():
        raise BadInputError(
            "weights are finite numbers of at least 0", seen=[float(w) for w in given], next="correct the weights"
        )
    if not given.sum() > 0:
        raise BadInputError(
            "the weights sum to 0, so nothing would be drawn",
            seen=[float(w) for w in given],
            next="give at least one domain a positive weight",
        )
    exponents = np.broadcast_to(np.asarray(inverse_temperatures, np.float64), given.shape)
    positive = given > 0
    logs = np.full(len(given), -np.inf)
    # In logarithms, since w^(1/T) of a small T leaves the range of a float.
    scaled = given / given.max()
    logs[positive] = exponents[positive] * np.log(scaled[positive] / scaled.sum())
    powers = np.where(positive, np.exp(logs - logs[positive].max()), 0.0)
    return powers / powers.sum()


def water_fill(total: float, wanted: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Return what each domain gives of `total`, float64 [n]: in proportion to `wanted`, none above its capacity.

    What a full domain cannot give goes to the others in proportion to their shares. Where all are full the sum stays
    below the total.
    """
    given = np.zeros(len(wanted))
    open_ = (wanted > 0) & (capacity > 0)
    left = float(total)
    while open_.any() and left > _EPS:
        level = left / wanted[open_].sum()
        full = open_ & (level * wanted >= capacity - _EPS)
        if not full.any():
            given[open_] = level * wanted[open_]
            break
        given[full] = capacity[full]
        left -= float(capacity[full].sum())
        open_ &= ~full
    return given


def fill(total: float, wanted: np.ndarray, capacity: np.ndarray, replay: np.ndarray) -> np.ndarray:
    """Return what each domain gives, with replay domains and the others filled apart, so that the replay share holds.

    When either side runs out, the total shrinks until both sides stand in the asked proportion again.
    """
    sides = [side for side in (replay, ~replay) if wanted[side].sum() > 0]
    possible = total
    for side in sides:
        share = float(wanted[side].sum())
        able = float(capacity[side & (wanted > 0)].sum())
        possible = min(possible, able / share)
    given = np.zeros(len(wanted))
    for side in sides:
        given[side] = water_fill(possible * float(wanted[side].sum()), wanted[side], capacity[side])
    return given


def longest_without_repeat(wanted: np.ndarray, capacity: np.ndarray) -> float:
    """Return the largest total at which no domain gives more than its capacity and every share holds."""
    asked = wanted > 0
    return float((capacity[asked] / wanted[asked]).min())


def whole(amounts: np.ndarray) -> np.ndarray:
    """Return whole numbers, int64 [n], with the rounded sum of the amounts, each within one of its amount (largest
    remainders; equal ones in the order given).
    """
    down = np.floor(amounts + _EPS).astype(np.int64)
    missing = round(float(amounts.sum())) - int(down.sum())
    if missing > 0:
        remainders = amounts - down
        chosen = np.argsort(-np.round(remainders, 9), kind="stable")[:missing]
        down[chosen] += 1
    return down
