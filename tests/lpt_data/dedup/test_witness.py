from __future__ import annotations

import random

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.config import DedupConfig
from lpt_data.dedup.lsh import Buckets
from lpt_data.dedup.shingles import ShingleSets
from lpt_data.dedup.witness import cover, id_ranks, total_order
from manifests.errors import UsageError


def near(**changes) -> DedupConfig:
    return DedupConfig(**{"method": ("minhash",), "ngram": 1, "workers": 1, "keep": "first", **changes})


def as_sets(sets: list[list[int]]) -> ShingleSets:
    sizes = np.array([len(s) for s in sets])
    ends = np.cumsum(sizes)
    return ShingleSets(ends - sizes, ends, np.array([v for s in sets for v in s], np.uint64))


def chain(*starts: int, length: int = 20) -> list[str]:
    """Texts of ``length`` distinct words, so that with single words as shingles the similarity is an exact fraction."""
    return [" ".join(f"w{i}" for i in range(start, start + length)) for start in starts]


def test_a_chain_does_not_take_its_end() -> None:
    # 20 words shifted by two: 18 of 22 = 0.818; by four: 16 of 24 = 0.667. A ~ B ~ C, but A is not C.
    outcome = reference.dedup(chain(0, 2, 4), near())
    assert set(outcome) == {1}
    assert outcome[1][2] == 18 / 22


def test_the_middle_first_takes_both() -> None:
    assert reference.dedup(chain(2, 0, 4), near()) == {
        1: ("near_duplicate", 0, 18 / 22),
        2: ("near_duplicate", 0, 18 / 22),
    }


def test_the_witness_is_the_best_kept_row_even_a_later_one() -> None:
    # Row 1 goes because of row 0 (0.818), but row 2, which stays, resembles it more (19 of 21).
    assert reference.dedup(chain(0, 2, 3), near())[1] == ("near_duplicate", 2, 19 / 21)


def test_equal_scores_take_the_smallest_record_id() -> None:
    texts = chain(2, 0, 4)
    outcome = reference.dedup([texts[1], texts[2], texts[0]], near())
    smallest = min((0, 1), key=lambda row: reference.identifier([texts[1], texts[2]][row]))
    assert outcome == {2: ("near_duplicate", smallest, 18 / 22)}


def test_the_threshold_itself_is_enough() -> None:
    # 18 shared words of 20 and 22: 18 / 22 by floats, and one word less is too few.
    assert 1 in reference.dedup(chain(0, 2), near(threshold=18 / 22))
    assert reference.dedup(chain(0, 2), near(threshold=np.nextafter(18 / 22, 1))) == {}


def test_the_longest_row_stays_then_the_smallest_id() -> None:
    long, short = "w0 w1 w2 w3 w4 w5 w6 w7 w8 extraordinary", "w0 w1 w2 w3 w4 w5 w6 w7 w8"
    for texts in ([long, short], [short, long]):
        outcome = reference.dedup(texts, near(keep="content"))
        assert reference.survivors(texts, outcome) == [long]
    ids = np.zeros((3, 32), np.uint8)
    ids[:, 31] = [2, 1, 3]
    same = np.zeros(3, np.uint64)
    assert total_order("content", np.array([5, 5, 9]), ids, same, np.arange(3)).tolist() == [2, 1, 0]
    assert total_order("first", np.array([5, 5, 9]), ids, same, np.array([4, 9, 1])).tolist() == [2, 0, 1]


def test_ids_are_ranked_as_bytes() -> None:
    ids = np.frombuffer(
        b"".join(bytes([a]) + bytes(30) + bytes([b]) for a, b in [(1, 0), (0, 200), (0, 7), (255, 0)]), np.uint8
    )
    assert id_ranks(ids.reshape(-1, 32)).tolist() == [2, 1, 0, 3]


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        reference.dedup(["a"], near(keep="best"))
    assert "content" in error.value.next


def greedy(sets: list[set[int]], order: list[int], threshold: float) -> dict[int, set[int]]:
    """The rule by brute force: each row that goes, and the kept rows that would be right as its witness."""

    def score(a: int, b: int) -> float:
        return len(sets[a] & sets[b]) / len(sets[a] | sets[b])

    kept: list[int] = []
    gone: list[int] = []
    for row in order:
        (gone if any(score(row, other) >= threshold for other in kept) else kept).append(row)
    best = {row: max(score(row, other) for other in kept) for row in gone}
    return {row: {other for other in kept if score(row, other) == best[row]} for row in gone}


@given(
    st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=25),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_cover_is_the_greedy_rule(sets: list[set[int]], threshold: float, rng: random.Random) -> None:
    order = list(range(len(sets)))
    rng.shuffle(order)
    packed = as_sets([sorted(s) for s in sets])
    everyone = Buckets(np.zeros((2, len(sets)), np.int32), np.array([len(sets)], np.int64))
    everyone.of_row[1] = -1
    ranks = np.arange(len(sets))
    outcome = cover(np.array(order), ranks, everyone, packed, threshold)
    expected = greedy(sets, order, threshold)
    assert set(np.flatnonzero(outcome.witness >= 0)) == set(expected)
    for row, witnesses in expected.items():
        assert outcome.witness[row] == min(witnesses)
    assert outcome.candidates >= outcome.verified >= len(expected)


def test_a_bucket_of_copies_costs_one_comparison_a_row() -> None:
    rows = 5000
    packed = as_sets([[0, 1, 2, 3]] * rows)
    everyone = Buckets(np.zeros((3, rows), np.int32), np.array([3 * rows], np.int64))
    outcome = cover(np.arange(rows), np.arange(rows), everyone, packed, 0.8)
    assert outcome.candidates == rows - 1
    assert (outcome.witness[1:] == 0).all()
