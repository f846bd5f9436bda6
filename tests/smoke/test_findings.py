"""The planted preferences of the findings: their truth, and labels that say nothing."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def planted():
    spec = importlib.util.spec_from_file_location("planted", ROOT / "examples" / "findings" / "planted.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_better_side_is_right_and_no_longer(planted):
    rng = random.Random(3)
    pairs = [planted.pair(rng, [], at) for at in range(400)]
    longer = 0
    for pair in pairs:
        a, b = (int(number) for number in re.findall(r"\d+", pair["prompt"][0]["content"])[:2])
        assert pair["chosen"][0]["content"].endswith(f"The answer is {a + b}.")
        assert not re.search(r"\d", pair["rejected"][0]["content"])
        longer += len(pair["chosen"][0]["content"]) > len(pair["rejected"][0]["content"])
    assert 0.4 < longer / 400 < 0.6


def test_exactly_half_of_the_labels_are_flipped(planted, tmp_path):
    planted.main(tmp_path, None)
    rows, flipped = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("pairs", "flipped")
    )
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in flipped]
    wrong = [row["chosen"] == other["rejected"] for row, other in zip(rows, flipped, strict=True)]
    right = [row["chosen"] == other["chosen"] for row, other in zip(rows, flipped, strict=True)]
    assert (sum(wrong), sum(right)) == (planted.PAIRS // 2, planted.PAIRS // 2)
