"""Components of near-duplicate texts: chains stay together, whatever the order, and nothing else does."""

import random

import numpy as np
import pyarrow as pa

from lpt_data.dataset import TextBatch
from lpt_data.dedup.near import components, nearest
from lpt_data.io.chunks import Spans


def joined(texts, threshold, size=3):
    """The partition as a set of sets of texts; batches of `size`."""
    parts = [texts[i : i + size] for i in range(0, len(texts), size)]
    batches = [
        TextBatch(np.arange(len(p)), pa.array(p, pa.large_string()), np.zeros((len(p), 32), np.uint8)) for p in parts
    ]
    root = components(batches, threshold)
    groups = {}
    for text, at in zip(texts, root.tolist(), strict=True):
        groups.setdefault(at, set()).add(text)
    return {frozenset(group) for group in groups.values()}


def window(start, length=60):
    return " ".join(f"w{i}" for i in range(start, start + length))


def test_a_chain_is_one_group_and_its_ends_need_not_be_alike():
    """60 words have 56 shingles; a window moved by 5 words shares 51, Jaccard 51/61 = 0.836; by 10, 46/66 = 0.697."""
    a, b, c, far = window(0), window(5), window(10), window(500)
    assert joined([a, c, far], 0.8) == {frozenset({a}), frozenset({c}), frozenset({far})}
    assert joined([a, c, far, b], 0.8) == {frozenset({a, b, c}), frozenset({far})}
    assert joined([a, c, far, b], 0.84) == {frozenset({x}) for x in (a, b, c, far)}  # near miss: 0.836


def test_short_and_blank_texts():
    assert joined(["x y z", "X  y z", "x y", ""], 0.8) == {
        frozenset({"x y z", "X  y z"}),
        frozenset({"x y"}),
        frozenset({""}),
    }


def test_blank_texts_are_not_joined():
    root = components(
        [TextBatch(np.arange(2), pa.array(["", ""], pa.large_string()), np.zeros((2, 32), np.uint8))], 0.8
    )
    assert root.tolist() == [0, 1]


def test_order_and_batches_change_nothing():
    texts = [window(start) for start in (0, 5, 10, 15, 200, 205, 400, 600, 605, 610)]
    expected = joined(texts, 0.8)
    assert sorted(map(len, expected)) == [1, 2, 3, 4]
    for seed in range(5):
        assert joined(random.Random(seed).sample(texts, len(texts)), 0.8, size=seed + 1) == expected


def test_texts_in_hand_are_not_read_again():
    """An audit compares what it read, whatever the file is by then: here there is none."""
    spans = Spans("not there.jsonl", (0, 0, 0, 0), np.array([0, 500]), np.array([400, 400], np.int32))
    texts = pa.array([window(0), window(5)], pa.large_string())
    batch = TextBatch(np.arange(2), texts, np.zeros((2, 32), np.uint8), spans)
    assert components([batch], 0.8).tolist() == [0, 0]
    assert nearest([batch], 2, [batch], 0.8, "text")[0].tolist() == [0, 1]
