from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lpt_data.dedup.lsh import IDLE, RECALL, Bands, Sketch, buckets, choose_bands, sketch
from lpt_data.dedup.minhash import Scheme
from lpt_data.text import buffers
from manifests.errors import UsageError


def sketch_of(texts: list[str], scheme: Scheme, bands: Bands) -> Sketch:
    return sketch(*buffers(pa.array(texts, pa.large_string())), scheme, bands)


def test_the_curve_is_the_published_one() -> None:
    # 14 bands of 8 rows and 8 of 16, by hand: 1 - (1 - j**r)**b.
    assert Bands(14, 8).proposed(0.8) == pytest.approx(0.924, abs=5e-4)
    assert Bands(8, 16).proposed(0.8) == pytest.approx(0.204, abs=5e-4)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999, 1.0])
def test_bands_reach_the_recall_within_the_budget(threshold: float) -> None:
    bands = choose_bands(threshold)
    assert bands.proposed(threshold) >= RECALL
    assert bands.num_perm <= 128
    points = bands.curve(threshold)
    assert threshold in [j for j, _ in points]
    assert [p for _, p in points] == sorted(p for _, p in points)


@pytest.mark.parametrize(
    ("threshold", "bands"),
    [
        (0.8, Bands(14, 5)),  # 0.134 of the pairs at 0.4; four rows a band would propose 0.247 of them
        (0.9, Bands(6, 5)),
        (0.7, Bands(20, 4)),  # 0.260 of the pairs at 0.35, but five rows would take 145 hashes
    ],
)
def test_no_more_hashes_than_keep_idle_comparisons_few(threshold: float, bands: Bands) -> None:
    assert choose_bands(threshold) == bands
    assert bands.proposed(threshold / 2) <= IDLE or bands.num_perm == 80


def test_a_small_budget_bounds_the_rows_of_a_band() -> None:
    assert choose_bands(0.8, 69) == Bands(11, 4)


@pytest.mark.parametrize(
    ("threshold", "num_perm"), [(0.02, None), (0.5, 4), (0.0, None), (-1, None), (1.01, None), (0.8, 0)]
)
def test_what_no_banding_reaches_is_refused(threshold: float, num_perm: int | None) -> None:
    with pytest.raises(UsageError) as error:
        choose_bands(threshold, num_perm)
    assert error.value.next


def test_proposals_follow_the_curve() -> None:
    rng = np.random.default_rng(1)
    bands, scheme = Bands(6, 4), Scheme(1, 24, 0)  # words as shingles, so that similarity can be planted exactly
    texts = []
    for i in range(600):  # 30 shared words of 40: j = 0.6
        words = [f"w{i}x{k}" for k in range(50)]
        texts += [" ".join(words[:40]), " ".join(words[10:])]
    keys = sketch_of(texts, scheme, bands).keys
    hits = (keys[:, 0::2] == keys[:, 1::2]).any(axis=0).mean()
    expected = bands.proposed(0.6)
    assert hits == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 600))
    order = rng.permutation(len(texts))
    again = sketch_of([texts[i] for i in order], scheme, bands).keys
    assert np.array_equal(again, keys[:, order])


def test_buckets_are_the_rows_of_equal_keys() -> None:
    keys = np.array([[5, 1], [6, 2], [5, 3], [7, 2], [5, 4]], np.uint64)
    found = buckets(keys)
    first, second = found.of_row
    assert first[0] == first[2] == first[4] >= 0
    assert first[1] == first[3] == -1
    assert second[1] == second[3] >= 0
    assert sorted(found.sizes.tolist()) == [2, 3]
    assert len({*first, *second} - {-1}) == 2


def test_buckets_of_colliding_slots_stay_apart() -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 40, (500, 1), dtype=np.uint64)  # small numbers all start in slot 0
    found = buckets(keys)
    for value in range(40):
        assert len(set(found.of_row[0][keys[:, 0] == value].tolist())) == 1


def test_a_sketch_counts_tokens_and_characters() -> None:
    made = sketch_of(["", "one two", "Σ Été 世界", "!!!"], Scheme(5, 4, 0), Bands(2, 2))
    assert made.tokens.tolist() == [0, 2, 4, 0]
    assert made.chars.tolist() == [0, 7, 8, 3]
    assert made.keys.shape == (2, 4)
