from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
import reference

from lpt_data.dedup.shingles import fill, jaccard, shingle_sets, sort_unique
from lpt_data.text import buffers


def sets_of(*texts: str, ngram: int = 5):
    sets = shingle_sets(pa.array(texts, pa.large_string()), ngram)
    return [sets.values[a:b] for a, b in zip(sets.starts, sets.ends, strict=True)]


def test_hand_worked_similarity() -> None:
    # 12 words make 8 shingles of 5. The last word replaced: 7 of 9. A middle one (the sixth): 5 shingles go, 3 of 13.
    base = "a b c d e f g h i j k l"
    a, last, middle = sets_of(base, base[:-1] + "z", base.replace("f", "z"))
    assert len(a) == 8
    assert jaccard(a, last) == 7 / 9
    assert jaccard(a, middle) == 3 / 13
    assert jaccard(a, a) == 1.0


def test_order_of_the_words_counts() -> None:
    forward, backward = sets_of("one two three four five", "five four three two one")
    assert jaccard(forward, backward) == 0.0


def test_fewer_words_than_a_shingle_make_none() -> None:
    assert [len(s) for s in sets_of("", "a b c d", "a b c d e")] == [0, 0, 1]


@pytest.mark.parametrize("ngram", [1, 2, 3, 5, 9])
def test_equals_plain_python_on_random_texts(ngram: int) -> None:
    rng = random.Random(ngram)
    vocabulary = ["ab", "cd", "Été", "ef,", "gh-i"]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randrange(60))) for _ in range(60)]
    sets = sets_of(*texts, ngram=ngram)
    for i in range(0, 60, 2):
        assert len(sets[i]) == len(reference.shingle_tuples(texts[i], ngram))
        if len(sets[i]) + len(sets[i + 1]):
            assert jaccard(sets[i], sets[i + 1]) == reference.jaccard(texts[i], texts[i + 1], ngram)


def test_a_capital_sigma_changes_nothing_for_its_neighbours() -> None:
    plain = sets_of("a b c d e f", "ο δ ο σ ς x", "k l m n o p")
    upper = sets_of("a b c d e f", "Ο Δ Ο Σ ς x", "k l m n o p")
    assert all(np.array_equal(x, y) for x, y in zip(plain, upper, strict=True))


@pytest.mark.parametrize("n", [0, 1, 2, 100, 5000])
def test_sorting_equals_numpy(n: int) -> None:
    rng = np.random.default_rng(n)
    for values in (
        rng.integers(0, 2**64, n, dtype=np.uint64),
        rng.integers(0, 5, n, dtype=np.uint64),  # all in one bucket, full of repeats
        rng.choice(rng.integers(0, 2**64, 3, dtype=np.uint64), n),
    ):
        expected = np.unique(values)
        kept = sort_unique(values, np.empty_like(values), np.empty((1 << 16) + 1, np.int64))
        assert np.array_equal(values[:kept], expected)


def test_chosen_rows_of_a_batch_fill_the_room_they_need() -> None:
    texts = pa.array([f"w{i} w{i + 1} Σ w{i + 2} w{i + 3} w{i + 4} w{i + 5}" for i in range(9)], pa.large_string())
    whole, chosen = shingle_sets(texts, 5), np.array([1, 4, 8])
    values = np.empty(9, np.uint64)  # three shingles each
    starts, ends = fill(*buffers(texts), chosen, 5, values)
    for row, a, b in zip(chosen, starts, ends, strict=True):
        assert np.array_equal(values[a:b], whole.values[whole.starts[row] : whole.ends[row]])


def test_four_letters_of_thai_weigh_as_much_as_a_word() -> None:
    thai = "กขคงจฉชซฌญฎฏฐฑฒณดตถท"  # 20 letters: one full shingle of 5, and the last ones may lack up to three letters
    assert [len(s) for s in sets_of(thai, thai[:16], thai[:18], thai + "ธ")] == [4, 0, 2, 5]
    assert [len(s) for s in sets_of("一二三四", "一二三四五", "一二三四五六")] == [0, 1, 2]
    assert [len(s) for s in sets_of("a b c d " + thai[:3], "a b c d " + thai[:4], "a b c d")] == [1, 1, 0]


def test_every_token_is_in_some_shingle() -> None:
    rng = random.Random(2)
    for _ in range(200):
        tokens = rng.choices(["word", "ก", "界"], k=rng.randrange(5, 30))
        changed = [*tokens[:-1], "end"]
        a, b = sets_of(" ".join(tokens), " ".join(changed))
        assert len(a) == 0 or jaccard(a, b) < 1.0
