from __future__ import annotations

import numpy as np
import pytest
import reference

from lpt_data.config import DedupConfig
from lpt_data.dedup.exact import classes

EXACT = DedupConfig(method=("exact",), keep="first", workers=1)


def test_reasons_tell_bytes_from_normal_form() -> None:
    texts = ["The Cat sat", "the  cat\nsat", "The Cat sat", "the cat, sat", "the cat sat"]
    assert reference.dedup(texts, EXACT) == {
        1: ("normalized_duplicate", 0, 1.0),
        2: ("exact_duplicate", 0, 1.0),
        4: ("normalized_duplicate", 0, 1.0),
    }


def test_short_rows_that_differ_in_a_sign_are_not_merged() -> None:
    texts = ["2 + 2", "2 - 2", "C++", "C#", "C", "cat", "dog", "a b", "b a"]
    for method in (("exact",), ("minhash",), ("exact", "minhash")):
        assert reference.dedup(texts, DedupConfig(method=method, workers=1)) == {}


@pytest.mark.parametrize("method", [("exact",), ("minhash",), ("exact", "minhash")])
def test_short_rows_that_are_equal_are_merged(method: tuple[str, ...]) -> None:
    outcome = reference.dedup(["Hello world", "hello   WORLD ", "Hello world"], DedupConfig(method=method, workers=1))
    assert len(outcome) == 2
    reasons = {reason for reason, _, _ in outcome.values()}
    assert reasons <= ({"near_duplicate"} if method == ("minhash",) else {"exact_duplicate", "normalized_duplicate"})


def test_rows_without_words_are_compared_byte_for_byte() -> None:
    texts = ["!!!", "!!", "🙂", "🙃", "!!!", " !!!", "🙂", "\u200b", "…"]
    assert {row: found[1] for row, found in reference.dedup(texts, EXACT).items()} == {4: 0, 6: 2}


def test_blank_rows_are_quarantined_and_match_nothing() -> None:
    texts = ["", " \n\t", "\u3000\u2028", "word", ""]
    outcome = reference.dedup(texts, DedupConfig(workers=1))
    assert outcome == {row: ("empty_text", -1, 0.0) for row in (0, 1, 2, 4)}


def test_a_hash_collision_merges_nothing() -> None:
    texts = [b"one", b"two", b"one", b"three", b"ONE"]
    found = classes(
        np.zeros(5, np.uint64), np.ones(5, np.int32), lambda rows: rows, lambda rows: [texts[row] for row in rows]
    )
    assert found.leader.tolist() == [0, 1, 0, 3, 0]
    assert found.same_bytes.tolist() == [True, True, True, True, False]


def test_contents_that_are_known_are_not_read() -> None:
    texts = [b"one", b"two", b"one", b"ONE"]
    known = np.array([[7, 1], [7, 2], [7, 1], [8, 1]], np.uint64)
    asked: list[int] = []

    def read(rows: np.ndarray) -> list[bytes]:
        asked.extend(rows.tolist())
        return [texts[row] for row in rows]

    found = classes(
        np.zeros(4, np.uint64), np.ones(4, np.int32), lambda rows: rows, read, contents=lambda rows: known[rows]
    )
    assert found.leader.tolist() == [0, 1, 0, 0]
    assert found.same_bytes.tolist() == [True, True, True, False]
    assert sorted(asked) == [0, 1, 3]  # one row of each content, for their normal forms


def test_the_order_given_chooses_the_leader() -> None:
    texts = [b"a  b", b"A b", b"a b"]
    found = classes(
        np.zeros(3, np.uint64), np.full(3, 2, np.int32), lambda rows: -rows, lambda rows: [texts[row] for row in rows]
    )
    assert found.leader.tolist() == [2, 2, 2]
