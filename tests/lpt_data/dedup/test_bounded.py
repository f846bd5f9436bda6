"""Little memory changes where rows lie and how many are compared at a time, and nothing of what is decided."""

from __future__ import annotations

import random

import numpy as np
import pytest
from reference import dedup_and_counts
from test_dedup import corpus, edited

from lpt_data.config import DedupConfig
from lpt_data.dedup.lsh import BITMAP, plausible


def clusters(seed: int, size: int = 80) -> list[str]:
    """Rows around one text, many of them near duplicates of many others, and a corpus beside it."""
    rng = random.Random(seed)
    words = [f"c{i}" for i in range(60)]
    near = [edited(" ".join(words), rng.randrange(7), rng) for _ in range(size)]
    texts = near + corpus(fresh=20, seed=seed)
    rng.shuffle(texts)
    return texts


@pytest.mark.parametrize("keep", ["content", "first"])
@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_any_room_gives_the_same_decisions(keep: str, threshold: float) -> None:
    texts = clusters(1)
    config = DedupConfig(threshold=threshold, keep=keep, workers=1)
    expected, counts = dedup_and_counts(texts, config)
    assert counts["spilled"] == 0
    assert counts["batches"] == 1
    assert len(expected) > 30
    most = 1
    for room in (300_000, 60_000, 15_000):
        found, told = dedup_and_counts(texts, config, size=5, room=room)
        assert found == expected
        assert told["verified"] == counts["verified"]
        assert told["candidates"] == counts["candidates"]
        most = max(most, told["batches"])
    assert most > 10
    assert told["spilled"] > 0


def test_drop_all_and_workers_in_little_room() -> None:
    texts = clusters(2)
    config = DedupConfig(drop_all=True, threshold=0.7, workers=1)
    expected, _ = dedup_and_counts(texts, config)
    assert "duplicated_row" in {reason for reason, _, _ in expected.values()}
    for workers, room in ((1, 20_000), (4, 10_000)):
        config = DedupConfig(drop_all=True, threshold=0.7, workers=workers)
        assert dedup_and_counts(texts, config, room=room)[0] == expected


def test_rows_larger_than_the_room_are_compared_all_the_same() -> None:
    words = " ".join(f"w{i}" for i in range(40_000))
    texts = [words, "a small row of seven words here", f"{words} end", words.upper(), "other words " * 9, words[:-90]]
    config = DedupConfig(keep="first", workers=1)
    expected, _ = dedup_and_counts(texts, config)
    assert set(expected) == {2, 3, 5}
    found, told = dedup_and_counts(texts, config, size=2, room=1000)
    assert found == expected
    assert told["batches"] == 3


def test_huge_buckets_are_reported_and_never_cut() -> None:
    words = " ".join(f"w{i}" for i in range(300))
    texts = [f"{words} n{i}" for i in range(1200)]
    config = DedupConfig(keep="first", workers=1)
    for room in (1 << 40, 500_000):
        outcome, told = dedup_and_counts(texts, config, size=100, room=room)
        assert len(outcome) == 1199
        assert {witness for _, witness, _ in outcome.values()} == {0}
        assert told["largest_bucket"] > 1100  # the one other shingle is the least of a few bands
        assert told["huge_buckets"] >= 12
        assert told["candidates"] == 1199
        assert told["largest_component"] == 1200
    assert told["batches"] > 4


def test_the_bitmap_loses_no_pair_and_spares_most_others() -> None:
    rng = np.random.default_rng(3)
    spared = 0
    for _ in range(300):
        size, share = int(rng.integers(5, 400)), float(rng.choice([0.2, 0.5, 0.8, 0.95]))
        common = rng.integers(0, 2**64, max(int(size * share), 1), dtype=np.uint64)
        a, b = (np.union1d(common, rng.integers(0, 2**64, size - len(common) + 1, dtype=np.uint64)) for _ in "ab")
        score = len(np.intersect1d(a, b)) / len(np.union1d(a, b))
        marks = []
        for values in (a, b):
            words = np.zeros(BITMAP, np.uint64)
            for value in values.tolist():
                words[value >> 61] |= np.uint64(1 << (value >> 55 & 63))
            marks.append(words)
        assert plausible(*marks, len(a) + len(b), score)  # a pair is never ruled out at its own similarity
        spared += score < 0.4 and not plausible(*marks, len(a) + len(b), 0.8)
    assert spared > 50
