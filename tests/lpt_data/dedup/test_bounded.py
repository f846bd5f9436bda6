"""Little memory changes where rows lie and how many are compared at a time, and nothing of what is decided."""

from __future__ import annotations

import random

import pytest
from reference import dedup_and_counts
from test_dedup import corpus, edited

from lpt_data.config import DedupConfig


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
