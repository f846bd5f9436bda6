from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from lpt_data.contracts.diversity import numbers_of
from lpt_data.rouge import MAX_WORDS, nearest_among, nearest_within, number


def f1(a: str, b: str) -> float:
    """ROUGE-L by the table of Wagner and Fischer."""
    x, y = a.lower().split(), b.lower().split()
    table = np.zeros((len(x) + 1, len(y) + 1), int)
    for i, p in enumerate(x, 1):
        for j, q in enumerate(y, 1):
            table[i, j] = table[i - 1, j - 1] + 1 if p == q else max(table[i - 1, j], table[i, j - 1])
    return 2 * table[-1, -1] / (len(x) + len(y)) if x and y else 0.0


def texts(n: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(25)]
    made = [" ".join(draw.choices(words, k=draw.choice([0, 1, 3, 8, 8, 20, 64, 65]))) for _ in range(n // 2)]
    for text in made[: n - len(made)]:
        changed = text.split()
        for _ in range(len(changed) // 8 + 1):
            if changed:
                changed[draw.randrange(len(changed))] = draw.choice(words)
        made.append(" ".join(changed))
    return made


def hand(*given: str) -> list[np.ndarray]:
    return [numbers_of(text) for text in given]


def test_by_hand():
    found = nearest_among(hand("the cat sat on the mat"), hand("a dog", "the cat is on the mat"))
    assert found.score.tolist() == [2 * 5 / (6 + 6)]  # the cat on the mat
    assert found.other.tolist() == [1]
    assert nearest_among(hand("one"), hand("two")).other.tolist() == [-1]
    assert nearest_among(hand(""), hand("two")).score.tolist() == [0.0]


@cache
def all_pairs() -> tuple[list[str], np.ndarray]:
    given = texts(80, seed=3)
    scores = np.array([[f1(a, b) if i < j else 0 for j, b in enumerate(given)] for i, a in enumerate(given)])
    return given, scores + scores.T


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_every_text_with_a_partner_is_found_and_no_other(threshold):
    given, scores = all_pairs()
    found = nearest_within(number(hand(*given)), np.arange(len(given)), threshold)
    assert ((found.other >= 0) == (scores.max(axis=1) >= threshold - 1e-12)).all()
    for i, other in enumerate(found.other.tolist()):
        assert other < 0 or found.score[i] == pytest.approx(scores[i, other])


def test_the_best_of_the_seeds_is_exact():
    given = texts(40, seed=5)
    found = nearest_among(hand(*given[:25]), hand(*given[25:]))
    best = [max(f1(a, b) for b in given[25:]) for a in given[:25]]
    assert np.abs(found.score - best).max() < 1e-12


def test_the_oracle_agrees():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    given = texts(60, seed=9)
    found = nearest_among(hand(*given[:30]), hand(*given[30:]))
    best = [max(scorer.score(a, b)["rougeL"].fmeasure for b in given[30:]) for a in given[:30]]
    assert np.abs(found.score - best).max() < 1e-12


def test_the_place_of_a_text_changes_nothing():
    given = texts(120, seed=7)
    ranks = np.argsort(np.argsort(np.array(given)))
    shuffled = np.random.default_rng(0).permutation(len(given))
    straight = nearest_within(number(hand(*given)), ranks, 0.7)
    mixed = nearest_within(number(hand(*(given[i] for i in shuffled))), ranks[shuffled], 0.7)
    assert straight.score[shuffled].tolist() == mixed.score.tolist()


def test_a_template_of_thousands_is_no_square():
    frame = np.arange(20, dtype=np.uint32)
    given = [np.concatenate([frame, np.array([1000 + n, 90_000 + n], np.uint32)]) for n in range(20_000)]
    found = nearest_within(number(given), np.arange(len(given)), 0.7)
    assert (found.other >= 0).all()


def test_a_hostile_text_is_compared_by_its_start():
    long = np.arange(2_000_000, dtype=np.uint32)
    found = nearest_within(number([long, long[:MAX_WORDS], long[5:9]]), np.arange(3), 0.7)
    assert found.score.tolist() == [1.0, 1.0, 0.0]
    assert nearest_within(number([]), np.arange(0), 0.7).other.tolist() == []
