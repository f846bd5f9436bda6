"""Over-optimisation by best-of-n: what the proxy promises and what the gold reward gives as n, and with it KL, grows.

Best-of-n takes, of n completions of a prompt, the one with the largest proxy reward. From N >= n scored completions of
a prompt the mean over all C(N, n) draws without replacement is known exactly: the completion at place i of the
ascending proxy order is the best of C(i-1, n-1) of them (Nakano et al. 2021, appendix I),

    E[gold of the best of n] = sum_i C(i-1, n-1) / C(N, n) * gold_(i)

which is unbiased, with far less variance than drawing. Completions with the same proxy reward are equally likely to be
taken: each place among them holds the mean of their gold. The distance to the policy is at most
KL(n) = log n - (n-1)/n nats, with equality where no two completions are the same (Beirami et al. 2024).

Intervals are over prompts. A completion that could not be scored is left out and counted, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from lpt_train.estimates import Estimate, around
from manifests.errors import BadInputError, UsageError
from manifests.intervals import Z95


@dataclass(frozen=True)
class Scored:
    """One completion: its prompt by name, what the proxy gives it and what the gold reward does; None: not scored."""

    prompt: str
    proxy: float | None
    gold: float | None


@dataclass(frozen=True)
class Point:
    """Best of `n`: the most KL in nats, means over prompts with 95 % intervals, and the change of gold since n = 1."""

    n: int
    kl: float
    proxy: float
    proxy_low: float
    proxy_high: float
    gold: float
    gold_low: float
    gold_high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class OverOptimisation:
    """The curve, the n at which gold is largest, and what is lost from there to the largest n, paired by prompt.

    The interval of the loss holds for every n that could have been the peak (Bonferroni): the largest of several means
    was picked by looking. `over_optimised` says that the loss is larger than chance: its interval lies above 0.
    """

    points: tuple[Point, ...]
    prompts: int
    completions: int
    left_out: Mapping[str, int]
    peak: int
    loss: float
    loss_low: float
    loss_high: float
    over_optimised: bool
    correlation: float | None  # of proxy and gold within prompts

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def curve(scored: Sequence[Scored], ns: Sequence[int] | None = None) -> OverOptimisation:
    """The curve of completions over several prompts, at `ns`, or at powers of two up to the fewest of any prompt.

    Prompts with fewer completions than the largest n are left out and counted, so that all points are means over the
    same prompts. Raises `UsageError` for an n below 1 and `BadInputError` where fewer than two prompts are left.
    """
    if ns is not None and (not ns or min(ns) < 1):
        raise UsageError("best-of-n takes n of 1 or more", seen=list(ns), next="--n 1,2,4,8")
    groups, unscored = _by_prompt(scored)
    if ns is None:
        ns = _powers_up_to(min((len(group) for group in groups.values()), default=0))
    wanted = sorted({1, *ns})
    kept = {name: group for name, group in groups.items() if len(group) >= wanted[-1]}
    short = len(groups) - len(kept)
    if len(kept) < 2 or wanted[-1] < 2:
        raise BadInputError(
            "the curve needs two prompts with two scored completions or more",
            seen=f"{len(kept)} of {len(groups)} prompts have {max(wanted[-1], 2)}; {unscored} completions are unscored",
            next="sample more completions a prompt, or give a smaller --n",
        )  # fmt: skip
    proxies, golds = [], []
    for name in sorted(kept):
        group = np.array(kept[name], np.float64)
        proxies.append([expected_best(group[:, 0], group[:, 0], n) for n in wanted])
        golds.append([expected_best(group[:, 0], group[:, 1], n) for n in wanted])
    proxy_P_n, gold_P_n = np.array(proxies), np.array(golds)
    points = tuple(
        Point(
            n,
            kl(n),
            *_interval(proxy_P_n[:, i]),
            *_interval(gold_P_n[:, i]),
            *_interval(gold_P_n[:, i] - gold_P_n[:, 0]),
        )
        for i, n in enumerate(wanted)
    )
    peak, loss = loss_since_peak(gold_P_n)
    return OverOptimisation(
        points, len(kept), sum(len(group) for group in kept.values()),
        {"completions_without_a_score": unscored, "prompts_with_too_few": short}, wanted[peak], loss.value, loss.low,
        loss.high, over_optimised=loss.low > 0, correlation=_within_prompts(kept),
    )  # fmt: skip


def kl(n: int) -> float:
    """log n - (n-1)/n: the most that best-of-n can differ from the policy, in nats."""
    return math.log(n) - (n - 1) / n


def expected_best(proxy_N: np.ndarray, gold_N: np.ndarray, n: int) -> float:
    """The mean gold, over all draws of `n` of the N completions, of the one with the largest proxy."""
    order = np.argsort(proxy_N, kind="stable")
    _, inverse, counts = np.unique(proxy_N[order], return_inverse=True, return_counts=True)
    gold_N = (np.bincount(inverse, weights=gold_N[order]) / counts)[inverse]
    size = len(gold_N)
    weight, total = n / size, 0.0  # C(N-1, n-1) / C(N, n) of the last place; of each before it by a ratio
    for place in range(size, n - 1, -1):
        total += weight * float(gold_N[place - 1])
        weight *= (place - n) / (place - 1) if place > 1 else 0.0
    return total


def loss_since_peak(gold_P_n: np.ndarray) -> tuple[int, Estimate]:
    """The place of the largest mean of the columns, and its mean difference to the last column, paired by prompt.

    The 95 % interval holds for all earlier columns together (Bonferroni): under no difference at all, one time of forty
    at most the interval of whichever column is picked lies above 0.
    """
    peak = int(gold_P_n.mean(0).argmax())
    earlier = gold_P_n.shape[1] - 1
    return peak, around(gold_P_n[:, peak] - gold_P_n[:, -1], NormalDist().inv_cdf(1 - 0.025 / earlier))


def _interval(values_P: np.ndarray) -> tuple[float, float, float]:
    """The mean over prompts, and its 95 % interval by the normal approximation."""
    found = around(values_P, Z95)
    return found.value, found.low, found.high


def _by_prompt(scored: Sequence[Scored]) -> tuple[dict[str, list[tuple[float, float]]], int]:
    groups: dict[str, list[tuple[float, float]]] = {}
    unscored = 0
    for one in scored:
        if one.proxy is None or one.gold is None:
            unscored += 1
            groups.setdefault(one.prompt, [])
        else:
            groups.setdefault(one.prompt, []).append((one.proxy, one.gold))
    return groups, unscored


def _powers_up_to(most: int) -> list[int]:
    powers = [2**i for i in range(most.bit_length())] if most > 0 else [1]
    return powers if powers[-1] == most or most < 1 else [*powers, most]


def _within_prompts(groups: Mapping[str, Sequence[tuple[float, float]]]) -> float | None:
    """The correlation of proxy and gold after each prompt's own means are taken off."""
    centred = [np.array(group) - np.mean(group, axis=0) for _, group in sorted(groups.items())]
    both = np.concatenate(centred)
    spread = math.sqrt(float((both[:, 0] ** 2).sum()) * float((both[:, 1] ** 2).sum()))
    return float((both[:, 0] * both[:, 1]).sum()) / spread if spread > 0 else None
