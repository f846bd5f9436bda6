"""What a reward model is told to be worth where prompts have several pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lpt_train.reward_pages import reliability, write_reliability_page
from lpt_train.reward_report import measures
from manifests.intervals import wilson


def several(prompts: int, pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """Rewards, lengths and prompts of pairs that are copies of one pair for each prompt."""
    margins = np.random.default_rng(seed).normal(0.5, 1.0, prompts).repeat(pairs)
    names = [b"prompt %d" % number for number in np.arange(prompts).repeat(pairs)]
    return np.stack([margins, np.zeros(len(margins))], axis=1), np.ones((len(margins), 2)), names


def test_copies_of_a_pair_add_nothing_to_what_is_known():
    """Five copies of each pair: as many right in a hundred, as wide an interval, the same temperatures on each half."""
    one, five = (measures(*several(80, pairs), 10) for pairs in (1, 5))
    right = round(80 * one["accuracy"])
    assert (one["accuracy_low"], one["accuracy_high"]) == pytest.approx(wilson(right, 80))
    assert (five["pairs"], five["prompts"], five["accuracy"]) == (400, 80, one["accuracy"])
    over_pairs = wilson(5 * right, 400)
    assert five["accuracy_high"] - five["accuracy_low"] > 2 * (over_pairs[1] - over_pairs[0])
    width = one["accuracy_high"] - one["accuracy_low"]
    assert five["accuracy_high"] - five["accuracy_low"] == pytest.approx(width, rel=0.02)
    assert five["calibration"]["temperature"]["halves"] == pytest.approx(one["calibration"]["temperature"]["halves"])
    held_out = five["calibration"]["temperature"]["held_out"]
    assert held_out == pytest.approx(one["calibration"]["temperature"]["held_out"])


def test_the_halves_follow_the_prompt_and_not_the_order():
    rewards, lengths, names = several(60, 3)
    order = np.random.default_rng(1).permutation(len(names))
    shuffled = measures(rewards[order], lengths[order], [names[place] for place in order], 10)
    halves = measures(rewards, lengths, names, 10)["calibration"]["temperature"]["halves"]
    assert shuffled["calibration"]["temperature"]["halves"] == pytest.approx(halves)
    assert all(math.isfinite(half) for half in halves)


def test_the_page_says_what_its_bars_are_over(tmp_path):
    body = {"split": "pairs:test", "position": {}, **measures(*several(20, 2), 5)}
    assert body["calibration"]["bars_are_over"] == "pairs"
    write_reliability_page(tmp_path / "page.html", body, "model")
    page = (tmp_path / "page.html").read_text()
    assert "40 pairs of 20 prompts" in page
    assert "bars are over pairs" in page
    assert "↑ share of pairs it has right" in page
    assert "in the right order (95 % " in page


@pytest.mark.parametrize(
    ("accuracy", "low", "longer", "said"),
    [
        (0.55, 0.48, 0.5, "no better than chance can be."),
        (0.6, 0.55, 0.35, "better than chance, and no better than length alone, which has 65.0%."),
        (0.7, 0.65, 0.6, "better than chance; length alone has 60.0%."),
    ],
)
def test_what_the_pairs_say_in_one_sentence(accuracy, low, longer, said):
    body = {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": 0.9, "length": {"longer_is_chosen": longer}}
    assert reliability(body).endswith(said)
