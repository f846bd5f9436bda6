"""Two models on the same items: what their paired differences are worth, and how far one has drifted from the other.

Paired, because a difference on the same items needs a few hundred of them where two separate intervals need
thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lpt_train.answers import Evaluation, ItemScore
from lpt_train.estimates import PairedDifference, mean, paired_interval, paired_ratio, pass_at_k
from lpt_train.likelihood import Likelihood, PairLogprobs, RecordLoss
from lpt_train.measured import Measure
from manifests.errors import UsageError

_SAME = ("temperature", "k", "max_completion_length", "max_length", "kind")  # settings under which numbers compare


def paired_difference(before: Evaluation, after: Evaluation) -> PairedDifference:
    """`after` minus `before` in accuracy, over the items that both could score; raises `UsageError` unless both had
    the same items."""
    return _scores(before, after, lambda item: item.score)


def compare(
    before: Evaluation | Likelihood, after: Evaluation | Likelihood
) -> tuple[dict[str, PairedDifference], list[Measure]]:
    """The paired differences of two evaluations of one split by the name of the measure, and measures of both together.

    Answers: `accuracy`, each pass@k that both have, and maj@k. Losses: `loss` where both tokenizers make the same
    tokens, and `bits_per_byte`. Pairs: `accuracy`, `margin`, and against `before` as the reference policy
    `reward_accuracy` (the chosen side gained more), `reward_margin` (nats, without β) and `logp_change` (nats a token,
    how far log-probs moved either way).
    """
    differ = [name for name in _SAME if before.settings.get(name) != after.settings.get(name)]
    if differ or type(before) is not type(after):
        raise UsageError(
            "the two evaluations were not made in the same way", seen=", ".join(differ) or "answers and likelihoods",
            next="evaluate both with the same options",
        )  # fmt: skip
    if isinstance(before, Evaluation) and isinstance(after, Evaluation):
        return _answers(before, after), []
    assert isinstance(before, Likelihood)
    assert isinstance(after, Likelihood)
    pairs = _both(before, after)
    if not pairs or not isinstance(pairs[0][0], PairLogprobs):
        return _losses(pairs), []
    return _preferences(pairs), _moved(pairs)


def _answers(before: Evaluation, after: Evaluation) -> dict[str, PairedDifference]:
    found = {"accuracy": paired_difference(before, after)}
    if all(item.vote is not None for item in (*before.items, *after.items) if item.score is not None):
        found[f"maj@{before.settings['k']}"] = _scores(before, after, lambda item: item.vote)
    for name in (measure.name for measure in before.measures):
        if name.startswith("pass@") and any(name == measure.name for measure in after.measures):
            found[name] = _scores(before, after, _pass_of(int(name.removeprefix("pass@"))))
    return found


def _pass_of(size: int) -> Callable[[ItemScore], float | None]:
    def value(item: ItemScore) -> float | None:
        return pass_at_k(len(item.scores), int(sum(item.scores)), size) if len(item.scores) >= size else None

    return value


def _scores(before: Evaluation, after: Evaluation, of: Callable[[ItemScore], float | None]) -> PairedDifference:
    first = {item.record_id: of(item) for item in before.items}
    second = {item.record_id: of(item) for item in after.items}
    _check_same(first, second)
    pairs = [(a, b) for a, b in ((first[key], second[key]) for key in sorted(first)) if a is not None and b is not None]
    return paired_interval([a for a, _ in pairs], [b for _, b in pairs])


def _check_same(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    if first.keys() != second.keys():
        raise UsageError(
            "the two evaluations are not of the same items",
            seen=f"{len(first.keys() ^ second.keys())} items in one only",
            next="evaluate both on the same split with the same n and seed",
        )  # fmt: skip


def _both(before: Likelihood, after: Likelihood) -> list[tuple[Any, Any]]:
    """The items that both models could read, paired; a row too long for one of two tokenizers is in neither."""
    known = {item.record_id: item for item in before.items}
    pairs = [(known[item.record_id], item) for item in after.items if item.record_id in known]
    left_out = sum(before.dropped.values()) + sum(after.dropped.values())
    alone = len(before.items) + len(after.items) - 2 * len(pairs)
    if alone > left_out or len(pairs) < 2:
        raise UsageError(
            "the two evaluations are not of the same items", seen=f"{alone} items in one only",
            next="evaluate both on the same split",
        )  # fmt: skip
    return pairs


def _losses(pairs: Sequence[tuple[RecordLoss, RecordLoss]]) -> dict[str, PairedDifference]:
    first, second = [a.nll for a, _ in pairs], [b.nll for _, b in pairs]
    found = {}
    if all(a.tokens == b.tokens for a, b in pairs):
        found["loss"] = paired_ratio(first, second, [a.tokens for a, _ in pairs])
    if any(a.bytes for a, _ in pairs):
        bits = ([nll / math.log(2) for nll in side] for side in (first, second))
        found["bits_per_byte"] = paired_ratio(next(bits), next(bits), [a.bytes for a, _ in pairs])
    return found


def _preferences(pairs: Sequence[tuple[PairLogprobs, PairLogprobs]]) -> dict[str, PairedDifference]:
    margins = [[item.margin for item in side] for side in zip(*pairs, strict=True)]
    won = [[0.5 if margin == 0 else float(margin > 0) for margin in side] for side in margins]
    return {"accuracy": paired_interval(*won), "margin": paired_interval(*margins)}


def _moved(pairs: Sequence[tuple[PairLogprobs, PairLogprobs]]) -> list[Measure]:
    if any((a.chosen_tokens, a.rejected_tokens) != (b.chosen_tokens, b.rejected_tokens) for a, b in pairs):
        return []  # log-probs of other tokens say nothing about drift
    gains = [b.margin - a.margin for a, b in pairs]
    per_token = [
        (abs(b.chosen - a.chosen) + abs(b.rejected - a.rejected)) / (a.chosen_tokens + a.rejected_tokens)
        for a, b in pairs
    ]
    won = [0.5 if gain == 0 else float(gain > 0) for gain in gains]
    found = {"reward_accuracy": won, "reward_margin": gains, "logp_change": per_token}
    return [Measure.of(name, mean(values)) for name, values in found.items()]
